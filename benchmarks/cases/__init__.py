"""What is timed: the cases, a file for each family of encodings."""
