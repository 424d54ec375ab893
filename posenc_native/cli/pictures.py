"""The pictures that `plot` draws: the functions of posenc_native.plot as commands.

Their signatures and docstrings define the options and the texts of --help. This module has what
only a shell needs: how it types arguments that are objects in Python, limits, and examples.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from posenc_native import plot
from posenc_native.encodings.relative import alibi, kernels, tables
from posenc_native.encodings.rotary.rotary import Rotary
from posenc_native.encodings.sinusoids.spec import SinusoidalSpec

from .encodings import KINDS
from .kinds import ArrayFile, Count, Floats, Ints, Kind, Places, reading
from .parser import CommandError, UsageError, Words, flag
from .positions import Positions

__all__ = ["PICTURES", "Picture"]

# Most numbers to draw, as float64 with a few copies; a picture is a few thousand pixels wide.
MOST_NUMBERS = 1 << 26

Checkpoint = Annotated[str, Kind(text="a file, its folder or a preset")]

# What a shell types for a parameter, by its annotation or by its name, which has one meaning in all
# pictures. Other parameters, such as `ax`, are for Python alone.
_BY_ANNOTATION: Mapping[str, Any] = {
    "int": int,
    "float": float,
    "str": str,
    "Sequence[int]": Ints,
}
_BY_NAME: Mapping[str, Any] = {
    "encoding": SinusoidalSpec | Rotary,
    "rope": Rotary,
    "scaled": Rotary,
    "first": Checkpoint,
    "second": Checkpoint,
    "positions": Places,
    "position": int,
    "x": ArrayFile,
    "q": ArrayFile,
    "k": ArrayFile,
    "cmap": str,
}


_EXAMPLES = {
    "heatmap": """
    $ --dim 128 -o heatmap.png
    $ --dim 512 --layout sin_cos --positions 4096 -o halves.png
    $ --preset llama-3.1 --positions 8192:8292 --cmap PuOr -o llama.svg
    """,
    "waves": """
    $ --dim 128 -o waves.png
    $ --dim 512 --positions 4096 --dimensions 0,64,128,192 -o waves.pdf
    $ --dim 128 --position 50 -o row.png
    """,
    "clock": """
    $ --dim 128 -o clock.png
    $ --dim 128 --position 50 -o fifty.png
    $ --preset llama-3.1 --positions 30 -o clock.gif
    """,
    "similarity": """
    $ --dim 128 -o similarity.png
    $ --head-dim 64 --base 500000 --offsets 1000 --starts 0,1000000 -o rotary.svg
    """,
    "similarity_matrix": """
    $ --dim 128 -o pairs.png
    $ --preset llama-3.1 --positions 256 -o rotary.png
    """,
    "compare": """
    $ path/to/model model.gguf -o apart.png
    $ llama-3 llama-3.1 --positions 32768 -o llama.svg
    """,
    "rotation": """
    $ -o rotation.png
    $ --head-dim 64 --pairs 0,1,2,3 --positions 0:40:8 -o fast.svg
    $ --preset llama-3.1 --x q.npy --head 3 -o layer.png
    """,
    "frequencies": """
    $ --preset llama-3.1 -o llama.png
    $ --config path/to/model -o model.svg
    $ --head-dim 128 --base 1000000 -o yarn.png --scaling \
    '{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}'
    """,
}


class Picture:
    """A function of posenc_native.plot with the signature, words and arguments of a command.

    Args:
        name: of the function.
        defaults: of arguments that the function requires.
    """

    def __init__(self, name: str, **defaults: Any) -> None:
        self.__name__, self._draw, self.defaults = name, getattr(plot, name), defaults
        parameters = inspect.signature(self._draw).parameters.values()
        typed = [
            option
            for parameter in parameters
            if (option := _typed(parameter, defaults)) is not None
        ]
        self.__signature__ = inspect.Signature(sorted(typed, key=lambda option: option.kind))
        self.hints = {
            option.name: option.annotation for option in typed if option.annotation not in KINDS
        }
        self.words = _words(self._draw.__doc__, self.hints, _EXAMPLES.get(name, ""))

    def __call__(self, *checkpoints: str, **settings: Any) -> Any:
        """Draw it, from the arguments that were typed."""
        settings = {**self.defaults, **settings}
        width = max(map(_width, settings.values()), default=1)
        for name, value in settings.items():
            if isinstance(value, Positions):
                pairs = value.total if self.__name__ == "similarity_matrix" else 0
                _check_numbers("--positions", value.total, width + pairs)
                settings[name] = value.array() if value.count is None else value.count
            elif name == "offsets":
                _check_numbers("--offsets", value, 2 * width)
            elif self.hints.get(name) is ArrayFile:
                settings[name] = _load_array(value, flag(name))
        return self._draw(*checkpoints, **settings)


def _typed(parameter: inspect.Parameter, defaults: Mapping[str, Any]) -> inspect.Parameter | None:
    """The parameter of a command; None if a shell cannot type it."""
    name, annotation = parameter.name, str(parameter.annotation).removesuffix(" | None")
    hint = _BY_ANNOTATION.get(annotation, _BY_NAME.get(name))
    if hint is None:
        return None
    default = defaults.get(name, parameter.default)
    is_word = default is parameter.empty and hint not in KINDS
    kind = parameter.POSITIONAL_ONLY if is_word else parameter.KEYWORD_ONLY
    return parameter.replace(kind=kind, default=default, annotation=hint)


def _words(docstring: str | None, hints: Mapping[str, Any], examples: str) -> Words:
    """The words of a function for Python, as a shell has them."""

    def plain(text: str) -> str:
        return re.sub(
            r"``?(.+?)``?", lambda match: flag(match[1]) if match[1] in hints else match[1], text
        )

    words = Words.of(docstring)
    body = f"{words.summary[:1].upper()}{words.summary[1:]}. {words.description}"
    paragraphs = (textwrap.fill(paragraph, 79) for paragraph in plain(body).split("\n\n"))
    arguments = {}
    for name, hint in hints.items():
        text = words.arguments.get(name, "")
        if any(part.text for part in getattr(hint, "__metadata__", ())):
            _, _, text = text.partition("; ")  # the kind has better words for the rest
        text = plain(text if text.endswith("...") else text.removesuffix("."))
        arguments[name] = re.sub(r"(?:[;,] |^)default (.*)$", r" (default: \1)", text).strip()
    return Words(
        plain(words.summary), "\n\n".join(paragraphs), arguments, examples.strip("\n").rstrip()
    )


# --- Biases

_Named = tuple[str, Any]  # a description, and the diagonals


def alibi_bias(q_len: int, k_len: int, q_offset: int, num_heads: Count = 8) -> _Named:
    """ALiBi.

    Args:
        num_heads: number of heads, for alibi and sandwich
    """
    return "ALiBi", alibi.alibi_diagonals(num_heads, q_len, k_len, q_offset=q_offset)


def sandwich_bias(q_len: int, k_len: int, q_offset: int, num_heads: Count = 8) -> _Named:
    """Sandwich."""
    return "Sandwich", kernels.sandwich_diagonals(num_heads, q_len, k_len, q_offset=q_offset)


def kerple_bias(
    q_len: int, k_len: int, q_offset: int, r1: Floats | None = None, r2: Floats | None = None
) -> _Named:
    """KERPLE's logarithm.

    Args:
        r1, r2: for kerple, one number per head: -r1 * ln(1 + r2 * distance) (default: 1)
    """
    diagonals = kernels.kerple_diagonals(r1 or [1.0], r2 or [1.0], q_len, k_len, q_offset=q_offset)
    return "KERPLE, logarithmic", diagonals


def t5_bias(
    q_len: int,
    k_len: int,
    q_offset: int,
    num_buckets: Count = 32,
    max_distance: Count = 128,
    causal: bool = False,
    table: ArrayFile | None = None,
) -> _Named:
    """T5's buckets.

    Args:
        num_buckets: for t5
        max_distance: for t5: distances from this one on share one bucket
        causal: for t5: as in decoders, all buckets are for past keys
        table: for t5: a learned table [num_buckets, heads] (default: the bucket numbers)
    """
    if table is None:
        _check_numbers("--num-buckets", num_buckets, q_len + k_len)
        words, numbers = "T5, bucket numbers", np.arange(num_buckets, dtype=np.float32)
        entries = numbers[:, None]
    else:
        words, entries = "T5", _load_array(table, "--table")
    how = {"bidirectional": not causal, "max_distance": max_distance, "q_offset": q_offset}
    diagonals = tables.t5_diagonals(entries, q_len, k_len, **how)  # type: ignore[call-overload]
    return f"{words}, max_distance {max_distance}", diagonals


_BIASES: dict[str, Callable[..., _Named]] = {
    "alibi": alibi_bias,
    "kerple": kerple_bias,
    "sandwich": sandwich_bias,
    "t5": t5_bias,
}
_BIAS = Picture("bias")


def bias(
    kind: Annotated[str, Kind(choices=tuple(_BIASES))] = "alibi",
    q_len: Count = 64,
    k_len: Count = 64,
    q_offset: int = 0,
    name: str | None = None,
    **others: Any,
) -> Any:
    """A relative bias: its matrix, and a line per head.

    A bias by distance: the matrix of one head, and a line for each of several
    heads, one number per head and distance. alibi, kerple and sandwich come from
    their formulas. The numbers of t5 are learned: it draws a table from a file, or
    the bucket numbers.

    Args:
        kind: which bias
        q_len: number of queries
        k_len: number of keys
        q_offset: position of the first query among the keys
        name: first line of the title (default: the name of the bias)

    Examples:
        $ --kind alibi --num-heads 12 -o alibi.png
        $ --kind t5 --q-len 256 --k-len 256 -o buckets.png
        $ --kind kerple --r1 1,2 --r2 0.5,1 -o kerple.svg
    """
    of_kind = {option: others[option] for option in others if option not in _BIAS.hints}
    for option in of_kind:
        if option not in inspect.signature(_BIASES[kind]).parameters:
            raise UsageError(f"{flag(option)}: does not apply to --kind {kind}")
    _check_numbers("--q-len", q_len, 1)
    _check_numbers("--k-len", k_len, q_len)
    _check_numbers("--num-heads", of_kind.get("num_heads", 1), q_len + k_len)
    words, diagonals = _BIASES[kind](q_len, k_len, q_offset, **of_kind)
    shown = {option: others[option] for option in others if option in _BIAS.hints}
    lengths = {"q_len": q_len, "k_len": k_len, "q_offset": q_offset}
    return _BIAS(bias=diagonals, name=name or words, **lengths, **shown)


# Each picture, and the functions whose options it takes too.
PICTURES: tuple[tuple[Any, ...], ...] = (
    (Picture("heatmap"),),
    (Picture("waves"),),
    (Picture("clock"), Picture("clock_animation", positions=Positions.read("100"))),
    (Picture("similarity"),),
    (Picture("similarity_matrix"),),
    (Picture("compare"),),
    (bias, _BIAS, *_BIASES.values()),
    (Picture("rotation"),),
    (Picture("frequencies"),),
)


def _check_numbers(option: str, count: int, width: int) -> None:
    """UsageError if count numbers of this width are more than a picture can show."""
    most = MOST_NUMBERS // max(1, width)
    if count > most:
        raise UsageError(f"{option}: expected at most {most:,} in a picture, got {count:,}")


def _width(value: Any) -> int:
    """The numbers that an encoding has for a position; 1 of other arguments."""
    if isinstance(value, Rotary):
        return value.head_dim
    return value.dim if isinstance(value, SinusoidalSpec) else 1


def _load_array(path: Path, option: str) -> npt.NDArray[Any]:
    """An array from a .npy file, memory-mapped: the file's size limits memory, not its header."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise CommandError(f"{option}: expected a regular file, got {path}")
    try:
        # Ignored: the overflow warning for a header that promises more than 2^63 bytes.
        with reading(path), np.errstate(over="ignore"):
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OverflowError, EOFError) as error:
        raise CommandError(f"{option}: {path} is not a .npy file of numbers") from error
    if not isinstance(array, np.ndarray):
        raise CommandError(
            f"{option}: expected a .npy file, which has one array; {path} has several"
        )
    if not array.size:
        raise CommandError(f"{option}: {path} has no numbers")
    return np.asarray(array)
