"""Decisions, pure: `now` and seeds come in as arguments, effects go out as values."""
