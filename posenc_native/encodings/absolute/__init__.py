"""Simple absolute encodings, and learned tables resampled to another length."""
