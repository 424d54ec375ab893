"""How time is taken: turns, the limits of memory, a bar that does not disturb."""
