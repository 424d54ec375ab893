"""The rules of a valid call: checks of arguments, views of tensors, calls as text."""
