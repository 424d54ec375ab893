"""Relative encodings: one number for each distance between key and query, or a look-up by it."""
