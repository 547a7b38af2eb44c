"""Chat templates, rendered within bounds."""
