"""Commands for checkpoints: explain how one rotates, and compare several."""
