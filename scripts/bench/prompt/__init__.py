"""A prompt on one GPU in parts: its products, its attention, its layers."""
