"""The start of a GGUF file: metadata, and the small tensors of rotary factors.

The `gguf` package reads it, within our own limits: without them a hostile file makes that package
loop over counts that the file claims. Weights are mapped and never read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from posenc_native.core.calls.arguments import wrong_value
from posenc_native.core.calls.optional import absent, install_command

# Limits, several times those of published files.
_MOST_ENTRIES = 1 << 12  # Llama 3.1 has 30
_MOST_TENSORS = 1 << 15  # DeepSeek-V3 has 1,086
_MOST_TEXTS = 1 << 21  # items in lists of texts; Gemma 3 has 262,144 tokens and 514,906 merges
_MOST_DIMS = 8
_MOST_FACTORS = 1 << 12


class GGUF:
    """Metadata and rotary factors of a file.

    Attributes:
        entries: the metadata, without lists of texts such as a vocabulary.
        factors: those of ``rope_freqs``, ``rope_factors_long`` and ``rope_factors_short`` that
            exist, as float64.
        parts: the number of files of the model; this is the first.
    """

    def __init__(self, path: Path, function: str) -> None:
        if absent("gguf"):
            said = f"{function}: reading GGUF needs the package gguf: {install_command('gguf')}"
            raise ImportError(said, name="gguf")
        with path.open("rb"):  # raises a clear error for an unreadable path
            pass
        try:
            reader = _reader_class()(path)
            self.entries: dict[str, Any] = {
                name: field.contents()
                for name, field in reader.fields.items()
                if not name.startswith("GGUF.") and not _is_of_texts(field)
            }
            self.factors = {
                name: reader.factors(name)
                for name in ("rope_freqs", "rope_factors_long", "rope_factors_short")
                if f"{name}.weight" in reader.places
            }
        except _Hostile as error:
            wrong_value(function, "config", error.expected, error.got)
        except (ValueError, KeyError, IndexError, TypeError, OverflowError, struct.error) as error:
            said = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
            wrong_value(
                function, "config", "a GGUF file", f"one that is truncated or not GGUF ({said})"
            )
        parts = self.entries.get("split.count", 1)
        self.parts = parts if isinstance(parts, int) else 1


class _Hostile(Exception):
    def __init__(self, expected: str, got: str) -> None:
        super().__init__(expected, got)
        self.expected, self.got = expected, got


def _is_of_texts(field: Any) -> bool:
    import gguf

    kinds = field.types
    return len(kinds) > 1 and kinds[-1] == gguf.GGUFValueType.STRING


def _reader_class() -> Callable[[Path], Any]:
    import gguf

    kind_array, kind_text = gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING

    class Reader(gguf.GGUFReader):
        """Reads no byte past the end, no weights, and a list in a single step."""

        texts = 0

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            end = int(offset) + np.dtype(dtype).itemsize * int(count)
            if end > len(self.data):
                got = f"one of {len(self.data)} bytes that refers to byte {end}"
                raise _Hostile("a whole GGUF file", got)
            return super()._get(offset, dtype, count, override_order)

        def _build_fields(self, offs: int, count: int) -> int:
            _bound("entries of metadata", count, _MOST_ENTRIES)
            return int(super()._build_fields(offs, count))

        def _build_tensor_info(self, offs: int, count: int) -> Any:
            _bound("tensors", count, _MOST_TENSORS)
            return super()._build_tensor_info(offs, count)

        def _get_tensor_info_field(self, orig_offs: int) -> Any:
            name_length = int(self._get(orig_offs, np.uint64)[0])
            _bound("bytes in the name of a tensor", name_length, 1 << 10)
            dims = self._get(orig_offs + 8 + name_length, np.uint32)[0]
            _bound("dims of a tensor", dims, _MOST_DIMS)
            return super()._get_tensor_info_field(orig_offs)

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type != kind_array:
                return super()._get_field_parts(orig_offs, raw_type)
            kind = self._get(orig_offs, np.uint32)
            length = self._get(orig_offs + 4, np.uint64)
            at, count = orig_offs + 12, int(length[0])
            item = gguf.GGUFValueType(int(kind[0]))
            types = [kind_array, item]
            if item == kind_text:
                return self._skip_texts(at, count) + 12, [kind, length], [], types
            if item not in self.gguf_scalar_to_np:
                raise _Hostile("lists of numbers or texts", "a list of lists")
            _bound("numbers in a list", count, _MOST_TEXTS)
            values = self._get(at, self.gguf_scalar_to_np[item], count)
            return 12 + values.nbytes, [kind, length, values], [2], types

        def _skip_texts(self, at: int, count: int) -> int:
            self.texts += count
            _bound("texts in lists", self.texts, _MOST_TEXTS)
            length = struct.Struct(">Q" if self.byte_order == "S" else "<Q")
            begin, end, data = at, len(self.data), memoryview(self.data)  # type: ignore[arg-type]
            for _ in range(count):
                if at + 8 > end:
                    raise _Hostile("a whole GGUF file", "one that ends within a list")
                at += 8 + length.unpack_from(data, at)[0]
            if at > end:
                raise _Hostile("a whole GGUF file", "one that ends within a list")
            return at - begin

        def _build_tensors(self, start_offs: int, fields: Any) -> None:
            """The offsets of tensors, without reading their data."""
            self.places: dict[str, tuple[int, int, int]] = {}
            for field in fields:
                _, name, _, dims, kind, offset = field.parts
                count = 1
                for dim in dims.tolist():
                    count *= dim
                place = int(start_offs) + int(offset[0]), int(kind[0]), count
                self.places[str(bytes(name), encoding="utf-8")] = place

        def factors(self, name: str) -> Any:
            """The numbers of a float32 or float16 tensor."""
            at, kind, count = self.places[f"{name}.weight"]
            known = {int(gguf.GGMLQuantizationType.F32): np.float32,
                     int(gguf.GGMLQuantizationType.F16): np.float16}  # fmt: skip
            if kind not in known:
                raise _Hostile(f"{name} of float32 or float16", f"tensors of type {kind}")
            _bound(f"numbers in {name}", count, _MOST_FACTORS)
            return self._get(at, known[kind], count).astype(np.float64)

    return Reader


def _bound(what: str, count: Any, most: int) -> None:
    if int(count) > most:
        raise _Hostile(f"at most {most} {what}", str(int(count)))
