"""The operations as compositions of torch operations.

They serve devices without a kernel, transforms of torch.func and ``set_backend("reference")``.
torch differentiates them without help, and their phases are exact too. Arguments are as the
operators take them: tensors on one device, the rest in the types of the schema.
"""
