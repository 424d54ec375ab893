"""The steps before attention in one pass: norm, rotation, and append to a cache."""
