"""Every entry of a configuration, and a copy with one entry replaced."""

from __future__ import annotations


def places(config, before=()):
    """Where the entries of a mapping stand, those of parts and the first of lists too."""
    for key, value in config.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from places(value, (*before, key))
        elif isinstance(value, list):
            yield (*before, key, 0)
            if isinstance(value[0], dict):
                yield from places(value[0], (*before, key, 0))


def with_entry(config, place, value):
    if not place:
        return value
    copy = config.copy()
    copy[place[0]] = with_entry(config[place[0]], place[1:], value)
    return copy
