"""Files that say how a model rotates, in the words of many engines: read into one description."""
