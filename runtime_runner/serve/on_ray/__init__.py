"""Several engines, on one machine or many, run by Ray."""
