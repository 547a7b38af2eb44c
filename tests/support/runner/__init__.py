"""What takes a model's place, or an artifact's, in tests of the runner."""
