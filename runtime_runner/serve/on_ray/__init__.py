"""Many engines, on one machine or many, by Ray."""
