"""Planted faults, and which tests notice them: `make mutants` (see __main__.py)."""
