"""The code that computes: the native module, plain operations, operators on tensors.

The peak memory of an operation is its inputs and its results. No engine keeps results without its
caller's knowledge. A backward does not write into its incoming gradient, because it cannot be
certain that nothing else holds that gradient.
"""
