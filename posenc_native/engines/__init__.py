"""Which code runs: the native module, the float64 reference, operations on tensors."""
