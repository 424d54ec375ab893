"""The nodes of an ONNX file that concern rotation, and single tensors of it.

No package is used: a parser of protocol buffers makes objects of everything in a file, and 16 MiB
of empty nodes became 6 GiB. This module walks the fields within limits and skips those that it does
not need; numbers of tensors stay in the mapped file:

    model ─ 7 graph ─┬ 1 node ─ 5 attribute ─┬ 5 tensor
                     ├ 2 name                └ 6 graph
                     ├ 5 initializer
                     └ 12 output

Source: onnx 1.23, onnx.proto.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls.arguments import wrong_value

# Limits, several times those of published files.
_MOST_FIELDS = 1 << 18  # that are parsed; a node of another operator counts once
_MOST_SEARCHED = 1 << 16  # bytes of a node, searched for the name of an operator
_MOST_DEPTH = 8  # of nested graphs
_MOST_TEXT = 1 << 9  # bytes of a name
_MOST_DIMS = 8

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EXTERNAL = 1

# Types of numbers, and the fields that may hold them if raw_data (9) does not.
_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<f4"),
    10: np.dtype("<f2"),
    11: np.dtype("<f8"),
    16: np.dtype("<u2"),
}
_BFLOAT16 = 16
_FIELD = {1: 4, 11: 10}
_INTS, _RAW = 5, 9
_MOST_INTS = 1 << 23  # their bytes: 16-bit floats may be written number by number in this form


@dataclass
class Node:
    """An operator.

    Attributes:
        numbers: its int attributes.
        branches: names of the outputs of the graphs inside it.
    """

    op_type: str = ""
    domain: str = ""
    name: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    branches: list[list[str]] = field(default_factory=list)


@dataclass(frozen=True)
class Numbers:
    """A tensor of floats whose rows are read from the mapped file."""

    data: npt.NDArray[Any]
    bfloat16: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.data.shape

    @property
    def step(self) -> float:
        """The distance between 1 and the next number."""
        return 2.0**-7 if self.bfloat16 else float(np.finfo(self.data.dtype).eps)

    @property
    def smallest(self) -> float:
        """The smallest number above 0."""
        if self.bfloat16:
            return 2.0**-133
        return float(np.finfo(self.data.dtype).smallest_subnormal)

    def rows(self, numbers: Any) -> npt.NDArray[np.float64]:
        """Some rows, or a slice of them."""
        values: npt.NDArray[Any] = self.data[numbers]
        if self.bfloat16:
            values = (values.astype(np.uint32) << 16).view(np.float32)
        with np.errstate(invalid="ignore"):  # some bits are NaN, for which a cast warns
            return np.asarray(values, np.float64)

    def part(self, begin: int, end: int) -> Numbers:
        """Some consecutive rows, still in the mapped file."""
        return Numbers(self.data[begin:end], self.bfloat16)


class ONNX:
    """A file.

    Attributes:
        name: the name of its graph.
        nodes: the nodes of the wanted operators, also in inner graphs.
    """

    def __init__(self, path: Path, function: str, wanted: frozenset[str]) -> None:
        self._path, self._function, self._wanted = path, function, wanted
        self._names = re.compile("|".join(sorted({*wanted, "Constant"})).encode())
        self._fields = 0
        self._places: dict[str, tuple[int, int]] = {}
        self.name = ""
        self.nodes: list[Node] = []
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                self._wrong("an empty file")
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        graphs = [(begin, end) for number, kind, begin, end in self._walk(0, len(self._data))
                  if number == 7 and kind == _BYTES]  # fmt: skip
        if len(graphs) != 1:
            self._wrong("one without a graph")
        self.name, _ = self._graph(*graphs[0], 0)

    def tensor(self, name: str) -> Numbers | None:
        """The floats of an initializer or a Constant; None if no such tensor has this name."""
        place = self._places.get(name)
        return None if place is None else self._numbers(name, *place)

    # Graphs

    def _graph(self, begin: int, end: int, depth: int) -> tuple[str, list[str]]:
        """Its name and the names of its outputs; nodes and tensors are stored."""
        if depth > _MOST_DEPTH:
            self._wrong(f"more than {_MOST_DEPTH} nested graphs")
        name, outputs = "", []
        for number, kind, first, last in self._walk(begin, end):
            if kind != _BYTES:
                continue
            if number == 1:
                short = last - first < _MOST_SEARCHED
                if not short or self._names.search(self._data, first, last):
                    self._node(first, last, depth)
            elif number == 2:
                name = self._text(first, last)
            elif number == 5:
                self._keep(self._text_in(8, first, last), first, last)
            elif number == 12:
                outputs.append(self._text_in(1, first, last))
        return name, outputs

    def _node(self, begin: int, end: int, depth: int) -> None:
        node, tensors = Node(), []
        for number, kind, first, last in self._walk(begin, end):
            if kind != _BYTES:
                continue
            if number == 1:
                node.inputs.append(self._text(first, last))
            elif number == 2:
                node.outputs.append(self._text(first, last))
            elif number == 3:
                node.name = self._text(first, last)
            elif number == 4:
                node.op_type = self._text(first, last)
            elif number == 5:
                tensors += self._attribute(node, first, last, depth)
            elif number == 7:
                node.domain = self._text(first, last)
        if node.op_type == "Constant":
            for output, place in zip(node.outputs, tensors, strict=False):
                self._keep(output, *place)
        elif node.op_type in self._wanted:
            self.nodes.append(node)

    def _attribute(self, node: Node, begin: int, end: int, depth: int) -> list[tuple[int, int]]:
        """Add an attribute to the node; returns the places of its tensors."""
        name, value, tensors = "", None, []
        for number, kind, first, last in self._walk(begin, end):
            if kind == _VARINT and number == 3:
                value, _ = self._number(first, last)
            elif kind != _BYTES:
                continue
            elif number == 1:
                name = self._text(first, last)
            elif number == 5:
                tensors.append((first, last))
            elif number == 6:
                node.branches.append(self._graph(first, last, depth + 1)[1])
        if value is not None:
            node.numbers[name] = value
        return tensors

    def _keep(self, name: str, begin: int, end: int) -> None:
        self._places.setdefault(name, (begin, end))

    # Tensors

    def _numbers(self, name: str, begin: int, end: int) -> Numbers:
        dims: list[int] = []
        kind_of = location = 0
        held: dict[int, tuple[int, int]] = {}
        external: dict[str, str] = {}
        for number, kind, first, last in self._walk(begin, end):
            if kind == _VARINT and number == 1:
                dims.append(self._number(first, last)[0])
            elif kind == _BYTES and number == 1:
                while first < last and len(dims) <= _MOST_DIMS:
                    dim, first = self._number(first, last)
                    dims.append(dim)
            elif kind == _VARINT and number == 2:
                kind_of = self._number(first, last)[0]
            elif kind == _VARINT and number == 14:
                location = self._number(first, last)[0]
            elif kind == _BYTES and number == 13:
                external[self._text_in(1, first, last)] = self._text_in(2, first, last)
            elif kind == _BYTES:
                held[number] = first, last
            if len(dims) > _MOST_DIMS or len(external) > 16:
                self._wrong_tensor(name, "one with too many dims")
        dtype = _DTYPES.get(kind_of)
        if dtype is None:
            self._wrong_tensor(name, f"one of type {kind_of}")
        count = 1
        for dim in dims:
            count *= dim
        if count < 1:
            self._wrong_tensor(name, f"one of shape {dims}")
        bfloat16 = kind_of == _BFLOAT16
        if location == _EXTERNAL:
            data, at, most = self._external(name, external)
        elif _RAW in held:
            data, (at, most) = self._data, held[_RAW]
        elif _FIELD.get(kind_of) in held:
            data, (at, most) = self._data, held[_FIELD[kind_of]]
        elif _INTS in held and dtype.itemsize == 2:
            values = self._ints(name, *held[_INTS]).view(dtype)
            if len(values) != count:
                self._wrong_tensor(name, f"{len(values)} numbers for {dims}")
            return Numbers(values.reshape(dims), bfloat16)
        else:
            self._wrong_tensor(name, "one without numbers")
        if most - at < count * dtype.itemsize:
            self._wrong_tensor(name, f"{most - at} bytes for {dims}")
        return Numbers(np.frombuffer(data, dtype, count, at).reshape(dims), bfloat16)

    def _ints(self, name: str, begin: int, end: int) -> npt.NDArray[np.uint16]:
        """16-bit numbers in one to three bytes with 7 significant bits."""
        if end - begin > _MOST_INTS:
            self._wrong_tensor(name, f"numbers written one by one, in more than {_MOST_INTS} bytes")
        encoded = np.frombuffer(self._data, np.uint8, end - begin, begin)
        ends = np.flatnonzero(encoded < 128)
        begins = np.concatenate([[0], ends[:-1] + 1])
        sizes = ends - begins + 1
        if not len(ends) or ends[-1] != len(encoded) - 1 or sizes.max() > 3:
            self._wrong_tensor(name, "numbers of more than 16 bits")
        values = np.zeros(len(ends), np.uint32)
        for i in range(3):
            has = sizes > i
            values[has] |= (encoded[begins[has] + i].astype(np.uint32) & 127) << (7 * i)
        return values.astype(np.uint16)

    def _external(self, name: str, entries: Mapping[str, str]) -> tuple[mmap.mmap, int, int]:
        """Data in another file, and its place there; never from outside this file's folder.

        A download cache keeps both files elsewhere, in the same folder, with links to them.
        """
        location = entries.get("location", "")
        parts = (PurePosixPath(location), PureWindowsPath(location))
        leaves = any(path.is_absolute() or path.drive or ".." in path.parts for path in parts)
        folders = {self._path.parent.resolve(), self._path.resolve().parent}
        if not location or "\0" in location or leaves:
            self._wrong_tensor(name, "data in a file outside its folder")
        try:
            place = (self._path.parent / location).resolve()
            status = place.stat()
        except (OSError, RuntimeError, ValueError):
            self._wrong_tensor(name, "data in a file that does not exist")
        if not (folders & {*place.parents} and stat.S_ISREG(status.st_mode)):
            self._wrong_tensor(name, "data in a file outside its folder")
        offset, length = (entries.get(key, "0") for key in ("offset", "length"))
        if not all(text.isdecimal() and len(text) < 20 for text in (offset, length)):
            self._wrong_tensor(name, "data whose offset or length is not a number")
        begin = int(offset)
        end = begin + int(length) if int(length) else status.st_size
        if not begin <= end <= status.st_size or not status.st_size:
            self._wrong_tensor(name, f"bytes {begin} to {end} of a file of {status.st_size}")
        with place.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), begin, end

    # Fields

    def _text(self, begin: int, end: int) -> str:
        if end - begin > _MOST_TEXT:
            self._wrong(f"a name of {end - begin} bytes")
        return self._data[begin:end].decode("utf-8", "replace")

    def _text_in(self, wanted: int, begin: int, end: int) -> str:
        """The text of a field, by its number."""
        text = ""
        for number, kind, first, last in self._walk(begin, end):
            if number == wanted and kind == _BYTES:
                text = self._text(first, last)
        return text

    def _walk(self, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Number, type, begin and end of the value, field by field."""
        data = self._data
        while at < end:
            self._fields += 1
            if self._fields > _MOST_FIELDS:
                self._wrong(f"more than {_MOST_FIELDS} fields")
            tag = data[at]
            at += 1
            if tag > 127:
                tag, at = self._number(at - 1, end)
            kind = tag & 7
            if kind == _BYTES:
                length, begin = self._number(at, end)
                last = begin + length
            elif kind == _VARINT:
                begin, (_, last) = at, self._number(at, end)
            elif kind in (_FIXED32, _FIXED64):
                begin, last = at, at + (4 if kind == _FIXED32 else 8)
            else:
                self._wrong("bytes of another format")
            if last > end or tag < 8:
                self._wrong("one that is truncated or not ONNX")
            yield tag >> 3, kind, begin, last
            at = last

    def _number(self, at: int, end: int) -> tuple[int, int]:
        """A number of up to 64 bits, and the place where it ends."""
        value = shift = 0
        while at < end and shift < 64:
            byte = self._data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value, at
            shift += 7
        return self._wrong("one that is truncated or not ONNX")

    def _wrong(self, got: str) -> NoReturn:
        wrong_value(self._function, "config", "an ONNX file", got)

    def _wrong_tensor(self, name: str, got: str) -> NoReturn:
        place = name[:64] if name.isprintable() else repr(name[:64])
        wrong_value(self._function, f"graph: {place}", "a tensor of floats", got)
