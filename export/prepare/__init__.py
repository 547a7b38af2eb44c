"""What is done to a loaded pair before it is traced: a model in, another one out."""
