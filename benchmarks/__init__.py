"""Benchmarks of posenc_native: `python -m benchmarks --help`, README.md beside this file."""
