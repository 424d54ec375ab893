"""The code that computes: the native module, the float64 reference, operations on tensors.

The peak memory of an operation is its inputs and its results. No engine keeps results behind its
caller's back, and a backward does not write into the gradient that it is given, since nothing tells
for certain that nobody else holds it.
"""
