"""Rotary position encoding: the verb, what describes a model's, and what is made of it."""
