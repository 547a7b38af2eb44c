"""Trains draft heads, and the shipped pair."""
