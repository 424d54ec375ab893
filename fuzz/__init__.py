"""Random calls of every function that reaches native code, in memory that notices: README.md."""
