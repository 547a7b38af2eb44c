"""What drafts for a target, read from checkpoints."""
