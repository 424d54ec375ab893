"""What only a machine with a GPU can show, in one command: `python -m benchmarks.gpu`."""
