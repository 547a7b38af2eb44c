"""Trains the shipped default pair: a tiny Gemma-4 target and its EAGLE-3 draft head."""
