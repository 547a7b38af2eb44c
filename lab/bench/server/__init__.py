"""What a server makes of an engine's speed."""
