"""The operations as compositions of torch operations.

They serve devices without a kernel, transforms of torch.func and ``set_backend("reference")``.
torch differentiates them without further code, and their phases are also exact. Arguments are those
of the operators: tensors on one device, other values in the schema's types.
"""
