"""How geometry forms: the diagnostics over a training's snapshots, and the same training under several seeds."""
