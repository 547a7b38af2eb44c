"""Damaged files for every reader, and a child process to read them in."""
