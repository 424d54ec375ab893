"""From positions to angles: frequencies, their scalings, and the axes that drive them."""
