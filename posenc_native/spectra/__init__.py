"""Which angle a position makes: frequencies, their scalings, the axes that drive them."""
