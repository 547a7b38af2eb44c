"""How many drafts will be accepted."""
