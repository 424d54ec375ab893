"""Rotary functions of diffusers and timm, learned from their calls.

    processors.py    finds them, in modules and attention processors, and replaces them
    functions.py     learns what a call does with its tables, and does it
    rotations.py     the rotations that it may be
    makers.py        modules that make tables by a formula, which is run in float64

Only the name of a function is known in advance.
"""
