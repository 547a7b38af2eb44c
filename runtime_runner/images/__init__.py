"""Pictures in prompts: how they are read, made ready and placed."""
