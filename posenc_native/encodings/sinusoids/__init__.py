"""Sinusoidal tables of positions, in any convention."""
