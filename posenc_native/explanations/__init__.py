"""What a model does to positions, in words; and whether two do the same."""
