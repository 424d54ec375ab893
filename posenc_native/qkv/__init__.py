"""What stands before attention, in one pass: norm and rotation, the append to a cache."""
