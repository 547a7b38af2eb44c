"""EAGLE-3 draft heads: the model, how public checkpoints are read, and whether a head fits."""
