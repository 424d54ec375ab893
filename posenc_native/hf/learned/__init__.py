"""Rotary functions that are learned from how they are called: those of diffusers and timm.

    processors.py    finds them, in modules and attention processors, and puts ours in their place
    functions.py     learns what a call does with its tables, and does it
    rotations.py     what that may be
    makers.py        modules that make tables by a formula, which is run in float64

Nothing is known of a function but its name.
"""
