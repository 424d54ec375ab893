"""What is known of published models: configurations, facts and weights, as arguments of `Rotary`.

Nothing here makes a rotation. `Rotary.from_config` and `Rotary.preset` call this room.
"""
