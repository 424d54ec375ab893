"""Entries of a configuration that seem to concern the rotation, but are not read.

A misspelled key has no effect and raises no error, because configurations have entries of every
kind. So this module finds keys that contain a rotary term, and keys that are within one letter of
an entry that is read and missing. In the configurations of transformers it finds only a few, which
are indeed not read here (tests/models/test_unread.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, NamedTuple

from posenc_native.core.calls.arguments import wrong_type, wrong_value
from posenc_native.core.frequencies.scaling import KEYS_OF_EVERY_TYPE, ROTARY_SCALINGS

from .config import Configuration
from .entries import ENTRIES, NAME_LIMIT, PARAMETERS, named_rope_type
from .facts import model_facts
from .fields import BASES, LOCAL_BASES, by_layer_type

_OUR_WORDS = re.compile(
    r"(^|_)(rope|mrope|rotary|yarn|ntk|theta|partial)(_|$)|^rope|rotary|^axes_dim"
)
_OF_EVERY_TYPE = {*KEYS_OF_EVERY_TYPE, "llama_4_scaling_beta"} - {"seq_len"}
_OF_THE_CLASS = "the class of {} in transformers 5.23 does not read it"
# Entries that classes of transformers or published files have beside the language model's rotation.
_ELSEWHERE = {
    "attn_rotary_emb", "use_rotary_embedding", "rotary_value", "relation_bias_theta",
    "rotary_embedding_base", "memory_attention_rope_feat_sizes", "memory_attention_rope_k_sizes",
    "memory_attention_rope_dropout",
}  # fmt: skip
# Values with which an entry changes nothing; published files of Qwen 2.5, SmolLM 2, GPT-J, HunYuan
# and Nomic have such entries.
_NEUTRAL: dict[str, tuple[float, ...]] = {
    "use_mrope": (False,),
    "rope_interleaved": (False,),
    "rotary": (True,),
    "use_rotary_pos_emb": (True,),
    "rope_ratio": (1,),
    "rotary_emb_fraction": (1,),
    "rotary_emb_interleaved": (False,),
    "factor": (1,),
    "beta_fast": (32,),
    "beta_slow": (1,),
    "mscale": (1,),
    "mscale_all_dim": (0, 1),
}
_MOST = 32  # of them are listed: a file of 16 MiB could have a million


class UnreadEntry(NamedTuple):
    """An entry of a configuration that is not read.

    Attributes:
        place: its place, such as ``config['rope_scaling']['beta_fst']``.
        near: the entry that it may be meant for; "" if none is similar.
        why: the reason, if it is known; otherwise "".
        value: its value.
    """

    place: str
    near: str = ""
    why: str = ""
    value: Any = None

    def __str__(self) -> str:
        more = f"did you mean {self.near}?" if self.near else self.why
        return f"{self.place}: {more}" if more else self.place

    @property
    def key(self) -> str:
        """Its name, without its place."""
        return self.place.rpartition("['")[2].removesuffix("']")

    @property
    def may_matter(self) -> bool:
        """False for entries and values that leave the rotation as it is."""
        neutral = _NEUTRAL.get(self.key, ())
        if self.key in _ELSEWHERE or self.value is None:
            return False
        return not isinstance(self.value, (int, float)) or self.value not in neutral


def unread_entries(model: Configuration) -> tuple[UnreadEntry, ...]:
    """The unread entries, at most 32, in the order of the configuration."""
    return tuple(islice(chain(_at_the_top(model), _parameters(model)), _MOST))


def refuse_unread(model: Configuration, ignore: Collection[str]) -> None:
    """ValueError for an entry about the rotation that is not read, unless it is to be ignored."""
    if isinstance(ignore, str):
        hint = f"write ignore=[{ignore[:NAME_LIMIT]!r}]"
        wrong_type(model.function, "ignore", "a list of names", "str", hint)
    for entry in unread_entries(model):
        key = entry.key
        if key in ignore or not entry.may_matter:
            continue
        got = f"one that is not: {entry.why}" if entry.why else "one that is not"
        hint = f"if it does not matter, write ignore=[{key!r}]"
        if entry.near:
            hint = f"did you mean {entry.near!r}? Otherwise {hint}"
        wrong_value(model.function, entry.place, "an entry that is read", got, hint)


def _at_the_top(model: Configuration) -> Iterator[UnreadEntry]:
    if model.diffusion is not None:
        own = {*model.diffusion.defaults, *model.diffusion.beside}
        for key in model.fields:
            if key not in own and len(key) <= NAME_LIMIT and _OUR_WORDS.search(key):
                yield UnreadEntry(f"config[{key!r}]", _nearest(key, own), value=model.fields[key])
        return
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
        yield UnreadEntry(f"config[{key!r}]", near, value=model.fields[key])
    given = {key: model.fields.get(key) for key in ("rope_parameters", "rope_scaling")}
    for key, value in given.items():
        if not value or key == model.parameters_key or value == given.get(model.parameters_key):
            continue
        read = model.parameters_key
        why = f"{read} overrides it" if read else _OF_THE_CLASS.format(model.model_type)
        yield UnreadEntry(f"config[{key!r}]", why=why, value=value)
    yield from _beside_parameters(model)


def _beside_parameters(model: Configuration) -> Iterator[UnreadEntry]:
    """A base and a share of the head that the class of the model does not read."""
    nested = by_layer_type(model.rotary_parameters)
    inside = list(nested.values()) or [model.rotary_parameters]
    stated = [entry.get("rope_theta") for entry in inside]
    local = [rule["base"] for rule in model.facts.flat.values()]
    defaults = model.facts.defaults or {}
    default = None if by_layer_type(defaults) else defaults.get("rope_theta", 10000.0)
    for names in (BASES, LOCAL_BASES):
        given = {key: model.fields[key] for key in names if model.fields.get(key) is not None}
        read = [key for key in given if key in local or _is_base(model, key)]
        first = next((key for key in read if key in local), next(iter(read), ""))
        for key, value in given.items():
            why = ""
            if key not in read:
                used = given[first] if read else default
                if names is LOCAL_BASES or value != used or stated != [None]:
                    why = _OF_THE_CLASS.format(model.model_type)
            elif nested or (key not in local and names is BASES and None not in stated):
                if value not in stated and None not in stated:
                    others = (
                        "has another, which is" if len(stated) == 1 else "has others, which are"
                    )
                    why = f"{model.parameters_key} {others} read"
            elif key not in local and value != given[first]:
                why = f"{first} is another, which is read"
            if why:
                yield UnreadEntry(f"config[{key!r}]", why=why, value=value)
    yield from _shares(model, inside)


def _is_base(model: Configuration, key: str) -> bool:
    """Whether the class of the model looks for a base there; of an unknown model, a local one."""
    return key in model.bases_read or (key in LOCAL_BASES and not model.is_known)


def _shares(model: Configuration, inside: Iterable[Mapping[str, Any]]) -> Iterator[UnreadEntry]:
    """The share of the head, if the class of the model has its own."""
    if model.facts.whole_share:
        key = "partial_rotary_factor"
        places = {f"config[{key!r}]": model.fields.get(key)}
        name = f"config[{model.parameters_key!r}][{key!r}]"
        places[name] = next((entry[key] for entry in inside if entry.get(key) is not None), None)
        for place, value in places.items():
            if value not in (None, 1):
                why = f"{_OF_THE_CLASS.format(model.model_type)}: it rotates the whole head"
                yield UnreadEntry(place, why=why, value=value)


def _parameters(model: Configuration) -> Iterator[UnreadEntry]:
    name, parameters = model.parameters_key, model.rotary_parameters
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
                why = f"rope_type {rope_type} has no such parameter"
                yield UnreadEntry(here, why=why, value=entry[key])
            else:
                near = _nearest(key, [known for known in read if known not in entry])
                yield UnreadEntry(here, near, value=entry[key])
    if nested:
        for key in parameters:
            if key not in nested and key != "rope_type" and parameters[key] is not None:
                why, value = "layer types have their own", parameters[key]
                yield UnreadEntry(f"config[{name!r}][{key!r}]", why=why, value=value)


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
