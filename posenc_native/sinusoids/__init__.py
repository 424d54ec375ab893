"""Sinusoidal tables: of positions, and of any convention as data."""
