"""Clients of a server, and what happens to them and to it."""
