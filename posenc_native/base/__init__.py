"""What a valid call is: arguments, views of tensors, how calls are written down."""
