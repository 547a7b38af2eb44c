"""Google's assistants of Gemma 4: what drafts reads the target's own keys and values."""
