"""Times single operators and single forwards on a GPU."""
