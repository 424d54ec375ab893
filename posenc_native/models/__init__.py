"""Configurations, facts and weights of published models, as arguments of `Rotary`.

Nothing in this package rotates. `Rotary.from_config` and `Rotary.preset` call it.
"""
