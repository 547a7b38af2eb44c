"""What is too slow in stock PyTorch. Imports nothing else of this project."""
