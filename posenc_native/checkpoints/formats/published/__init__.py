"""Configurations that are published with weights: Hugging Face, Meta, Mistral, MLX."""
