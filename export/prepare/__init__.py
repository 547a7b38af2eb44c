"""Turn a loaded pair into the one that is traced: each function takes a model and returns one."""
