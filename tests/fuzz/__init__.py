"""Damaged files for every reader, read in processes that may die."""
