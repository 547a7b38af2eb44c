"""From traced methods to the files of one program, a module for each backend."""
