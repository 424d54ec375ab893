"""The options that describe an encoding.

The functions that make encodings define which options combine, and their defaults:
`SinusoidalSpec` and its `preset`, `Rotary`, its `preset` and its `from_config`.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from posenc_native.core.calls.arguments import SINUSOIDAL_LAYOUTS, WIDTH_LIMIT
from posenc_native.core.calls.errors import fault_of, names_like
from posenc_native.encodings.rotary.rotary import Rotary
from posenc_native.encodings.sinusoids.spec import SinusoidalSpec
from posenc_native.models.files import unique_names

from .kinds import Kind, at_least_one, number, reading, whole_number
from .parser import (
    CommandError,
    CommandParser,
    UsageError,
    default_in_help,
    flag,
    without_function,
)
from .terminal import show_table

# The kinds of encodings that an annotation allows.
KINDS: Mapping[object, tuple[str, ...]] = {
    SinusoidalSpec: ("sinusoidal",),
    Rotary: ("rotary",),
    SinusoidalSpec | Rotary: ("sinusoidal", "rotary"),
}

_IGNORE = re.compile(r"ignore=\['(.*)'\]$")  # as Python writes it

# json.loads raises these: for text that is not JSON, thousands of digits, thousands of brackets.
_NO_JSON = (ValueError, RecursionError)


def _pairing_name_or_size(text: str) -> str | int:
    return int(text) if text.isdecimal() else text


def _json_object(text: str) -> Mapping[str, Any]:
    def wrong(expected: str, got: str) -> NoReturn:
        raise argparse.ArgumentTypeError(f"expected {expected}, got {got}")

    with contextlib.suppress(*_NO_JSON):
        value = json.loads(text, object_pairs_hook=unique_names(wrong))
        if isinstance(value, dict):
            return value
    example = '\'{"rope_type": "yarn", "factor": 4}\''
    raise argparse.ArgumentTypeError(f"expected a JSON object like {example}, got {text!r}")


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    with contextlib.suppress(*_NO_JSON):
        return name, json.loads(value)
    return name, value


def _preset(text: str) -> str:
    presets = {**Rotary.presets(), **SinusoidalSpec.presets()}
    if text not in presets:
        like = names_like(text, presets, cutoff=0.4)
        expected = f"a preset like {', '.join(like)}" if like else "one of --list-presets"
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return text


_BOTH = {
    "base": Kind(number, "X", text="base of the frequencies (rope_theta)"),
    "preset": Kind(_preset, "NAME", text="use the settings of a published model or project"),
}
_SINUSOIDAL = {
    "dim": Kind(whole_number, "N", text="width of the table"),
    "layout": Kind(choices=SINUSOIDAL_LAYOUTS, text="order of the columns"),
    "shift": Kind(
        number, "X", text="0 for exponents 2i/dim (the paper), 1 for i/(dim/2 - 1) (tensor2tensor)"
    ),
    "scale": Kind(number, "X", text="factor of the angles"),
    "set": Kind(
        _assignment,
        "NAME=VALUE",
        text="an option of a sinusoidal --preset, by the name in its project; may be repeated",
    ),
}
_ROTARY = {
    "head_dim": Kind(whole_number, "N", text="width of a head of queries and keys"),
    "config": Kind(Path, "PATH", text="read a model's config.json: the file or its folder"),
    "rotary_dim": Kind(
        whole_number, "N", text="how many dims of a head are rotated (default: all)"
    ),
    "pairing": Kind(
        _pairing_name_or_size,
        "NAME",
        text="which dims form a pair: half, interleaved, or a block size",
    ),
    "scaling": Kind(
        _json_object,
        "JSON",
        text="how frequencies are scaled, as in a config.json: "
        '\'{"rope_type": "linear", "factor": 4}\'',
    ),
    "layer_type": Kind(
        metavar="NAME",
        text="with --preset or --config: which layers, if they differ, such as full_attention",
    ),
    "layer": Kind(whole_number, "N", text="with --config: index of a layer, instead of its type"),
    "seq_len": Kind(
        at_least_one,
        "N",
        text="with --preset or --config: sequence length, for scalings that depend on it",
    ),
    "ignore": Kind(
        metavar="KEY",
        text="with --config: an entry about the rotation that does not matter; may be repeated",
    ),
}
_REPEATED = ("set", "ignore")
_OF = {"sinusoidal": {**_BOTH, **_SINUSOIDAL}, "rotary": {**_BOTH, **_ROTARY}}
# The sources of a rotary encoding; the signatures say which options go with each source.
_SOURCES: dict[str, Callable[..., Rotary]] = {
    "preset": Rotary.preset,
    "config": Rotary.from_config,
    "head_dim": Rotary,
}


class _ListPresets(argparse.Action):
    """Prints the presets for some kinds of encodings and exits, as --version does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        rows = []
        if "rotary" in self.const:
            for name, facts in Rotary.presets().items():
                scaling = facts.scaling["rope_type"] if facts.scaling else "no scaling"
                said = f"rotary, head_dim {facts.head_dim}, base {facts.base:g}, {scaling}"
                rows.append((name, f"{said}: {facts.source}"))
        if "sinusoidal" in self.const:
            for name, text in SinusoidalSpec.presets().items():
                rows.append((name, f"sinusoidal, {text}"))
        show_table(("preset", "description"), rows)
        parser.exit()


def add_encoding(parser: CommandParser, *kinds: str, width: int | None = None) -> None:
    """Add the options that describe an encoding; `encoding` reads them.

    Args:
        parser: the parser of the command.
        kinds: "sinusoidal", "rotary" or both.
        width: dim or head_dim if no option says it; None: an option has to.
    """
    parser.set_defaults(default_width=width)
    groups = {
        "sinusoidal": ("sinusoidal tables", _SINUSOIDAL),
        "rotary": ("rotary encodings", _ROTARY),
    }
    titled = [groups[kind] for kind in kinds]
    if len(kinds) > 1:
        titled.insert(0, ("encoding", _BOTH))
    else:
        (title, options), *_ = titled
        first = next(iter(options))
        titled = [(title, {first: options[first], **_BOTH, **options})]
    for title, options in titled:
        group = parser.add_argument_group(title)
        for name, kind in options.items():
            group.add_argument(
                flag(name),
                type=kind.read,
                metavar=kind.metavar,
                choices=kind.choices,
                action="append" if name in _REPEATED else "store",
                help=kind.text + _default_in_help(name, kinds, width),
                default=argparse.SUPPRESS,
                required=name == "dim" and width is None,
            )
            if name == "preset":
                group.add_argument(
                    "--list-presets",
                    action=_ListPresets,
                    nargs=0,
                    const=kinds,
                    default=argparse.SUPPRESS,
                    help="print the names that --preset accepts, and exit",
                )


def _default_in_help(name: str, kinds: tuple[str, ...], width: int | None) -> str:
    if width is not None and name == ("dim" if "sinusoidal" in kinds else "head_dim"):
        unless = "the encoding is rotary" if len(kinds) > 1 else "--preset or --config says it"
        return f" (default: {width}, unless {unless})"
    maker = SinusoidalSpec if name in _OF["sinusoidal"] else Rotary
    parameter = inspect.signature(maker).parameters.get(name)
    if parameter is None or parameter.default in (None, parameter.empty):
        return ""
    return f" (default: {default_in_help(parameter.default)})"


def encoding(options: argparse.Namespace, *kinds: str) -> SinusoidalSpec | Rotary:
    """The encoding that the options of `add_encoding` describe."""
    names = {*_OF["sinusoidal"], *_OF["rotary"]}
    settings = {name: value for name, value in vars(options).items() if name in names}
    rotary = kinds == ("rotary",) or (
        "rotary" in kinds
        and (settings.get("preset") in Rotary.presets() or bool({*settings} & {*_ROTARY}))
    )
    kind = "rotary" if rotary else "sinusoidal"
    for name in settings:
        if name not in _OF[kind]:
            raise UsageError(
                f"{flag(name)}: does not apply to a {kind} encoding, which other options chose"
            )
    if "preset" in settings:
        presets = Rotary.presets() if rotary else SinusoidalSpec.presets()
        if settings["preset"] not in presets:
            expected = f"a {kind} preset (--list-presets)"
            raise UsageError(f"--preset: expected {expected}, got {settings['preset']!r}")
    return (_rotary_encoding if rotary else _sinusoidal_encoding)(settings, options.default_width)


def _sinusoidal_encoding(settings: dict[str, Any], width: int | None) -> SinusoidalSpec:
    name, values = settings.pop("preset", None), dict(settings.pop("set", ()))
    settings.setdefault("dim", width)
    if settings["dim"] > WIDTH_LIMIT:
        raise UsageError(f"--dim: expected an int in 0 .. {WIDTH_LIMIT}, got {settings['dim']}")
    if name is None:
        if values:
            raise UsageError("--set: requires --preset")
        return SinusoidalSpec(**settings)
    dim = settings.pop("dim")
    for option in settings:
        raise UsageError(
            f"{flag(option)}: not allowed with --preset; use --set (options: --list-presets)"
        )
    try:
        spec = SinusoidalSpec.preset(name, dim, **values)
    except (ValueError, TypeError) as error:
        fault = fault_of(error)
        if not (values and fault) or fault.argument == "dim":
            raise
        raise UsageError(f"--set: expected {fault.expected}, got {fault.got}") from None
    if len(spec.axis_order) > 1:
        raise UsageError(
            f"--preset: expected one with one coordinate, got {name!r}, which has more"
        )
    return spec


def _rotary_encoding(settings: dict[str, Any], width: int | None) -> Rotary:
    if width is not None and {*settings} <= {*inspect.signature(Rotary).parameters}:
        settings.setdefault("head_dim", width)
    sources = [name for name in _SOURCES if name in settings]
    if len(sources) != 1:
        got = " and ".join(map(flag, sources)) or "none"
        raise UsageError(f"expected one of {', '.join(map(flag, _SOURCES))}, got {got}")
    source = sources[0]
    make, value = _SOURCES[source], settings.pop(source)
    for name in settings:
        if name not in inspect.signature(make).parameters:
            raise UsageError(f"{flag(name)}: not allowed with {flag(source)}")
    with reading_config(value) if source == "config" else contextlib.nullcontext():
        return make(value, **settings)


@contextlib.contextmanager
def reading_config(path: Path) -> Iterator[None]:
    """Report any error in a config.json as one line."""
    try:
        with reading(path):
            yield
    except (ValueError, TypeError) as error:
        said = _IGNORE.sub(r"--ignore \1", without_function(error))
        raise CommandError(f"{path}: {said}") from None
