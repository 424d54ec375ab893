"""Options that several commands have, named as the arguments of the Python functions are.

An option that is not typed is absent afterwards and is not passed on. So the defaults are those of
the functions; --help reads them from their signatures.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from posenc_native.base.arguments import FLOAT_DTYPES, SINUSOIDAL_LAYOUTS, WIDTH_LIMIT
from posenc_native.base.errors import fault_of, names_like
from posenc_native.models.presets import rotary_presets
from posenc_native.rotary.rotary import Rotary
from posenc_native.sinusoids.presets import sinusoidal_presets
from posenc_native.sinusoids.spec import SinusoidalSpec

from .parser import CommandError, CommandParser, UsageError, require
from .positions import Positions
from .terminal import show_table

# Kinds of encodings, of which a command takes one or both.
SINUSOIDAL = ("sinusoidal",)
ROTARY = ("rotary",)
BOTH = (*SINUSOIDAL, *ROTARY)

# What json.loads raises: for other text, for thousands of digits, for thousands of brackets.
_NO_JSON = (ValueError, RecursionError)

_DIM = 128  # of a picture, if no option says what it shows

# --- Kinds of values


def whole_number(text: str) -> int:
    """An int."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected an int, got {text!r}") from None


def at_least_one(text: str) -> int:
    """An int of 1 or more."""
    value = whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {text}")
    return value


def number(text: str) -> float:
    """A float."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None


def positions(text: str) -> Positions:
    """Positions as `Positions` reads them."""
    try:
        return Positions.read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _pairing_name_or_size(text: str) -> str | int:
    return int(text) if text.isdecimal() else text


def _json_object(text: str) -> Mapping[str, Any]:
    with contextlib.suppress(*_NO_JSON):
        value = json.loads(text)
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
    known = {**rotary_presets(), **sinusoidal_presets()}
    if text not in known:
        like = names_like(text, known, cutoff=0.4)
        expected = f"a preset like {', '.join(like)}" if like else "one of --list-presets"
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return text


# --- Encodings


class _ListPresets(argparse.Action):
    """Prints the presets of some kinds of encodings and exits, as --version does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        rows = []
        if "rotary" in self.const:
            for name, facts in rotary_presets().items():
                scaling = facts.scaling["rope_type"] if facts.scaling else "no scaling"
                said = f"rotary, head_dim {facts.head_dim}, base {facts.base:g}, {scaling}"
                rows.append((name, f"{said}: {facts.source}"))
        if "sinusoidal" in self.const:
            for name, text in sinusoidal_presets().items():
                rows.append((name, f"sinusoidal, {text}"))
        show_table(("preset", "what it is"), rows)
        parser.exit()


# name: (kinds of encodings, function whose default it is, settings of argparse)
_Option = tuple[tuple[str, ...], Callable[..., Any] | None, dict[str, Any]]
_OPTIONS: dict[str, _Option] = {
    "dim": (SINUSOIDAL, None, {"type": whole_number, "metavar": "N", "help": "width of the table"}),
    "head_dim": (
        ROTARY,
        None,
        {"type": whole_number, "metavar": "N", "help": "width of a head of queries and keys"},
    ),
    "base": (
        BOTH,
        SinusoidalSpec,
        {"type": number, "metavar": "X", "help": "base of the frequencies (rope_theta)"},
    ),
    "preset": (
        BOTH,
        None,
        {"type": _preset, "metavar": "NAME", "help": "as a published model or project has it"},
    ),
    "layout": (
        SINUSOIDAL,
        SinusoidalSpec,
        {"choices": SINUSOIDAL_LAYOUTS, "help": "order of the columns"},
    ),
    "shift": (
        SINUSOIDAL,
        SinusoidalSpec,
        {
            "type": number,
            "metavar": "X",
            "help": "0 for exponents 2i/dim (the paper), 1 for i/(dim/2 - 1) (tensor2tensor)",
        },
    ),
    "scale": (
        SINUSOIDAL,
        SinusoidalSpec,
        {"type": number, "metavar": "X", "help": "factor of the angles"},
    ),
    "set": (
        SINUSOIDAL,
        None,
        {
            "type": _assignment,
            "metavar": "NAME=VALUE",
            "action": "append",
            "help": "an option of a sinusoidal --preset, under its owner's name; may be repeated",
        },
    ),
    "config": (
        ROTARY,
        None,
        {
            "type": Path,
            "metavar": "PATH",
            "help": "as a model's config.json says, the file or its folder",
        },
    ),
    "rotary_dim": (
        ROTARY,
        None,
        {
            "type": whole_number,
            "metavar": "N",
            "help": "how many dims of a head are rotated (default: all)",
        },
    ),
    "pairing": (
        ROTARY,
        Rotary,
        {
            "type": _pairing_name_or_size,
            "metavar": "NAME",
            "help": "which dims are a pair: half, interleaved, or a block size",
        },
    ),
    "scaling": (
        ROTARY,
        None,
        {
            "type": _json_object,
            "metavar": "JSON",
            "help": "how frequencies are scaled, as in a config.json: "
            '\'{"rope_type": "linear", "factor": 4}\'',
        },
    ),
    "layer_type": (
        ROTARY,
        None,
        {
            "metavar": "NAME",
            "help": "with --preset or --config: which layers, where they differ, as in "
            "full_attention",
        },
    ),
    "layer": (
        ROTARY,
        None,
        {
            "type": whole_number,
            "metavar": "N",
            "help": "with --config: number of a layer, in place of its type",
        },
    ),
    "seq_len": (
        ROTARY,
        None,
        {
            "type": at_least_one,
            "metavar": "N",
            "help": "with --preset or --config: length of the text, for scalings that depend on it",
        },
    ),
}
_TITLES = {
    BOTH: "encoding",
    SINUSOIDAL: "sinusoidal tables",
    ROTARY: "rotary encodings",
}
# What a rotary encoding comes from, and what may stand beside it.
_SOURCES = {
    "preset": ("layer_type", "seq_len"),
    "config": ("layer_type", "layer", "seq_len"),
    "head_dim": ("base", "rotary_dim", "pairing", "scaling"),
}


def add_encoding(parser: CommandParser, *kinds: str) -> None:
    """Add the options that describe an encoding; `encoding` reads them.

    Args:
        parser: of the command.
        kinds: "sinusoidal", "rotary" or both.
    """
    for shared in (BOTH, SINUSOIDAL, ROTARY):
        names = [
            name
            for name, (of, _, _) in _OPTIONS.items()
            if tuple(kind for kind in kinds if kind in of) == shared
        ]
        group = parser.add_argument_group(_TITLES[shared]) if names else parser
        for name in names:
            _, function, settings = _OPTIONS[name]
            text = settings["help"]
            if function is not None:
                default = inspect.signature(function).parameters[name].default
                text += f" (default: {_default_in_help(default)})"
            if name == "dim" and len(kinds) > 1:
                text += f" (default: {_DIM}, if nothing says that it is rotary)"
            group.add_argument(
                _flag(name),
                **{**settings, "help": text},
                default=argparse.SUPPRESS,
                required=name == "dim" and len(kinds) == 1,
            )
            if name == "preset":
                group.add_argument(
                    "--list-presets",
                    action=_ListPresets,
                    nargs=0,
                    const=kinds,
                    default=argparse.SUPPRESS,
                    help="print the names that --preset knows, and exit",
                )


def _default_in_help(default: object) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default)


def encoding(options: argparse.Namespace, *kinds: str) -> SinusoidalSpec | Rotary:
    """The encoding that the options of `add_encoding` say."""
    given = {name: value for name, value in vars(options).items() if name in _OPTIONS}
    rotary = kinds == ("rotary",) or (
        "rotary" in kinds
        and (given.get("preset") in rotary_presets() or any(_only_rotary(n) for n in given))
    )
    kind = "rotary" if rotary else "sinusoidal"
    for name in given:
        if kind not in _OPTIONS[name][0]:
            raise UsageError(f"{_flag(name)}: is not of a {kind} encoding, which this is")
    if "preset" in given:
        known = rotary_presets() if rotary else sinusoidal_presets()
        if given["preset"] not in known:
            expected = f"a {kind} preset (--list-presets)"
            raise UsageError(f"--preset: expected {expected}, got {given['preset']!r}")
    return _rotary_encoding(given) if rotary else _sinusoidal_encoding(given)


def _only_rotary(name: str) -> bool:
    return _OPTIONS[name][0] == ("rotary",)


def _sinusoidal_encoding(given: dict[str, Any]) -> SinusoidalSpec:
    name, values = given.pop("preset", None), dict(given.pop("set", ()))
    given.setdefault("dim", _DIM)
    if given["dim"] > WIDTH_LIMIT:
        raise UsageError(f"--dim: expected an int in 0 .. {WIDTH_LIMIT}, got {given['dim']}")
    if name is None:
        if values:
            raise UsageError("--set: goes with --preset")
        return SinusoidalSpec(**given)
    dim = given.pop("dim")
    for other in given:
        raise UsageError(f"{_flag(other)}: not beside --preset; see its options, --list-presets")
    try:
        spec = SinusoidalSpec.from_preset(name, dim, **values)
    except (ValueError, TypeError) as error:
        fault = fault_of(error)
        if not (values and fault) or fault.argument == "dim":
            raise
        raise UsageError(f"--set: expected {fault.expected}, got {fault.got}") from None
    if len(spec.axis_order) > 1:
        raise UsageError(f"--preset: expected one of one coordinate, got {name!r}, which has more")
    return spec


def _rotary_encoding(given: dict[str, Any]) -> Rotary:
    sources = [name for name in _SOURCES if name in given]
    if len(sources) != 1:
        got = " and ".join(map(_flag, sources)) or "none"
        raise UsageError(f"expected one of {', '.join(map(_flag, _SOURCES))}, got {got}")
    source = sources[0]
    value = given.pop(source)
    for name in given:
        if name not in _SOURCES[source]:
            raise UsageError(f"{_flag(name)}: not beside {_flag(source)}")
    if source == "preset":
        return Rotary.preset(value, **given)
    if source == "config":
        with reading_config(value):
            return Rotary.from_config(value, **given)
    return Rotary(value, **given)


@contextlib.contextmanager
def reading_config(path: Path) -> Iterator[None]:
    """Turn what can go wrong with a config.json into one line."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, TypeError) as error:
        # Whoever typed the path does not know the function that reads the file.
        fault = fault_of(error)
        said = str(error) if fault is None else str(fault).removeprefix(f"{fault.function}: ")
        raise CommandError(f"{path}: {said}") from None


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


# --- Positions and number formats


def add_positions(parser: Any, default: str | None = None, otherwise: str = "") -> None:
    """Add --positions.

    Args:
        parser: of the command, or a group of its options.
        default: as it would be typed.
        otherwise: what happens without it; with neither this nor a default it is required.
    """
    without = f" (default: {default})" if default else f" ({otherwise})" if otherwise else ""
    parser.add_argument(
        "--positions",
        type=positions,
        required=not without,
        default=default,
        metavar="POSITIONS",
        help="100: those from 0 to 99; START:STOP or START:STOP:STEP, as range() counts; 5,7.5,9: "
        f"these; 0:8,1000:1008: several{without}",
    )


def add_dtype(parser: Any) -> None:
    """Add --dtype, a name."""
    parser.add_argument(
        "--dtype",
        choices=FLOAT_DTYPES,
        default="float32",
        help="number format; rounded once, from the exact angle (default: %(default)s)",
    )


def dtype(options: argparse.Namespace) -> np.dtype[Any]:
    """The dtype of --dtype."""
    if options.dtype == "bfloat16":
        require("ml_dtypes", "--dtype bfloat16")
    found: np.dtype[Any] = np.dtype(options.dtype)  # where ml_dtypes has entered its own
    return found


# --- Files


def add_output(
    parser: Any, suffixes: tuple[str, ...], default: Path | None = None, otherwise: str = ""
) -> None:
    """Add -o, --out: a file whose suffix says its format, checked before any work.

    Args:
        parser: of the command, or a group of its options.
        suffixes: those that are known.
        default: where the file goes if nobody says.
        otherwise: what happens without a file, if there is no default.
    """
    without = f" (default: {default})" if default else f"; {otherwise}"
    parser.add_argument(
        "-o",
        "--out",
        type=output_file(suffixes),
        default=default,
        metavar="FILE",
        help=f"where to write: {_either(suffixes)}; a file that is there is replaced{without}",
    )


def output_file(suffixes: tuple[str, ...]) -> Callable[[str], Path]:
    """Reads a name of a file that can be written, and has one of these suffixes."""

    def read(text: str) -> Path:
        path = Path(text)
        problem = None
        if path.suffix.lower() not in suffixes:
            problem = f"expected a name that ends in {_either(suffixes)}, got {text!r}"
        elif path.is_dir():
            problem = f"expected a file, got the folder {text!r}"
        elif not path.parent.is_dir():
            problem = f"cannot write {text}: no folder {path.parent}"
        if problem:
            raise argparse.ArgumentTypeError(problem)
        return path

    return read


def _either(names: tuple[str, ...]) -> str:
    return " or ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Give the name of a file to write to, which becomes `path` when all went well.

    What was there stays until then; an interrupted run leaves nothing behind.
    """
    target = path.resolve()  # a link stays one
    part = target.with_name(f"{target.stem}.{os.getpid()}.part{target.suffix}")
    try:
        yield part
        part.replace(target)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
