"""Every operation in plain array operations, once for NumPy and torch.

For NumPy (arrays/) they are the oracle of the tests and the fallback without native code: sums are
formed in float64. For torch they serve devices without a kernel, transforms of torch.func and
``set_backend("reference")``, and torch differentiates them. `numbers.py` has the few operations
that NumPy and torch spell differently. Callers pass in what makes the turns of frequencies: for
tensors, an operator makes them (engines/torch/turns.py).
"""
