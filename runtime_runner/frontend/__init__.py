"""What users write and read: prompts, conversations, streams of text, and results."""
