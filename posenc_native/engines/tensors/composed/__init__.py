"""The operations as compositions of torch operations.

For devices without a kernel, and under ``set_backend("reference")``. Differentiable by themselves;
the phases are exact here too. Arguments are tensors on one device, of the operators' kinds.
"""
