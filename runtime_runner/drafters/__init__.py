"""What proposes drafts, one file a kind."""
