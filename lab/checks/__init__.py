"""Offline checks of an artifact: its files, rows, outputs, drafts and sampling."""
