"""The simple absolute encodings, and tables for another length."""
