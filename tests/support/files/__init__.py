"""Files of every kind, as others write them."""
