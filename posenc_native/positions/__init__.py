"""Where tokens are: positions of rows, of grids, of text with images."""
