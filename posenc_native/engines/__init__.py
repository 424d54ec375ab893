"""The code that computes: the native module, the float64 reference, operations on tensors."""
