"""Read files of many engines that say how a model rotates into one common description."""
