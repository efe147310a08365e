"""The simulated engine: one pure step-based engine, driven in virtual time or over HTTP."""
