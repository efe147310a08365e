"""The engine's side of the relay: connections that are kept warm, heads parsed, bodies framed, bytes untouched."""
