"""What came of a request, and how it is told."""
