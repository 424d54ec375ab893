"""Questions of their own: growth with size, exactness, instructions."""
