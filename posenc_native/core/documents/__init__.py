"""Words in parts: lines for a terminal and HTML for a notebook, from one description."""
