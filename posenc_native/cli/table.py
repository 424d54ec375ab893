"""Write a sinusoidal or rotary table: .npy, .npz, .csv, .safetensors.

Writes the table of an encoding. Rows are positions; angles are exact at every
position. The suffix of the file sets its format:

  .npy          one array
  .npz          named arrays: the table, its positions, its encoding
  .safetensors  the same; needs safetensors
  .csv          a row of names, then one row per position, with enough digits
                to read back the same numbers

Tables may be larger than memory, except as .safetensors. Nothing is written if
the disk has too little space for the table.

Examples:
    $ sinusoidal --dim 512 --positions 4096 -o table.npy
    $ rotary --preset llama-3.1 --positions 0:131072 -o llama.npz
"""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
import numpy.typing as npt

from posenc_native import __version__
from posenc_native.encodings.rotary.rotary import Rotary
from posenc_native.encodings.rotary.tables import rotary_tables
from posenc_native.encodings.sinusoids.spec import SinusoidalSpec

from . import terminal
from .kinds import DtypeName, Places, dtype_named, output, writing
from .parser import CommandError, UsageError, Words, add_command, require
from .positions import Positions
from .signatures import add_function

Array = npt.NDArray[Any]
TableFile = Annotated[Path, output(".npy", ".npz", ".csv", ".safetensors")]

_BLOCK_BYTES = 1 << 22  # of a block of rows: small enough for a cache, enough for all threads


def add(commands: Any) -> None:
    """Add the command."""
    kinds = add_command(commands, "table", Words.of(__doc__)).add_commands("KIND", "tables")
    for function, source in (
        (sinusoidal, "--dim N"),
        (rotary, "(--head-dim N | --preset NAME | --config PATH)"),
    ):
        usage = f"%(prog)s {source} --positions POSITIONS [OPTION ...] [-o FILE]"
        add_function(kinds, function.__name__, function, group="rows and file", usage=usage)


def sinusoidal(
    spec: SinusoidalSpec,
    positions: Places,
    dtype: DtypeName = "float32",
    out: TableFile | None = None,
) -> None:
    """Sines and cosines to add to embeddings.

    A sinusoidal table [positions, dim]: the Transformer paper's or another
    project's.

      .npy          the table
      .npz          "table", "positions", and as text, "encoding"
      .safetensors  "table", "positions"; "encoding" is in the metadata
      .csv          columns position, dim_0, dim_1 ...

    Args:
        out: without it .csv is printed

    Examples:
        $ --dim 512 --positions 4096 -o table.npy
        $ --dim 512 --positions 4096 --layout sin_cos --shift 1 --dtype float16 -o table.npz
        $ --preset whisper --dim 384 --positions 1500 -o whisper.npy
        $ --dim 8 --positions 0:1000000:100000
        $ --list-presets
    """
    kind = dtype_named(dtype)
    if positions.count is not None and spec.grid is not None:  # its project's first n positions
        positions = Positions((spec.grid.of_shape((positions.count,))[0].tolist(),))
    width = spec(np.ones(1, np.int64)).shape[-1]
    parts = {"table": lambda at: spec(at, dtype=kind)}
    columns = [f"dim_{i}" for i in range(width)]
    _write(_Table(parts, width, columns, kind, positions, {}, repr(spec)), out)


def rotary(
    rope: Rotary,
    positions: Places,
    dtype: DtypeName = "float32",
    out: TableFile | None = None,
) -> None:
    """Cosines and sines to rotate by.

    Cosines and sines of a rotary encoding, [positions, pairs] each. The encoding
    is that of a published model (by name), of a config.json, or given by numbers.
    As in models, cosines and sines are multiplied by the attention factor. If
    positions have several axes (models that see pictures), the table is for text,
    with the same position on each axis.

      .npy          [2, positions, pairs]: cos, sin = numpy.load(FILE)
      .npz          "cos", "sin", "positions", "inv_freq" (radians per position,
                    float64), "attention_factor", and as text, "encoding"
      .safetensors  the same; "encoding" is in the metadata
      .csv          columns position, cos_0, cos_1 ... sin_0, sin_1 ...

    Args:
        out: without it .csv is printed

    Examples:
        $ --head-dim 128 --base 500000 --positions 8192 -o cos_sin.npy
        $ --preset llama-3.1 --positions 0:131072 -o llama.npz
        $ --config path/to/model --positions 1000000:1000016 -o far.csv
        $ --head-dim 64 --scaling '{"rope_type": "linear", "factor": 4}' --positions 5,7,9
        $ --list-presets
    """
    kind, pairs = dtype_named(dtype), len(rope.inv_freq)

    def part(number: int) -> Callable[[Array], Array]:
        # Without rope.axis_map: every axis has the same position.
        return lambda at: rotary_tables(at, rope.inv_freq, scale=rope.scale, dtype=kind)[number]

    parts = {"cos": part(0), "sin": part(1)}
    columns = [f"{name}_{i}" for name in parts for i in range(pairs)]
    beside = {"inv_freq": rope.inv_freq, "attention_factor": np.float64(rope.scale)}
    _write(_Table(parts, pairs, columns, kind, positions, beside, repr(rope)), out)


@dataclass(frozen=True)
class _Table:
    """The table to write, in blocks of rows: only the disk limits the size of a file.

    Attributes:
        parts: arrays ``[positions, width]`` by name, each as a function of positions.
        width: number of columns of each part.
        columns: names of all columns of all parts.
        dtype: dtype of the parts.
        positions: positions of the rows.
        beside: further arrays, which do not depend on positions.
        encoding: the Python call that makes the encoding, as text.
    """

    parts: Mapping[str, Callable[[Array], Array]]
    width: int
    columns: list[str]
    dtype: np.dtype[Any]
    positions: Positions
    beside: Mapping[str, Array]
    encoding: str

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of each part."""
        return self.positions.total, self.width

    def rows(self) -> Iterator[Array]:
        """The positions in blocks."""
        return self.positions.blocks(max(1, _BLOCK_BYTES // max(1, self.width * 8)))


def _write(table: _Table, out: Path | None) -> None:
    if out is None:
        _write_csv(table, sys.stdout, lambda rows: None)
        return
    dtypes, write = _FORMATS[out.suffix.lower()]
    if table.dtype.name not in dtypes:
        expected = f"one of {', '.join(dtypes)} for {out.suffix}"
        raise UsageError(f"--dtype: expected {expected}, got {table.dtype.name}")
    total = table.positions.total * len(table.parts)
    _check_room(table, out)
    with terminal.progress(f"writing {out}", total) as done, writing(out) as path:
        write(table, path, done)
    parts = " and ".join(table.parts)
    size = _bytes(out.stat().st_size)
    print(f"wrote {out}: {parts}, {table.dtype.name} {list(table.shape)}, {size}")


def _check_room(table: _Table, out: Path) -> None:
    """CommandError if the disk, or for .safetensors the memory, is too small for the table.

    As text a number takes at least two bytes: one digit and one separator.
    """
    rows, width = table.shape
    item = 2 if out.suffix.lower() == ".csv" else table.dtype.itemsize
    size = rows * width * len(table.parts) * item
    least = "at least " if out.suffix.lower() == ".csv" else ""
    room = [("disk space", shutil.disk_usage(out.resolve().parent).free, "are free")]
    if out.suffix.lower() == ".safetensors" and hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        room.append(("memory", memory, "are installed"))
    for where, free, how in room:
        if size > free:
            takes = f"the table needs {least}{_bytes(size)} of {where}"
            raise CommandError(f"cannot write {out}: {takes}, but only {_bytes(free)} {how}")


def _bytes(size: int) -> str:
    power = min((len(str(size)) - 1) // 3, len(_UNITS) - 1)
    return f"{size / 1000**power:.3g} {_UNITS[power]}"


_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


# --- Formats

_Done = Callable[[int], object]


def _write_npy(table: _Table, path: Path, done: _Done) -> None:
    several = (len(table.parts),) if len(table.parts) > 1 else ()
    with path.open("wb") as file:
        _header(file, table.dtype, (*several, *table.shape))
        for part in table.parts.values():
            _blocks(file, table, part, done)


def _write_npz(table: _Table, path: Path, done: _Done) -> None:
    with zipfile.ZipFile(path, "w") as archive:

        def member(name: str) -> IO[bytes]:
            return archive.open(f"{name}.npy", "w", force_zip64=True)

        for name, part in table.parts.items():
            with member(name) as file:
                _header(file, table.dtype, table.shape)
                _blocks(file, table, part, done)
        with member("positions") as file:
            first = next(table.positions.blocks(1), np.empty(0, np.int64))
            _header(file, first.dtype, table.shape[:1])
            for block in table.rows():
                file.write(block.data)
        for name, array in {**table.beside, "encoding": np.array(table.encoding)}.items():
            with member(name) as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)


def _header(file: IO[bytes], kind: np.dtype[Any], shape: tuple[int, ...]) -> None:
    description = np.lib.format.dtype_to_descr(kind)
    np.lib.format.write_array_header_1_0(
        file, {"descr": description, "fortran_order": False, "shape": shape}
    )


def _blocks(file: IO[bytes], table: _Table, part: Callable[[Array], Array], done: _Done) -> None:
    for positions in table.rows():
        file.write(np.ascontiguousarray(part(positions)).data)
        done(len(positions))


def _write_safetensors(table: _Table, path: Path, done: _Done) -> None:
    require("safetensors", path.suffix)
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    positions = table.positions.array()
    arrays = {"positions": positions}
    for name, part in table.parts.items():
        arrays[name] = np.ascontiguousarray(part(positions))
        done(len(positions))
    arrays.update({name: np.asarray(array) for name, array in table.beside.items()})
    path.touch()
    mode = path.stat().st_mode  # the library makes its files readable by their owner only
    try:
        save_file(arrays, path, {"encoding": table.encoding, "posenc_native": __version__})
    except SafetensorError as error:  # not an OSError, even if the disk is full
        raise CommandError(f"cannot write {path.suffix}: {error}") from None
    path.chmod(mode)


def _write_csv(table: _Table, file: IO[str], done: _Done) -> None:
    print("position", *table.columns, sep=",", file=file)
    for positions in table.rows():
        columns = [positions[:, None], *(part(positions) for part in table.parts.values())]
        if table.dtype.name == "bfloat16":  # NumPy cannot write it as text
            columns[1:] = [column.astype(np.float32) for column in columns[1:]]
        # The shortest text that reads back as the same number.
        texts = np.concatenate([column.astype(str) for column in columns], axis=1)
        file.write("".join(f"{','.join(row)}\n" for row in texts.tolist()))
        done(len(positions) * len(table.parts))


def _write_csv_file(table: _Table, path: Path, done: _Done) -> None:
    with path.open("w", encoding="ascii", newline="\n") as file:
        _write_csv(table, file, done)


_NUMPY_DTYPES = ("float16", "float32", "float64")
_ALL_DTYPES = (*_NUMPY_DTYPES, "bfloat16")
_FORMATS: dict[str, tuple[tuple[str, ...], Callable[[_Table, Path, _Done], None]]] = {
    ".npy": (_NUMPY_DTYPES, _write_npy),
    ".npz": (_NUMPY_DTYPES, _write_npz),
    ".csv": (_ALL_DTYPES, _write_csv_file),
    ".safetensors": (_ALL_DTYPES, _write_safetensors),
}
