"""What rounds take."""
