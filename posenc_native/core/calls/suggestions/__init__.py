"""Suggested fixes for wrong calls: from their arguments (hints), from their words (vocabulary)."""
