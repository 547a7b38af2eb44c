"""Programs that decode the same prompts, each in a process of its own."""
