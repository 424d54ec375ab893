"""`Rotary`: an immutable description, without buffers, of how a model rotates.

An argument may also be an object that has a `Rotary`: `rotary_in` and `rotary_of` get it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from posenc_native.core.calls import arguments
from posenc_native.core.calls.constants import constant
from posenc_native.core.calls.descriptions import description_in
from posenc_native.core.calls.errors import named
from posenc_native.core.calls.suggestions.vocabulary import answer_methods
from posenc_native.core.calls.views import check_layout, rotary_view
from posenc_native.core.documents.html import as_html
from posenc_native.core.documents.parts import Part
from posenc_native.core.documents.reprs import call_arguments, written
from posenc_native.core.frequencies.scaling import base_apart, rotary_frequencies
from posenc_native.encodings.positions.of_models import ModelGrid, checked_vision
from posenc_native.engines import backend, late
from posenc_native.engines.plain.query_scale import checked_query_scale, of_norm
from posenc_native.models.config import Configuration
from posenc_native.models.presets import rotary_preset, rotary_presets
from posenc_native.models.unread import refuse_unread

from .tables import rotary_tables
from .verbs import Verbs

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from posenc_native.core.calls.kinds import (
        Array,
        Dtype,
        Numbers,
        NumPyDtype,
        Pair,
        Pairing,
        Tensor,
        TensorLike,
        TorchDtype,
    )
    from posenc_native.models.presets import RotaryPreset

    from .rotary_rows import RotaryRows

__all__ = ["Rotary", "rotary_in", "rotary_of"]


@answer_methods
class Rotary(Verbs, ModelGrid):
    """How a model rotates: frequencies, pairing and slice, without any buffer.

    A Rotary is immutable; it can be shared, copied, pickled and compared. ``model.half()`` casts
    nothing in it, and nothing is lost on the meta device. ``Rotary.preset(name)`` and
    ``Rotary.from_config(config)`` make the rotation of a published model. A Rotary is called with q
    and k; ``apply`` rotates one of them, ``append`` rotates and writes to a KV cache,
    ``append_latent`` to one of latent attention (DeepSeek), ``norm`` normalizes and rotates,
    ``bind`` checks once for a loop, ``tables`` gives cosines and sines, ``grid`` the positions of
    a vision model.

    Args:
        head_dim: width of a head; q and k must have it.
        base: base of the frequencies (rope_theta); default "rope_theta" of `scaling`, or 10000.
        rotary_dim: the number of rotated dims, even; default head_dim; a smaller number rotates a
            part of each head. At most 65,536 by formula; `inv_freq` has no such limit.
        pairing: "half", "interleaved" or a block size, as in `apply_rotary`.
        vision: a model of `vision_rotary`, whose positions ``grid`` makes; no angle depends on it.
        scaling: None or a mapping as in Hugging Face, ``{"rope_type": "yarn", ...}``; see
            `rotary_frequencies`.
        axis_map: ``[rotary_dim / 2]`` ints, the position axis that drives each pair.
        rotary_start: first rotated dim.
        layout: default layout of the calls; see `apply_rotary`.
        inv_freq: explicit frequencies, ``[P]`` in radians per position, which replace base,
            rotary_dim and scaling.
        scale: factor of cosine and sine; default the attention factor of the scaling.
        query_scale: a factor of queries by position, as in `query_factors`, of Llama 4, Ministral 3
            and Mistral 4. Calls for q and k multiply q by it; `apply` and `tables` do not.

    Attributes:
        inv_freq: float64 ``[P]``, P = rotary_dim / 2, radians per position, read-only.
        scale: factor of cosine and sine.

    Raises:
        ValueError, TypeError: sizes, names or keys do not fit.

    Example:
        >>> import numpy as np
        >>> import posenc_native as pn
        >>> rope = pn.Rotary(64, base=500000.0)
        >>> q, k = np.ones((1, 8, 5, 64), np.float32), np.ones((1, 2, 5, 64), np.float32)
        >>> q, k = rope(q, k)
        >>> cos, sin = rope.tables(5)
        >>> cos.shape
        (5, 32)
    """

    __slots__ = ("_elsewhere", "_given", "_native", "_tensors", "axis_map", "base", "head_dim",
                 "inv_freq", "layout", "pairing", "query_scale", "rotary_start", "scale",
                 "scaling", "vision")  # fmt: skip

    head_dim: int
    base: float
    pairing: Pairing
    layout: str
    scaling: Mapping[str, Any] | None
    axis_map: npt.NDArray[np.int64] | None
    rotary_start: int
    inv_freq: npt.NDArray[np.float64]
    scale: float
    query_scale: Mapping[str, Any] | None
    vision: str | None
    _given: dict[str, Any]  # inv_freq and scale, if they were arguments
    _tensors: tuple[torch.Tensor, torch.Tensor | None] | None
    _elsewhere: dict[torch.device, tuple[torch.Tensor, torch.Tensor | None]]

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10000.0,
        rotary_dim: int | None = None,
        pairing: Pairing = "half",
        vision: str | None = None,
        scaling: Mapping[str, Any] | None = None,
        axis_map: npt.ArrayLike | None = None,
        rotary_start: int = 0,
        layout: str = "bhsd",
        inv_freq: npt.ArrayLike | None = None,
        scale: float | None = None,
        query_scale: Mapping[str, Any] | None = None,
    ) -> None:
        head_dim = arguments.size("Rotary", "head_dim", head_dim)
        explicit = inv_freq is not None
        if inv_freq is not None:
            if (base, rotary_dim, scaling) != (10000.0, None, None):
                got = "at least one"
                arguments.wrong_value(
                    "Rotary", "base, rotary_dim, scaling", "none beside inv_freq", got
                )
            inv_freq = _explicit_frequencies(inv_freq)
            attention_factor = 1.0
        else:
            rotary_dim = arguments.width(
                "Rotary",
                *(("head_dim", head_dim) if rotary_dim is None else ("rotary_dim", rotary_dim)),
            )
            inv_freq, attention_factor = rotary_frequencies(rotary_dim, base, scaling)
            base, scaling = base_apart(base, scaling)
        if scale is not None:
            scale = arguments.finite_number("Rotary", "scale", scale)
            if scale == attention_factor:
                scale = None
            else:
                attention_factor = scale
        # Checks the slice and the pairing.
        rotary_view(
            "Rotary", (1, head_dim), "sd", pairing, rotary_start, len(inv_freq),
            angles="inv_freq" if explicit else "rotary_dim",
        )  # fmt: skip
        check_layout("Rotary", layout)
        axes = None
        if axis_map is not None:
            axes = np.array(arguments.as_array("Rotary", "axis_map", axis_map))
            arguments.check_dtype("Rotary", "axis_map", axes.dtype, arguments.INTEGER_DTYPES)
            arguments.check_shape("Rotary", "axis_map", axes.shape, (len(inv_freq),))
            axes = axes.astype(np.int64)
            axes.flags.writeable = False
        if query_scale is not None:
            query_scale = checked_query_scale("Rotary", query_scale)
            if axes is not None:
                got = "both"
                arguments.wrong_value("Rotary", "query_scale", "None beside an axis_map", got)
        inv_freq.flags.writeable = False
        values = {
            "head_dim": head_dim,
            "base": float(base),
            "pairing": pairing,
            "scaling": None if scaling is None else dict(scaling),
            "axis_map": axes,
            "rotary_start": int(rotary_start),
            "layout": layout,
            "inv_freq": inv_freq,
            "scale": attention_factor,
            "query_scale": query_scale,
            "vision": checked_vision("Rotary", vision),
            "_given": {
                **({"inv_freq": tuple(inv_freq.tolist())} if explicit else {}),
                **({} if scale is None else {"scale": attention_factor}),
            },
            "_tensors": None,
            "_elsewhere": {},
            "_native": None,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if late.torch_is_there():
            self._make_tensors()
        if backend.native is not None and not late.is_compiling()():
            scaled = None if query_scale is None else tuple(of_norm(query_scale).values())
            described = backend.native.describe_rotation(
                inv_freq, axes, self.pairing, self.rotary_start, attention_factor, layout, head_dim,
                scaled,
            )  # fmt: skip
            object.__setattr__(self, "_native", described)

    @classmethod
    def from_config(
        cls,
        config: Any,
        layer_type: str | None = None,
        *,
        layer: int | None = None,
        seq_len: int | None = None,
        layout: str = "bhsd",
        ignore: Sequence[str] = (),
    ) -> Rotary:
        """The rotation of a Hugging Face model; `explain` describes it in words.

        Args:
            config: a transformers configuration, its dict, or the path of a config.json; or a
                transformer of diffusers, or its configuration with the entry "_class_name".
            layer_type: the type of the layers, if layers differ ("full_attention",
                "sliding_attention").
            layer: the number of a layer, in place of its type.
            seq_len: length of the sequence, for scalings that depend on it (dynamic, longrope).
            layout: default layout of the calls.
            ignore: names of entries about the rotation that need not be understood.

        Raises:
            ValueError: a key is missing, invalid or not understood (the message names it), or the
                layers have no rotary encoding (see `nope_layers`).

        Example:
            >>> import posenc_native as pn
            >>> pn.Rotary.from_config(
            ...     {"model_type": "llama", "head_dim": 64, "rope_theta": 500000.0}
            ... ).base
            500000.0
        """
        function = "Rotary.from_config"
        with named(function):
            model = Configuration.read(config, function)
            options = model.rotary_arguments(layer_type, layer, seq_len)
            refuse_unread(model, ignore)
            return cls(**options, layout=layout)

    @classmethod
    def preset(
        cls,
        name: str,
        layer_type: str | None = None,
        *,
        seq_len: int | None = None,
        layout: str = "bhsd",
    ) -> Rotary:
        """The rotation of a published model, by name; `presets` lists names and details.

        Args:
            name: "llama-3.1", "deepseek-v3", "gpt-oss" ...
            layer_type: the type of the layers, if layers differ ("full_attention",
                "sliding_attention").
            seq_len: length of the sequence, for scalings that depend on it (LongRoPE).
            layout: default layout of the calls.

        Raises:
            ValueError: an unknown name or layer_type; the message lists similar ones.

        Example:
            >>> import posenc_native as pn
            >>> pn.Rotary.preset("gemma-3-27b", "sliding_attention").base
            10000.0
        """
        return cls(**rotary_preset(name).rotary_arguments(layer_type, seq_len), layout=layout)

    @staticmethod
    def presets() -> Mapping[str, RotaryPreset]:
        """The published models that `preset` knows by name, and the facts of each model.

        Returns:
            A read-only mapping from name to facts: head_dim, base, pairing, rotary_dim, scaling,
            query_scale, mrope, layers (the values that differ by layer type), length,
            softmax_correction, nope, source.

        Example:
            >>> import posenc_native as pn
            >>> facts = pn.Rotary.presets()["llama-3.1"]
            >>> facts.head_dim, facts.base, facts.scaling["factor"]
            (128, 500000.0, 8.0)
        """
        return rotary_presets()

    @property
    def rotary_dim(self) -> int:
        """The number of rotated dims of a head."""
        return 2 * len(self.inv_freq)

    @overload
    def tables(self, positions: TensorLike, *, dtype: Dtype = ...) -> Pair[Tensor]: ...
    @overload
    def tables(self, positions: Numbers, *, dtype: TorchDtype) -> Pair[Tensor]: ...
    @overload
    def tables(self, positions: npt.ArrayLike, *, dtype: NumPyDtype = ...) -> Pair[Array[Any]]: ...
    def tables(
        self, positions: npt.ArrayLike | TensorLike, *, dtype: Any = None
    ) -> tuple[Any, Any]:
        """Cosines and sines: `rotary_tables` with this description."""
        return rotary_tables(positions, self, dtype=dtype)

    @staticmethod
    def rows(ropes: Iterable[Any]) -> RotaryRows:
        """A rotation for each row of the batch, called like a `Rotary`.

        For batches of requests with different scalings. The bits are those of a call for each row.

        Args:
            ropes: a `Rotary` (or a module that has one) for each row. They have one head_dim,
                rotary_dim, pairing, rotary_start, axis_map, layout and query_scale.

        Raises:
            ValueError, TypeError: one of them is no Rotary, or rotates other dims or pairs.

        Example:
            >>> import numpy as np
            >>> import posenc_native as pn
            >>> near, far = pn.Rotary(64), pn.Rotary(64, base=500000.0)
            >>> rope = pn.Rotary.rows([near, far])
            >>> q, k = np.ones((2, 8, 5, 64), np.float32), np.ones((2, 2, 5, 64), np.float32)
            >>> rotated_q, rotated_k = rope(q, k)
            >>> bool((rotated_q[1] == far.apply(q[1:])[0]).all())
            True
        """
        from .rotary_rows import RotaryRows

        return RotaryRows(ropes)

    def with_layout(self, layout: str) -> Rotary:
        """The same rotation with another default layout.

        Example:
            >>> import posenc_native as pn
            >>> pn.Rotary(64).with_layout("bshd")
            Rotary(64, layout='bshd')
        """
        return Rotary(**{**self._arguments(), "layout": layout})

    def _of(self, x: Any) -> tuple[Any, Any]:
        """inv_freq and axis_map for an array, or for a tensor on its device."""
        return self._torch(x.device) if arguments.is_tensor(x) else (self.inv_freq, self.axis_map)

    def _torch(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
        """inv_freq and axis_map as tensors on a device, made once per device."""
        tensors = self._tensors or self._make_tensors()
        if tensors[0].device == device:
            return tensors
        self._prepare(device)
        return self._elsewhere.get(device) or self._moved(device)

    @constant
    def _prepare(self, device: torch.device) -> None:
        """Make the tensors for a device.

        torch.compile runs this function while it traces. The tensors are then inputs of the graph,
        and the graph does not copy them in every call.
        """
        if device not in self._elsewhere:
            inv_freq, axis_map = self._moved(device)
            if type(inv_freq) is sys.modules["torch"].Tensor:  # not a tensor of a trace
                self._elsewhere[device] = inv_freq, axis_map

    def _make_tensors(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        import torch

        # The device is explicit because a model may be built under torch.device("meta"). Inference
        # mode is off because training may follow.
        with torch.inference_mode(False):
            inv_freq = torch.tensor(self.inv_freq, device="cpu")
            axis_map = None if self.axis_map is None else torch.tensor(self.axis_map, device="cpu")
        # Kept, but not while torch traces: such tensors end with the trace.
        if type(inv_freq) is torch.Tensor and not torch.compiler.is_compiling():
            object.__setattr__(self, "_tensors", (inv_freq, axis_map))
        return inv_freq, axis_map

    def _moved(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
        import torch

        inv_freq, axis_map = self._tensors or self._make_tensors()
        with torch.inference_mode(False):
            return inv_freq.to(device), None if axis_map is None else axis_map.to(device)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Rotary is immutable: cannot set {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Rotary is immutable: cannot delete {name!r}")

    def _arguments(self) -> dict[str, Any]:
        """The arguments of __init__ for an equal object."""
        from_formula = {
            "base": self.base,
            "rotary_dim": 2 * len(self.inv_freq),
            "scaling": self.scaling,
        }
        return {
            "head_dim": self.head_dim,
            **({} if "inv_freq" in self._given else from_formula),
            **self._given,
            "pairing": self.pairing,
            "axis_map": None if self.axis_map is None else tuple(self.axis_map.tolist()),
            "rotary_start": self.rotary_start,
            "layout": self.layout,
            "query_scale": self.query_scale,
            "vision": self.vision,
        }

    def _differs(self, other: Rotary) -> str | None:
        """The name of an argument that makes other rotate differently; None if there is none."""
        names = ("head_dim", "pairing", "rotary_start", "axis_map", "rotary_dim", "inv_freq")
        for name, ours, theirs in zip(names, self._compared(), other._compared(), strict=True):
            if ours != theirs:
                return name
        return None

    # A method of one object, without tuples to compare: torch.compile treats no call with a second
    # object as a constant, and compares no tuples in one (torch 2.11).
    @constant
    def _compared(self) -> tuple[Any, ...]:
        """The arguments that `_differs` compares, arrays as their bytes."""
        axis_map = b"" if self.axis_map is None else self.axis_map.tobytes()
        inv_freq = self.inv_freq.tobytes()
        return self.head_dim, self.pairing, self.rotary_start, axis_map, len(inv_freq), inv_freq

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_rotary, (self._arguments(),)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rotary):
            return NotImplemented
        return self._arguments() == other._arguments()

    def __hash__(self) -> int:
        return hash((self.head_dim, self.base, self.pairing, self.rotary_start))

    def __repr__(self) -> str:
        return f"Rotary({self._written_arguments()})"

    def _repr_html_(self) -> str:
        """Notebooks show this: the arguments, also those that are defaults, and their results."""
        fields: dict[str, Any] = {
            **self._arguments(),
            "rotary_dim": self.rotary_dim,
            "scale": self.scale,
            "inv_freq": tuple(self.inv_freq.tolist()),
        }
        rows = [("argument", "value")]
        for name, value in fields.items():
            entries = {name: value}
            if isinstance(value, Mapping):
                entries = {f"{name}[{key!r}]": item for key, item in value.items()}
            rows += [(entry, written(item)) for entry, item in entries.items()]
        return as_html([Part("heading", "Rotary"), Part("table", rows=tuple(rows))])

    def _written_arguments(self, whole: bool = False) -> str:
        """The arguments of the call as text; more than 8 numbers are abbreviated unless whole."""
        values = self._arguments()
        if values.get("rotary_dim") == self.head_dim:
            del values["rotary_dim"]
        if whole:  # lists are written in full, tuples are abbreviated
            values = {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}
        return call_arguments(Rotary, **values)


if backend.native is not None:
    backend.native.use_rotary(Rotary)


def _explicit_frequencies(inv_freq: npt.ArrayLike) -> npt.NDArray[np.float64]:
    array = arguments.as_frequencies("Rotary", inv_freq)
    if array.ndim != 1:
        arguments.wrong_value("Rotary", "inv_freq", "shape [P]", list(array.shape))
    if not np.issubdtype(array.dtype, np.number) or np.issubdtype(array.dtype, np.complexfloating):
        arguments.wrong_type("Rotary", "inv_freq", "numbers", array.dtype)
    frequencies = np.array(array, dtype=np.float64)
    if not (np.abs(frequencies) < arguments.FREQUENCY_LIMIT).all():
        expected = "finite values of magnitude below 2^63"
        arguments.wrong_value("Rotary", "inv_freq", expected, "larger or NaN")
    return frequencies


def _make_rotary(values: dict[str, Any]) -> Rotary:
    return Rotary(**values)


def rotary_in(value: Any) -> Rotary | None:
    """The `Rotary` that the value is or contains; None if neither."""
    rope = description_in(value)
    return rope if isinstance(rope, Rotary) else None


def rotary_of(function: str, argument: str, value: Any) -> Rotary:
    """The argument as a `Rotary`; TypeError if the argument neither is nor has a `Rotary`."""
    rope = rotary_in(value)
    if rope is None:
        expected = "a Rotary, or a module that has one (RotaryEmbedding)"
        arguments.wrong_type(function, argument, expected, type(value).__name__)
    return rope
