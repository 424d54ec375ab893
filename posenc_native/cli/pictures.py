"""The pictures that `plot` draws: each a function of posenc_native.plot and of its options.

The docstrings are what --help says; the defaults are those of posenc_native.plot.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from posenc_native.relative import alibi, kernels, tables
from posenc_native.rotary.rotary import Rotary
from posenc_native.sinusoids.spec import SinusoidalSpec

from .kinds import ArrayFile, Count, Floats, Ints, Kind, Places, Size, output, reading
from .parser import CommandError, UsageError, flag
from .positions import Positions

__all__ = ["HUNDRED", "PICTURES", "clock_animation"]

HUNDRED = Positions.read("100")

# Of what is drawn, float64 and a few copies; a picture has a few thousand pixels each way.
MOST_NUMBERS = 1 << 26


def heatmap(plot: Any, encoding: SinusoidalSpec | Rotary, positions: Places = HUNDRED) -> Any:
    """A table as shades: positions by dimensions.

    A table as shades, positions downwards and dimensions to the right: the
    paper's sinusoidal table, another project's, or the cosines and sines of a
    rotary encoding.

    Examples:
        $ --dim 128 -o heatmap.png
        $ --dim 512 --layout sin_cos --positions 4096 -o halves.png
        $ --preset llama-3.1 --positions 8192:8292 -o llama.svg
    """
    return plot.heatmap(encoding, _as_typed(positions, encoding))


def waves(
    plot: Any,
    encoding: SinusoidalSpec | Rotary,
    positions: Places = HUNDRED,
    dimensions: Ints | None = None,
    position: int | None = None,
) -> Any:
    """Single dimensions across positions, with wavelengths.

    Single dimensions across positions, each with its wavelength, 2 pi /
    frequency, marked; or, with --position, one position across all dimensions.

    Args:
        dimensions: the columns to draw (default: some, from short to long waves)
        position: one position across all dimensions, instead of dimensions across positions

    Examples:
        $ --dim 128 -o waves.png
        $ --dim 512 --positions 4096 --dimensions 0,64,128,192 -o waves.pdf
        $ --dim 128 --position 50 -o row.png
    """
    if dimensions is not None and position is not None:
        raise UsageError("--position: not allowed with argument --dimensions")
    which = {"dimensions": dimensions, "position": position}
    return plot.waves(encoding, _as_typed(positions, encoding), **which)


def clock(
    plot: Any, encoding: SinusoidalSpec | Rotary, position: int = 50, pairs: Ints | None = None
) -> Any:
    """Pairs as hands of clocks; a .gif turns.

    The pairs of a position as hands of clocks: each points to (sine, cosine) of
    its angle, the fastest pair first. A file that ends in .gif is an animation
    over --positions.

    Args:
        position: the position of a still picture; a .gif has all --positions
        pairs: which pairs (default: some, from fast to slow)

    Examples:
        $ --dim 128 --position 50 -o clock.png
        $ --preset llama-3.1 --positions 30 -o clock.gif
    """
    return plot.clock(encoding, position, pairs=pairs)


def clock_animation(
    plot: Any,
    encoding: SinusoidalSpec | Rotary,
    positions: Places = HUNDRED,
    pairs: Ints | None = None,
    frames_per_second: float = 10.0,
    out: Annotated[Path, output(".png", ".svg", ".pdf", ".gif")] | None = None,
    size: Size | None = None,
) -> Any:
    """The same, turning.

    Args:
        frames_per_second: of a .gif
        out: where to write: .png, .svg, .pdf or .gif; a file that is there is replaced; without it
            a window is opened
    """
    ax = None
    if size is not None:
        from matplotlib import pyplot

        ax = pyplot.figure(figsize=size).add_subplot()
    how = {"pairs": pairs, "frames_per_second": frames_per_second, "ax": ax}
    return plot.clock_animation(encoding, _as_typed(positions, encoding), out, **how)


def similarity(
    plot: Any,
    encoding: SinusoidalSpec | Rotary,
    offsets: Count = 100,
    starts: Ints | None = None,
    q: ArrayFile | None = None,
    k: ArrayFile | None = None,
) -> Any:
    """Inner products by offset, from several positions.

    Inner products of two positions by how far apart they are: of the rows of a
    table, or of a query and a key after rotation. Curves from all first positions
    lie on each other where the offset alone decides; the title says how far they
    are apart.

    Args:
        offsets: how many positions to go in either direction
        starts: the first positions, a curve each (default: 0, 100, 10,000 and 1,000,000)
        q: of a rotary encoding: queries [..., head_dim] before rotation (default: random ones)
        k: of a rotary encoding: keys [..., head_dim] before rotation (default: the queries)

    Examples:
        $ --dim 128 -o similarity.png
        $ --head-dim 64 --base 500000 --offsets 1000 --starts 0,1000000 -o rotary.svg
    """
    vectors = _load_vectors(encoding, q, k)
    _check_numbers("--offsets", offsets, 2 * _width(encoding))
    return plot.similarity(encoding, offsets, starts=starts, **vectors)


def similarity_matrix(
    plot: Any,
    encoding: SinusoidalSpec | Rotary,
    positions: Places = HUNDRED,
    q: ArrayFile | None = None,
    k: ArrayFile | None = None,
) -> Any:
    """Inner products of all pairs of positions, as shades.

    Inner products of all pairs of positions, position by position: of the rows of
    a table, or of a query and a key after rotation. Where the offset alone
    decides, diagonals are of one shade.

    Args:
        q: of a rotary encoding: queries [..., head_dim] before rotation (default: random ones)
        k: of a rotary encoding: keys [..., head_dim] before rotation (default: the queries)

    Examples:
        $ --dim 128 -o pairs.png
        $ --preset llama-3.1 --positions 256 -o rotary.png
    """
    vectors = _load_vectors(encoding, q, k)
    _check_numbers("--positions", positions.total, positions.total + _width(encoding))
    return plot.similarity_matrix(encoding, _as_typed(positions, encoding), **vectors)


def compare(plot: Any, first: str, second: str, /, positions: Count | None = None) -> Any:
    """How far apart two checkpoints rotate, against position.

    How far cosines and sines of two descriptions are apart at most up to each
    position, a curve for each kind of layer, and from which position on bfloat16
    shows it. Each is what `compare` takes: a path, or the name of a preset.

    Args:
        first: a file, its folder or a preset
        second: compared with it
        positions: how many (default: the longest sequence that the two are meant for)

    Examples:
        $ path/to/model model.gguf -o apart.png
        $ llama-3 llama-3.1 --positions 32768 -o llama.svg
    """
    try:
        return plot.compare(first, second, positions)
    except ImportError as error:  # a package that reads one of them
        raise CommandError(str(error)) from error


def rotation(
    plot: Any,
    rope: Rotary,
    positions: Places | None = None,
    x: ArrayFile | None = None,
    head: int = 0,
) -> Any:
    """Queries before and after rotary encoding.

    Queries (or keys) of one head before and after rotary encoding, side by side:
    what all tokens have in common is a stripe before, and after it a wave of the
    length of its pair.

    Args:
        positions: by default 0, 1, 2 ..., as many as there are tokens
        x: queries or keys before rotation, [tokens, head_dim] or with axes in front, heads and
            batch (default: 100 made-up tokens, with much in common as those of models have)
        head: which of the heads of FILE, counted through the batch

    Examples:
        $ --head-dim 128 -o rotation.png
        $ --preset llama-3.1 --x q.npy --head 3 -o layer.png
    """
    if x is None:
        count = 100 if positions is None else positions.total
        _check_numbers("--positions", count, rope.head_dim)
        random = np.random.default_rng(0)
        shown = random.normal(size=rope.head_dim) + 0.3 * random.normal(size=(count, rope.head_dim))
    else:
        shown = _load_array(x, "--x")
        if shown.ndim >= 2:
            heads = shown.reshape(-1, *shown.shape[-2:])
            if not 0 <= head < len(heads):
                raise UsageError(f"--head: expected 0 .. {len(heads) - 1}, got {head}")
            shown = heads[head]
    return plot.rotation(shown, rope, None if positions is None else _as_typed(positions, rope))


def frequencies(plot: Any, rope: Rotary) -> Any:
    """What a scaling does to each rotary frequency.

    Each frequency of a scaled rotary encoding, as a part of the unscaled one: 1
    is a pair that turns as fast as before, 1/8 one that turns eight times slower.
    The bands of YaRN and Llama 3 are shaded, trained lengths marked.

    Examples:
        $ --preset llama-3.1 -o llama.png
        $ --config path/to/model -o model.svg
        $ --head-dim 128 --base 1000000 -o yarn.png --scaling \
'{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}'
    """
    return plot.frequencies(rope)


# --- Biases

_Named = tuple[str, Any]  # what it is, and its diagonals


def alibi_bias(q_len: int, k_len: int, num_heads: Count = 8) -> _Named:
    """ALiBi.

    Args:
        num_heads: heads, of alibi and sandwich
    """
    return "ALiBi", alibi.alibi_diagonals(num_heads, q_len, k_len, q_offset=0)


def sandwich_bias(q_len: int, k_len: int, num_heads: Count = 8) -> _Named:
    """Sandwich."""
    return "Sandwich", kernels.sandwich_diagonals(num_heads, q_len, k_len, q_offset=0)


def kerple_bias(
    q_len: int, k_len: int, r1: Floats | None = None, r2: Floats | None = None
) -> _Named:
    """KERPLE's logarithm.

    Args:
        r1, r2: of kerple, a number for each head: -r1 * ln(1 + r2 * distance) (default: 1)
    """
    found = kernels.kerple_diagonals(r1 or [1.0], r2 or [1.0], q_len, k_len, q_offset=0)
    return "KERPLE, logarithmic", found


def t5_bias(
    q_len: int,
    k_len: int,
    num_buckets: Count = 32,
    max_distance: Count = 128,
    causal: bool = False,
    table: ArrayFile | None = None,
) -> _Named:
    """T5's buckets.

    Args:
        num_buckets: of t5
        max_distance: of t5: from there on everything is in one bucket
        causal: of t5: as decoders have it, all buckets for keys of the past
        table: of t5: a learned table [num_buckets, heads] (default: the numbers of the buckets)
    """
    if table is None:
        _check_numbers("--num-buckets", num_buckets, q_len + k_len)
        words, numbers = "T5, numbers of its buckets", np.arange(num_buckets, dtype=np.float32)
        entries = numbers[:, None]
    else:
        words, entries = "T5", _load_array(table, "--table")
    how = {"bidirectional": not causal, "max_distance": max_distance, "q_offset": 0}
    found = tables.t5_diagonals(entries, q_len, k_len, **how)  # type: ignore[call-overload]
    return f"{words}, max_distance {max_distance}", found


_BIASES: dict[str, Callable[..., _Named]] = {
    "alibi": alibi_bias,
    "kerple": kerple_bias,
    "sandwich": sandwich_bias,
    "t5": t5_bias,
}


def bias(
    plot: Any,
    kind: Annotated[str, Kind(choices=tuple(_BIASES))] = "alibi",
    q_len: Count = 64,
    k_len: Count = 64,
    head: int = 0,
    heads: Ints | None = None,
    **of_kind: Any,
) -> Any:
    """A relative bias: its matrix, and its diagonals per head.

    A bias by distance: the matrix of one head, and the diagonals of several,
    which are all there is to know about it. alibi, kerple and sandwich come from
    their formulas; of t5, whose numbers are learned, a table from a file or the
    buckets themselves.

    Args:
        kind: which bias
        q_len: queries
        k_len: keys
        head: whose matrix is drawn
        heads: whose diagonals (default: up to eight)

    Examples:
        $ --kind alibi --num-heads 12 -o alibi.png
        $ --kind t5 --q-len 256 --k-len 256 -o buckets.png
        $ --kind kerple --r1 1,2 --r2 0.5,1 -o kerple.svg
    """
    for name in of_kind:
        if name not in inspect.signature(_BIASES[kind]).parameters:
            raise UsageError(f"{flag(name)}: is not of {kind}, which this is")
    _check_numbers("--q-len", q_len, 1)
    _check_numbers("--k-len", k_len, q_len)
    _check_numbers("--num-heads", of_kind.get("num_heads", 1), q_len + k_len)
    words, diagonals = _BIASES[kind](q_len, k_len, **of_kind)
    axes = plot.bias(diagonals, q_len=q_len, k_len=k_len, head=head, heads=heads)
    # The title of plot.bias cannot say which formula made the numbers.
    axes[0].set_title(f"{words}\n{axes[0].get_title(loc='left')}", loc="left", fontsize="medium")
    return axes


# Each picture, and functions of which it takes the options, too.
PICTURES: tuple[tuple[Callable[..., Any], ...], ...] = (
    (heatmap,),
    (waves,),
    (clock, clock_animation),
    (similarity,),
    (similarity_matrix,),
    (compare,),
    (bias, *_BIASES.values()),
    (rotation,),
    (frequencies,),
)


# --- What they share


def _check_numbers(option: str, count: int, width: int) -> None:
    """UsageError for more numbers, so many of this width, than a picture can be made of."""
    most = MOST_NUMBERS // max(1, width)
    if count > most:
        raise UsageError(f"{option}: expected at most {most:,} in a picture, got {count:,}")


def _as_typed(positions: Positions, encoding: SinusoidalSpec | Rotary) -> Any:
    """As the functions of posenc_native.plot take them."""
    _check_numbers("--positions", positions.total, _width(encoding))
    return positions.array() if positions.count is None else positions.count


def _width(encoding: SinusoidalSpec | Rotary) -> int:
    return encoding.head_dim if isinstance(encoding, Rotary) else encoding.dim


def _load_vectors(
    encoding: SinusoidalSpec | Rotary, q: Path | None, k: Path | None
) -> dict[str, npt.NDArray[Any]]:
    """Queries and keys from files, those that were typed."""
    files = {name: path for name, path in (("q", q), ("k", k)) if path is not None}
    vectors = {name: _load_array(path, flag(name)) for name, path in files.items()}
    for name in vectors:
        if not isinstance(encoding, Rotary):
            raise UsageError(f"{flag(name)}: is not of a sinusoidal encoding, which this is")
    return vectors


def _load_array(path: Path, option: str) -> npt.NDArray[Any]:
    """An array from a .npy file, mapped: memory goes by the file, not by what its head says."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise CommandError(f"{option}: expected a file that can be mapped, got {path}")
    try:
        # Ignored: what comes of a head that promises more than 2^63 bytes.
        with reading(path), np.errstate(over="ignore"):
            found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OverflowError, EOFError) as error:
        raise CommandError(f"{option}: {path} is no .npy file of numbers") from error
    if not isinstance(found, np.ndarray):
        raise CommandError(f"{option}: {path} has several arrays, a .npy file has one")
    if not found.size:
        raise CommandError(f"{option}: {path} has no numbers")
    return np.asarray(found)
