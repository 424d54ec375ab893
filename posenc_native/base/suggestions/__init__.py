"""What a wrong call may have meant: by its arguments (hints), by its words (vocabulary)."""
