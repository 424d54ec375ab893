"""What is timed: the cases, a file for each subject."""
