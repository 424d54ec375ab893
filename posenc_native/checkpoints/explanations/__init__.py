"""Describe in words what a model does to positions, and compare models."""
