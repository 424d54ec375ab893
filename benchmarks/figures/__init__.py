"""What a run says: text, JSON, pictures."""
