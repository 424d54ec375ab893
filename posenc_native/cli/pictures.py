"""The pictures that `plot` draws: what each takes on the command line, and how it is drawn."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from posenc_native.relative import alibi, kernels, tables
from posenc_native.rotary.rotary import Rotary
from posenc_native.sinusoids.spec import SinusoidalSpec

from .options import (
    BOTH,
    ROTARY,
    add_positions,
    at_least_one,
    encoding,
    number,
    whole_number,
)
from .parser import CommandError, UsageError

__all__ = ["PICTURES", "Picture"]


@dataclass(frozen=True)
class Picture:
    """A picture.

    Attributes:
        summary: a line for the list of pictures.
        description: what its own --help begins with.
        examples: of command lines, one a line.
        encodings: the kinds of encodings that it shows; none: it has options of its own for that.
        add: adds its options to a group.
        draw: takes the module posenc_native.plot and the options, returns the Axes.
        animate: draws an animation into a .gif of this name; None if nothing moves.
    """

    summary: str
    description: str
    examples: str
    encodings: tuple[str, ...]
    add: Callable[[Any], None]
    draw: Callable[[Any, argparse.Namespace], Any]
    animate: Callable[[Any, argparse.Namespace, Path], None] | None = None


def _several_numbers(text: str) -> list[float]:
    return [number(part) for part in text.split(",")]


def _several_whole_numbers(text: str) -> list[int]:
    return [whole_number(part) for part in text.split(",")]


# Of what is drawn, float64 and a few copies; a picture has a few thousand pixels each way.
MOST_NUMBERS = 1 << 26


def _check_numbers(option: str, count: int, width: int) -> None:
    """UsageError for more numbers, so many of this width, than a picture can be made of."""
    most = MOST_NUMBERS // max(1, width)
    if count > most:
        raise UsageError(f"{option}: expected at most {most:,} in a picture, got {count:,}")


def _positions_as_typed(options: argparse.Namespace, what: Any) -> Any:
    """As the functions take them."""
    found = options.positions
    _check_numbers("--positions", found.total, _width(what))
    return found.array() if found.count is None else found.count


def _width(what: SinusoidalSpec | Rotary) -> int:
    return what.head_dim if isinstance(what, Rotary) else what.dim


def _encoding_of_picture(options: argparse.Namespace) -> Any:
    return encoding(options, *options.kind.encodings)


def _load_array(path: Path, option: str) -> npt.NDArray[Any]:
    """An array from a .npy file, mapped: memory goes by the file, not by what its head says."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise CommandError(f"{option}: expected a file that can be mapped, got {path}")
    try:
        with np.errstate(over="ignore"):  # of a head that promises more than 2^63 bytes
            found = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, OverflowError, EOFError) as error:
        raise CommandError(f"{option}: {path} is no .npy file of numbers") from error
    if not isinstance(found, np.ndarray):
        raise CommandError(f"{option}: {path} has several arrays, a .npy file has one")
    if not found.size:
        raise CommandError(f"{option}: {path} has no numbers")
    return np.asarray(found)


# --- Heatmap, waves, clock, similarity


def _add_heatmap(parser: Any) -> None:
    add_positions(parser, default="100")


def _draw_heatmap(plot: Any, options: argparse.Namespace) -> Any:
    what = _encoding_of_picture(options)
    return plot.heatmap(what, _positions_as_typed(options, what))


def _add_waves(parser: Any) -> None:
    add_positions(parser, default="100")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--dimensions",
        type=_several_whole_numbers,
        metavar="N,N",
        help="the columns to draw (default: some, from short to long waves)",
    )
    which.add_argument(
        "--position",
        type=whole_number,
        metavar="N",
        help="one position across all dimensions, instead of dimensions across positions",
    )


def _draw_waves(plot: Any, options: argparse.Namespace) -> Any:
    what = _encoding_of_picture(options)
    return plot.waves(
        what,
        _positions_as_typed(options, what),
        dimensions=options.dimensions,
        position=options.position,
    )


def _add_clock(parser: Any) -> None:
    add_positions(parser, default="100")
    parser.add_argument(
        "--position",
        type=whole_number,
        default=50,
        metavar="N",
        help="the position of a still picture (default: %(default)s); a .gif has all --positions",
    )
    parser.add_argument(
        "--pairs",
        type=_several_whole_numbers,
        metavar="N,N",
        help="which pairs (default: some, from fast to slow)",
    )
    parser.add_argument(
        "--frames-per-second",
        type=number,
        default=10.0,
        metavar="X",
        help="of a .gif (default: %(default)g)",
    )


def _draw_clock(plot: Any, options: argparse.Namespace) -> Any:
    return plot.clock(_encoding_of_picture(options), options.position, pairs=options.pairs)


def _animate_clock(plot: Any, options: argparse.Namespace, path: Path) -> None:
    ax = None
    if options.size is not None:
        from matplotlib import pyplot

        ax = pyplot.figure(figsize=options.size).add_subplot()
    what = _encoding_of_picture(options)
    plot.clock_animation(
        what,
        _positions_as_typed(options, what),
        path,
        pairs=options.pairs,
        frames_per_second=options.frames_per_second,
        ax=ax,
    )


def _add_similarity(parser: Any) -> None:
    parser.add_argument(
        "--offsets",
        type=at_least_one,
        default=100,
        metavar="N",
        help="how many positions to go in either direction (default: %(default)s)",
    )
    parser.add_argument(
        "--starts",
        type=_several_whole_numbers,
        metavar="N,N",
        help="the first positions, a curve each (default: 0, 100, 10,000 and 1,000,000)",
    )
    for name, what in (("q", "queries"), ("k", "keys")):
        parser.add_argument(
            f"--{name}",
            type=Path,
            metavar="FILE.npy",
            help=f"of a rotary encoding: {what} [..., head_dim] before rotation "
            f"(default: {'random ones' if name == 'q' else 'the queries'})",
        )


def _draw_similarity(plot: Any, options: argparse.Namespace) -> Any:
    vectors = {
        name: None if path is None else _load_array(path, f"--{name}")
        for name, path in (("q", options.q), ("k", options.k))
    }
    what = _encoding_of_picture(options)
    for name, array in vectors.items():
        if array is not None and not isinstance(what, Rotary):
            raise UsageError(f"--{name}: is not of a sinusoidal encoding, which this is")
    _check_numbers("--offsets", options.offsets, 2 * _width(what))
    return plot.similarity(what, options.offsets, starts=options.starts, **vectors)


# --- Biases


def _add_bias(parser: Any) -> None:
    parser.add_argument(
        "--kind",
        dest="bias",
        choices=tuple(_DIAGONALS),
        default="alibi",
        help="which bias (default: %(default)s)",
    )
    for name, default, text in (
        ("num-heads", 8, "heads, of alibi and sandwich"),
        ("q-len", 64, "queries"),
        ("k-len", 64, "keys"),
        ("num-buckets", 32, "of t5"),
        ("max-distance", 128, "of t5: from there on everything is in one bucket"),
    ):
        parser.add_argument(
            f"--{name}",
            type=at_least_one,
            default=default,
            metavar="N",
            help=f"{text} (default: %(default)s)",
        )
    parser.add_argument(
        "--causal",
        action="store_true",
        help="of t5: as decoders have it, all buckets for keys of the past",
    )
    parser.add_argument(
        "--table",
        type=Path,
        metavar="FILE.npy",
        help="of t5: a learned table [num_buckets, heads] (default: the numbers of the buckets)",
    )
    for name in ("r1", "r2"):
        parser.add_argument(
            f"--{name}",
            type=_several_numbers,
            default=[1.0],
            metavar="X,X",
            help="of kerple, a number for each head: -r1 * ln(1 + r2 * distance) (default: 1)",
        )
    parser.add_argument(
        "--head",
        type=whole_number,
        default=0,
        metavar="N",
        help="whose matrix is drawn (default: %(default)s)",
    )
    parser.add_argument(
        "--heads",
        type=_several_whole_numbers,
        metavar="N,N",
        help="whose diagonals (default: up to eight)",
    )


def _draw_bias(plot: Any, options: argparse.Namespace) -> Any:
    for name, kinds in _ONLY_OF.items():
        typed = getattr(options, name) != options.parser.get_default(name)
        if typed and options.bias not in kinds:
            raise UsageError(f"--{name.replace('_', '-')}: is not of {options.bias}, which this is")
    _check_numbers("--q-len", options.q_len, 1)
    _check_numbers("--k-len", options.k_len, options.q_len)
    lengths = options.q_len + options.k_len
    _check_numbers("--num-heads", options.num_heads, lengths)
    _check_numbers("--num-buckets", options.num_buckets, lengths)
    words, diagonals = _DIAGONALS[options.bias](options)
    axes = plot.bias(
        diagonals,
        q_len=options.q_len,
        k_len=options.k_len,
        head=options.head,
        heads=options.heads,
    )
    # The title of plot.bias cannot say which formula made the numbers.
    axes[0].set_title(f"{words}\n{axes[0].get_title(loc='left')}", loc="left", fontsize="medium")
    return axes


_NamedDiagonals = tuple[str, Any]  # what it is, and its diagonals


def _alibi_diagonals(options: argparse.Namespace) -> _NamedDiagonals:
    return "ALiBi", alibi.alibi_diagonals(
        options.num_heads, options.q_len, options.k_len, q_offset=0
    )


def _kerple_diagonals(options: argparse.Namespace) -> _NamedDiagonals:
    return "KERPLE, logarithmic", kernels.kerple_diagonals(
        options.r1, options.r2, options.q_len, options.k_len, q_offset=0
    )


def _sandwich_diagonals(options: argparse.Namespace) -> _NamedDiagonals:
    return "Sandwich", kernels.sandwich_diagonals(
        options.num_heads, options.q_len, options.k_len, q_offset=0
    )


def _t5_diagonals(options: argparse.Namespace) -> _NamedDiagonals:
    if options.table is None:
        table, words = (
            np.arange(options.num_buckets, dtype=np.float32)[:, None],
            "T5, numbers of its buckets",
        )
    else:
        table, words = _load_array(options.table, "--table"), "T5"
    diagonals = tables.t5_diagonals(
        table,
        options.q_len,
        options.k_len,
        bidirectional=not options.causal,
        max_distance=options.max_distance,
        q_offset=0,
    )
    return f"{words}, max_distance {options.max_distance}", diagonals


_DIAGONALS: dict[str, Callable[[argparse.Namespace], _NamedDiagonals]] = {
    "alibi": _alibi_diagonals,
    "kerple": _kerple_diagonals,
    "sandwich": _sandwich_diagonals,
    "t5": _t5_diagonals,
}

# Options that say nothing about the other kinds.
_ONLY_OF = {
    "num_heads": ("alibi", "sandwich"),
    "num_buckets": ("t5",),
    "max_distance": ("t5",),
    "causal": ("t5",),
    "table": ("t5",),
    "r1": ("kerple",),
    "r2": ("kerple",),
}


# --- Rotation, frequencies


def _add_rotation(parser: Any) -> None:
    add_positions(parser, otherwise="default: 0, 1, 2 ..., as many as there are tokens")
    parser.add_argument(
        "--x",
        type=Path,
        metavar="FILE.npy",
        help="queries or keys before rotation, [tokens, head_dim] or with axes in front, heads and "
        "batch (default: 100 made-up tokens, with much in common as those of models have)",
    )
    parser.add_argument(
        "--head",
        type=whole_number,
        default=0,
        metavar="N",
        help="which of the heads of FILE, counted through the batch (default: %(default)s)",
    )


def _draw_rotation(plot: Any, options: argparse.Namespace) -> Any:
    rope = _encoding_of_picture(options)
    if options.x is None:
        count = 100 if options.positions is None else options.positions.total
        _check_numbers("--positions", count, rope.head_dim)
        random = np.random.default_rng(0)
        x = random.normal(size=rope.head_dim) + 0.3 * random.normal(size=(count, rope.head_dim))
    else:
        x = _load_array(options.x, "--x")
        if x.ndim >= 2:
            heads = x.reshape(-1, *x.shape[-2:])
            if not 0 <= options.head < len(heads):
                raise UsageError(f"--head: expected 0 .. {len(heads) - 1}, got {options.head}")
            x = heads[options.head]
    return plot.rotation(
        x, rope, None if options.positions is None else _positions_as_typed(options, rope)
    )


def _draw_frequencies(plot: Any, options: argparse.Namespace) -> Any:
    return plot.frequencies(_encoding_of_picture(options))


# --- All of them

PICTURES: dict[str, Picture] = {
    "heatmap": Picture(
        "a table as shades: positions by dimensions",
        """\
A table as shades, positions downwards and dimensions to the right: the
paper's sinusoidal table, another project's, or the cosines and sines of a
rotary encoding.""",
        "--dim 128 -o heatmap.png\n"
        "--dim 512 --layout sin_cos --positions 4096 -o halves.png\n"
        "--preset llama-3.1 --positions 8192:8292 -o llama.svg",
        BOTH,
        _add_heatmap,
        _draw_heatmap,
    ),
    "waves": Picture(
        "single dimensions across positions, with wavelengths",
        """\
Single dimensions across positions, each with its wavelength, 2 pi /
frequency, marked; or, with --position, one position across all dimensions.""",
        "--dim 128 -o waves.png\n"
        "--dim 512 --positions 4096 --dimensions 0,64,128,192 -o waves.pdf\n"
        "--dim 128 --position 50 -o row.png",
        BOTH,
        _add_waves,
        _draw_waves,
    ),
    "clock": Picture(
        "pairs as hands of clocks; a .gif turns",
        """\
The pairs of a position as hands of clocks: each points to (sine, cosine) of
its angle, the fastest pair first. A file that ends in .gif is an animation
over --positions.""",
        "--dim 128 --position 50 -o clock.png\n--preset llama-3.1 --positions 30 -o clock.gif",
        BOTH,
        _add_clock,
        _draw_clock,
        _animate_clock,
    ),
    "similarity": Picture(
        "inner products by offset, from several positions",
        """\
Inner products of two positions by how far apart they are: of the rows of a
table, or of a query and a key after rotation. Curves from all first positions
lie on each other where the offset alone decides; the title says how far they
are apart.""",
        "--dim 128 -o similarity.png\n"
        "--head-dim 64 --base 500000 --offsets 1000 --starts 0,1000000 -o rotary.svg",
        BOTH,
        _add_similarity,
        _draw_similarity,
    ),
    "bias": Picture(
        "a relative bias: its matrix, and its diagonals per head",
        """\
A bias by distance: the matrix of one head, and the diagonals of several,
which are all there is to know about it. alibi, kerple and sandwich come from
their formulas; of t5, whose numbers are learned, a table from a file or the
buckets themselves.""",
        "--kind alibi --num-heads 12 -o alibi.png\n"
        "--kind t5 --q-len 256 --k-len 256 -o buckets.png\n"
        "--kind kerple --r1 1,2 --r2 0.5,1 -o kerple.svg",
        (),
        _add_bias,
        _draw_bias,
    ),
    "rotation": Picture(
        "queries before and after rotary encoding",
        """\
Queries (or keys) of one head before and after rotary encoding, side by side:
what all tokens have in common is a stripe before, and after it a wave of the
length of its pair.""",
        "--head-dim 128 -o rotation.png\n--preset llama-3.1 --x q.npy --head 3 -o layer.png",
        ROTARY,
        _add_rotation,
        _draw_rotation,
    ),
    "frequencies": Picture(
        "what a scaling does to each rotary frequency",
        """\
Each frequency of a scaled rotary encoding, as a part of the unscaled one: 1
is a pair that turns as fast as before, 1/8 one that turns eight times slower.
The bands of YaRN and Llama 3 are shaded, trained lengths marked.""",
        "--preset llama-3.1 -o llama.png\n"
        "--config path/to/model -o model.svg\n"
        "--head-dim 128 --base 1000000 -o yarn.png --scaling "
        """'{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}'""",
        ROTARY,
        lambda parser: None,
        _draw_frequencies,
    ),
}
