"""What is done to a loaded pair before it is traced."""
