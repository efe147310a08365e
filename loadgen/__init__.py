"""lanewise-load: replay traffic open loop, measure honestly, compare, and simulate the engine."""
