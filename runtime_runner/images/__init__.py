"""Images in prompts: how they are read, processed and placed."""
