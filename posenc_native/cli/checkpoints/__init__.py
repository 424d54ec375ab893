"""Commands about checkpoints: how one rotates, and whether several rotate alike."""
