"""Pictures, with matplotlib where it is installed."""
