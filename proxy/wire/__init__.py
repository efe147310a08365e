"""What is known of the wire: bodies, streams, headers, the trace record, engine metric names. Pure."""
