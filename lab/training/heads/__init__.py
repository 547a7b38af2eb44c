"""Trains an EAGLE-3 head for a target: prompts, the target's answers to them, and the head."""
