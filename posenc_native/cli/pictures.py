"""The pictures that `plot` draws: each is a function of posenc_native.plot and its options.

The docstrings are the texts of --help. Arguments and defaults are those of posenc_native.plot, so
that both draw the same.
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

from .kinds import ArrayFile, Count, Floats, Ints, Kind, Places, output, reading
from .parser import CommandError, UsageError, flag
from .positions import Positions

__all__ = ["HUNDRED", "PICTURES", "clock_animation"]

HUNDRED = Positions.read("100")
_CMAP = "RdBu_r"  # as in posenc_native.plot, which needs matplotlib

# Most numbers to draw, as float64 with a few copies; a picture is a few thousand pixels wide.
MOST_NUMBERS = 1 << 26


def heatmap(
    plot: Any, encoding: SinusoidalSpec | Rotary, positions: Places = HUNDRED, cmap: str = _CMAP
) -> Any:
    """A table as shades: positions by dimensions.

    A table as shades, with positions downward and dimensions to the right: the
    paper's sinusoidal table, another project's, or the cosines and sines of a
    rotary encoding. White is 0, red is positive and blue is negative.

    Args:
        cmap: a colormap of matplotlib; its middle is 0. In gray print, cividis keeps the sign

    Examples:
        $ --dim 128 -o heatmap.png
        $ --dim 512 --layout sin_cos --positions 4096 -o halves.png
        $ --preset llama-3.1 --positions 8192:8292 --cmap PuOr -o llama.svg
    """
    return plot.heatmap(encoding, _as_typed(positions, encoding), cmap=cmap)


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
    plot: Any,
    encoding: SinusoidalSpec | Rotary,
    position: int | None = None,
    pairs: Ints | None = None,
) -> Any:
    """Pairs as clock hands; a .gif is animated.

    Pairs as clocks, the fastest first: a hand points to (sine, cosine) of its
    angle. Each clock has hands at five positions of its own, about an eighth of a
    turn apart; with --position, each has one hand, at that position. A file that
    ends in .gif is an animation over --positions.

    Args:
        position: one position for all clocks of a still picture; a .gif shows all --positions
        pairs: which pairs (default: eight, from fast to slow, that visibly turn)

    Examples:
        $ --dim 128 -o clock.png
        $ --dim 128 --position 50 -o fifty.png
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
) -> Any:
    """The same, animated.

    Args:
        frames_per_second: of a .gif
        out: where to write: .png, .svg, .pdf or .gif; an existing file is replaced; without it
            a window opens
    """
    how = {"pairs": pairs, "frames_per_second": frames_per_second}
    return plot.clock_animation(encoding, _as_typed(positions, encoding), out, **how)


def similarity(
    plot: Any,
    encoding: SinusoidalSpec | Rotary,
    offsets: Count = 250,
    starts: Ints | None = None,
    q: ArrayFile | None = None,
    k: ArrayFile | None = None,
) -> Any:
    """Inner products against the offset: how they decay.

    Inner products of two positions against their offset: of the rows of a table,
    or of a query and a key after rotation. Without --q, a rotary encoding shows
    the mean over all queries and how the bound of the RoFormer paper falls, both 1
    at offset 0. If the inner product depends only on the offset, the curves from
    all first positions are one line, and the title says how far apart they are.

    Args:
        offsets: how many positions to go in either direction
        starts: the first positions, one curve each (default: 0, 100, 10,000 and 1,000,000)
        q: for a rotary encoding: queries [..., head_dim] before rotation (default: the mean of all)
        k: for a rotary encoding: keys [..., head_dim] before rotation (default: the queries)

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
    cmap: str = _CMAP,
) -> Any:
    """Inner products of all pairs of positions, as shades.

    Inner products of all pairs of positions: of the rows of a table, or of a query
    and a key after rotation. If the inner product depends only on the offset, each
    diagonal has one shade.

    Args:
        q: for a rotary encoding: queries [..., head_dim] before rotation (default: the mean of all)
        k: for a rotary encoding: keys [..., head_dim] before rotation (default: the queries)
        cmap: a colormap of matplotlib; its middle is 0

    Examples:
        $ --dim 128 -o pairs.png
        $ --preset llama-3.1 --positions 256 -o rotary.png
    """
    vectors = _load_vectors(encoding, q, k)
    _check_numbers("--positions", positions.total, positions.total + _width(encoding))
    return plot.similarity_matrix(encoding, _as_typed(positions, encoding), cmap=cmap, **vectors)


def compare(plot: Any, first: str, second: str, /, positions: Count | None = None) -> Any:
    """How far apart two checkpoints rotate, against position.

    The largest difference between the cosines and sines of two checkpoints up to
    each position, one curve for each kind of layer, and from which position on
    bfloat16 shows it. Each checkpoint is given as for `compare`: a path, or the
    name of a preset.

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
    except ImportError as error:  # a package that reading one of them needs
        raise CommandError(str(error)) from error


def rotation(
    plot: Any,
    rope: Rotary,
    positions: Places | None = None,
    x: ArrayFile | None = None,
    head: int = 0,
    pairs: Ints | None = None,
    tokens: Ints | None = None,
) -> Any:
    """Queries before and after rotary encoding, as arrows.

    Queries (or keys) of one head before and after rotary encoding. In the plane of
    each pair of dims, every token is an arrow, which turns by its position times
    the frequency of the pair. Without --x, all tokens are equal before, and the
    picture shows what the encoding does to one vector.

    Args:
        positions: by default 0, 1, 2 ..., one per token
        x: queries or keys before rotation, [tokens, head_dim] or with axes in front, heads and
            batch (default: (1, 0) in each pair, for six tokens or for --positions)
        head: which of the heads of FILE, counted through the batch
        pairs: which pairs (default: up to four, from fast to slow)
        tokens: which tokens (default: the first six)

    Examples:
        $ -o rotation.png
        $ --head-dim 64 --pairs 0,1,2,3 --positions 0:40:8 -o fast.svg
        $ --preset llama-3.1 --x q.npy --head 3 -o layer.png
    """
    shown = None
    if x is not None:
        shown = _load_array(x, "--x")
        if shown.ndim >= 2:
            heads = shown.reshape(-1, *shown.shape[-2:])
            if not 0 <= head < len(heads):
                raise UsageError(f"--head: expected 0 .. {len(heads) - 1}, got {head}")
            shown = heads[head]
    at = None if positions is None else _as_typed(positions, rope)
    return plot.rotation(rope, at, x=shown, pairs=pairs, tokens=tokens)


def frequencies(plot: Any, rope: Rotary) -> Any:
    """The effect of a scaling on each rotary frequency.

    Each frequency of a scaled rotary encoding, relative to the unscaled one: at 1
    a pair turns as fast as before, at 1/8 eight times slower. The bands of YaRN
    and Llama 3 are shaded, and trained lengths are marked.

    Examples:
        $ --preset llama-3.1 -o llama.png
        $ --config path/to/model -o model.svg
        $ --head-dim 128 --base 1000000 -o yarn.png --scaling \
    '{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}'
    """
    return plot.frequencies(rope)


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
    found = kernels.kerple_diagonals(r1 or [1.0], r2 or [1.0], q_len, k_len, q_offset=q_offset)
    return "KERPLE, logarithmic", found


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
    q_offset: int = 0,
    head: int = 0,
    heads: Ints | None = None,
    name: str | None = None,
    cmap: str = _CMAP,
    **of_kind: Any,
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
        head: the head whose matrix is drawn
        heads: the heads whose lines are drawn (default: up to eight)
        name: first line of the title (default: the name of the bias)
        cmap: a colormap of matplotlib; its middle is 0

    Examples:
        $ --kind alibi --num-heads 12 -o alibi.png
        $ --kind t5 --q-len 256 --k-len 256 -o buckets.png
        $ --kind kerple --r1 1,2 --r2 0.5,1 -o kerple.svg
    """
    for option in of_kind:
        if option not in inspect.signature(_BIASES[kind]).parameters:
            raise UsageError(f"{flag(option)}: does not apply to --kind {kind}")
    _check_numbers("--q-len", q_len, 1)
    _check_numbers("--k-len", k_len, q_len)
    _check_numbers("--num-heads", of_kind.get("num_heads", 1), q_len + k_len)
    words, diagonals = _BIASES[kind](q_len, k_len, q_offset, **of_kind)
    shown = {"head": head, "heads": heads, "name": name or words, "cmap": cmap}
    return plot.bias(diagonals, q_len=q_len, k_len=k_len, q_offset=q_offset, **shown)


# Each picture, and the functions whose options it takes too.
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
    """UsageError if count numbers of this width are more than a picture can show."""
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
    """Queries and keys from the files that were typed."""
    files = {name: path for name, path in (("q", q), ("k", k)) if path is not None}
    vectors = {name: _load_array(path, flag(name)) for name, path in files.items()}
    for name in vectors:
        if not isinstance(encoding, Rotary):
            raise UsageError(
                f"{flag(name)}: expected a rotary encoding (--head-dim), got a sinusoidal one"
            )
    return vectors


def _load_array(path: Path, option: str) -> npt.NDArray[Any]:
    """An array from a .npy file, memory-mapped: the file's size limits memory, not its header."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise CommandError(f"{option}: expected a regular file, got {path}")
    try:
        # Ignored: the overflow warning for a header that promises more than 2^63 bytes.
        with reading(path), np.errstate(over="ignore"):
            found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OverflowError, EOFError) as error:
        raise CommandError(f"{option}: {path} is not a .npy file of numbers") from error
    if not isinstance(found, np.ndarray):
        raise CommandError(
            f"{option}: expected a .npy file, which has one array; {path} has several"
        )
    if not found.size:
        raise CommandError(f"{option}: {path} has no numbers")
    return np.asarray(found)
