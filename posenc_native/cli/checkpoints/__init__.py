"""Commands for checkpoints: explain how a checkpoint rotates, and compare several."""
