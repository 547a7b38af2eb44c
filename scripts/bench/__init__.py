"""What the measuring scripts measure, a room each."""
