"""Methods that are lowered at the same time, each in a process of its own."""
