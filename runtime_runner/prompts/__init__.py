"""How a prompt is cut, run and kept."""
