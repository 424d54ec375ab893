"""Read files of many engines that say how a model rotates into a common description."""
