"""Rotary position encoding: its functions, descriptions of models' rotations, and extensions."""
