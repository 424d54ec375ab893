"""Entries of a configuration that seem to concern the rotation, but are not read.

A misspelled key has no effect and raises no error, because configurations have entries of every
kind. So this module finds keys that contain a rotary term, and keys that are within one letter of
an entry that is read and missing. In the configurations of transformers it finds only a few, which
are indeed not read here (tests/models/test_unread.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from posenc_native.core.frequencies.scaling import KEYS_OF_EVERY_TYPE, ROTARY_SCALINGS

from .config import Configuration
from .entries import ENTRIES, NAME_LIMIT, PARAMETERS, named_rope_type
from .facts import model_facts
from .fields import by_layer_type

_OUR_WORDS = re.compile(r"(^|_)(rope|mrope|rotary|yarn|ntk|theta)(_|$)|^rope|rotary")
_OF_EVERY_TYPE = {*KEYS_OF_EVERY_TYPE, "llama_4_scaling_beta"} - {"seq_len"}
_MOST = 32  # of them are listed: a file of 16 MiB could have a million


class UnreadEntry(NamedTuple):
    """An entry of a configuration that is not read.

    Attributes:
        place: its place, such as ``config['rope_scaling']['beta_fst']``.
        near: the entry that it may be meant for; "" if none is similar.
        why: the reason, if it is known; otherwise "".
    """

    place: str
    near: str = ""
    why: str = ""

    def __str__(self) -> str:
        more = f"did you mean {self.near}?" if self.near else self.why
        return f"{self.place}: {more}" if more else self.place


def unread_entries(model: Configuration) -> tuple[UnreadEntry, ...]:
    """The unread entries, at most 32, in the order of the configuration."""
    unread: list[UnreadEntry] = []
    for entry in (*_at_the_top(model), *_parameters(model)):
        if len(unread) == _MOST:
            break
        unread.append(entry)
    return tuple(unread)


def _at_the_top(model: Configuration) -> Iterator[UnreadEntry]:
    rules = [facts.rotary_if["entry"] for facts in model_facts().values() if facts.rotary_if]
    bases = [rule["base"] for facts in model_facts().values() for rule in facts.flat.values()]
    known = {*ENTRIES, *rules, *filter(None, bases)}
    missing = [key for key in ENTRIES if key not in model.fields]
    for key in model.fields:
        if key in known or len(key) > NAME_LIMIT:
            continue
        near = next((name for name in missing if _is_misspelt(key, name)), "")
        if not near and _OUR_WORDS.search(key):
            near = _nearest(key, known)
        elif not near:
            continue
        yield UnreadEntry(f"config[{key!r}]", near)
    today, older = (model.fields.get(key) for key in ("rope_parameters", "rope_scaling"))
    if today and older and today != older:
        yield UnreadEntry("config['rope_scaling']", why="rope_parameters overrides it")


def _parameters(model: Configuration) -> Iterator[UnreadEntry]:
    name = "rope_parameters" if model.fields.get("rope_parameters") else "rope_scaling"
    parameters = model.fields.get(name) or {}
    nested = by_layer_type(parameters)
    for label, entry in {"": parameters, **nested}.items():
        if label == "" and nested:
            continue
        rope_type = named_rope_type(entry)
        if rope_type not in ROTARY_SCALINGS:  # a vision encoder, which has other rules
            continue
        read = _OF_EVERY_TYPE | {*ROTARY_SCALINGS[rope_type].keys}
        place = f"config[{name!r}]" + (f"[{label!r}]" if label else "")
        named = entry.get("rope_type") or entry.get("type")
        for key in entry:
            if key in read or len(key) > NAME_LIMIT or (key == "factor" and not named):
                continue  # for a factor alone, explain has a better warning
            here = f"{place}[{key!r}]"
            if key in PARAMETERS:
                yield UnreadEntry(here, why=f"rope_type {rope_type} has no such parameter")
            else:
                yield UnreadEntry(
                    here, _nearest(key, [known for known in read if known not in entry])
                )
    if nested:
        for key in parameters:
            if key not in nested and key != "rope_type" and parameters[key] is not None:
                yield UnreadEntry(f"config[{name!r}][{key!r}]", why="layer types have their own")


def _nearest(key: str, known: Iterable[str]) -> str:
    import difflib  # slow to import, and seldom needed

    return next(iter(difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.75)), "")


def _is_misspelt(key: str, known: str) -> bool:
    """Whether one letter is missing, added or different, or two are swapped; a plural is not."""
    if key[:1] != known[:1] or abs(len(key) - len(known)) > 1:
        return False
    if key in (f"{known}s", known.removesuffix("s")):
        return False
    start = 0
    while start < min(len(key), len(known)) and key[start] == known[start]:
        start += 1
    a, b = key[start:], known[start:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])
