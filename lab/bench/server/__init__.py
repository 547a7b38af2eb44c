"""Compares a server with its engine alone."""
