"""Autograd for the operators, one module per family."""
