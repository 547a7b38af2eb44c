"""The target's own answers: many prompts at once, and files of what it wrote."""
