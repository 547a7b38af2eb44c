"""Chooses how much to draft, round by round, by speed."""
