"""Autograd of the operators, a module a family."""
