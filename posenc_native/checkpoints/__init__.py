"""How files of models and engines say what a model rotates by."""
