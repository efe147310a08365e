"""From one run (and a baseline, and the engine's log) to the layer that limits it, and the next single step."""
