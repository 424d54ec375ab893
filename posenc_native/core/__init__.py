"""Checks of calls, the frequencies of angles, documents."""
