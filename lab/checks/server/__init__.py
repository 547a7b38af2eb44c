"""Checks a running server with many clients."""
