"""Tool calls and reasoning in the texts of models: each format has a file of its own."""
