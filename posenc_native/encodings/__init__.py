"""The families of encodings."""
