"""What an artifact says about itself, and how it comes to be there whole."""
