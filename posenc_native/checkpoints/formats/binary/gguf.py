"""GGUF: how llama.cpp rotates the model in a file.

A file holds numbers. The code of its architecture decides how llama.cpp uses them: the pairing,
the layers that slide or do not rotate, and the keys that it reads. llama_cpp.json lists this by
architecture. A row has:

rope: of llama_model_rope_type. "norm" pairs neighbors, "neox" halves; "mrope" and "imrope" pair
    halves, by sections of position axes; "none" does not rotate.
models: the Hugging Face model_types that become this architecture.
permuted: the converter permutes the weights of queries and keys from halves to neighbors.
latent, trailing: the rotated dims are a separate tensor, or the last of a head.
corrects: its softmax scale includes the square of a magnitude that depends on the factor.
compressed: its layers are of two kinds, by attention.compress_ratios.
window: sliding layers. `every`: n, of which the last layer is full, or the first with `full_first`
    (absent: the file says which); `when` there are any; `base`: their base ("own":
    rope.freq_base_swa, else `base_default`, else the model's); `scaled`: whether they are scaled.
nope: the layers that do not rotate.
rope_freqs, long_factors: the layers, and the conditions, for which the factor tensors apply.
run, refused: entries of files that llama.cpp rotated as described, or refused (gguf_words.py).
The others are keys that only this architecture reads.

Source: llama.cpp, run with files of the rows with `run` (tests/engines_at_hand). The others
were read in its code and not run: src/models/, conversion/.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from posenc_native.checkpoints.formats.description import Description
from posenc_native.checkpoints.formats.fitting import as_llama3
from posenc_native.checkpoints.formats.form import Format
from posenc_native.checkpoints.formats.settings import (
    Layer,
    Settings,
    check_share,
    grouped,
    without_rotation,
)
from posenc_native.core.frequencies.axes import mrope_axis_map
from posenc_native.core.frequencies.frequencies import rounded_frequencies
from posenc_native.core.frequencies.scaling import rotary_frequencies
from posenc_native.models.entries import HEAD_LIMIT, LAYER_LIMIT

from .gguf_files import GGUF
from .gguf_words import (
    architectures,
    ground,
    remarks,
    source_of_scaling,
    unknown,
    words,
    yarn_magnitude,
    yarn_words,
)
from .gguf_writing import write

TITLE = "GGUF"
_MOST_WEIGHT = 1000.0
_NEVER = 1e20  # larger factors mean that a pair does not turn (Gemma 4 has 1e30)


def read_gguf(path: Path, source: str, function: str) -> Description:
    """The description of a GGUF file, as llama.cpp reads it."""
    file = GGUF(path, function)
    return described(file.entries, file.factors, source, function, file.parts)


FORMAT = Format("gguf", TITLE, read_file=read_gguf, write=write, suffixes=(".gguf",), magic=b"GGUF")


def described(
    entries: Mapping[str, Any],
    factors: Mapping[str, npt.NDArray[np.float64]],
    source: str,
    function: str,
    parts: int = 1,
) -> Description:
    """The description of the metadata and the rotary factors of a file."""
    top = Settings(function, entries, "metadata")
    name = top.text("general.architecture")
    known = architectures()
    if name not in known:
        like = f"one of llama.cpp's architectures ({', '.join(list(known)[:6])} ...)"
        top.wrong("general.architecture", like, repr(name))
    own = {key.removeprefix(f"{name}."): value for key, value in entries.items()
           if key.startswith(f"{name}.")}  # fmt: skip
    model = _Model(Settings(function, own, name), known[name], name, factors)
    groups = grouped(model.settings, model.layer_count, model.layer)
    if all(group.arguments is None for group in groups):
        got = f"{name}, which does not rotate in llama.cpp"
        top.wrong("general.architecture", "an architecture with rotary encoding", got)
    groups = tuple(group for group in groups if group.layer_type != "no attention")
    unread = {*factors} - model.factors_read
    return Description(
        source=source,
        format=TITLE,
        engine="llama.cpp",
        model_type=name,
        groups=groups,
        layer_count=model.layer_count,
        length=model.settings.length("context_length"),
        nope_layers=without_rotation(groups),
        words={
            **words(name),
            "scaling": source_of_scaling(model.settings, name, model.row, groups),
            "inv_freq": model.source_of_frequencies,
        },
        unknown=tuple(unknown(model.settings, model.row)),
        remarks=tuple(remarks(model.settings, name, model.row, unread, parts)),
        latent=model.row.get("latent", False),
        corrects_softmax=any(group.softmax_correction != 1 for group in groups),
        permuted_by="llama.cpp's convert_hf_to_gguf.py" if model.row.get("permuted") else "",
        safetensors=False,
        ground=ground(model.settings, name, model.row, groups, model.factors_read, unread),
    )


class _Model:
    """An architecture with the numbers of a file."""

    def __init__(
        self,
        settings: Settings,
        row: Mapping[str, Any],
        name: str,
        factors: Mapping[str, npt.NDArray[np.float64]],
    ) -> None:
        self.settings, self.row, self.name, self.factors = settings, row, name, factors
        self.factors_read: set[str] = set()
        self.source_of_frequencies = "rope_freqs.weight"
        blocks = settings.layers("block_count")
        extra = settings.count("nextn_predict_layers", 0) if settings["nextn_predict_layers"] else 0
        if extra >= blocks:
            settings.wrong("nextn_predict_layers", f"a number below block_count = {blocks}", extra)
        self.blocks, self.layer_count = blocks, blocks - extra
        self.kv_heads = self._by_layer("attention.head_count_kv")
        self._by_layer("attention.head_count")
        self.slides = self._slides()
        self.sliding = self._sliding()
        self.sections = self._sections()
        self.rope = str(row["rope"])
        if row.get("mrope_by_sections") and min(self.sections[:2]) > 0:
            self.rope = "mrope"
        self.rotates = self.rope != "none" and row.get("layers") in (None, blocks)
        if row.get("nope_unless_finetuned") and not settings.flag("rope.scaling.finetuned", True):
            self.rotates = False

    # Layers

    def layer(self, i: int) -> Layer:
        """Type, arguments, softmax correction and base of a layer."""
        if not self._has_attention(i):
            return "no attention", None, 1.0
        slides = self.sliding[i]
        differ = len(set(self.sliding)) > 1
        label = ("sliding_attention" if slides else "full_attention") if differ else None
        if not self.rotates or self._is_without(i):
            return label, None, 1.0
        kind = "sliding" if slides else "full"
        if self.row.get("compressed"):
            ratios = self._by_layer("attention.compress_ratios")
            kind = "compressed" if ratios is None or ratios[i] else "uncompressed"
        return label, *self._rotation(kind)

    def _has_attention(self, i: int) -> bool:
        rule = self.row.get("attention")
        if rule == "head_count_kv":
            return self.kv_heads is None or self.kv_heads[i] > 0
        if rule is None:
            return True
        recurrent = self._by_layer("attention.recurrent_layers")
        if recurrent is not None:
            return not recurrent[i]
        every = self.settings.count("full_attention_interval", int(rule))
        return (i + 1) % every == 0

    def _is_without(self, i: int) -> bool:
        rule = self.row.get("nope")
        if rule == "every 4th":
            if self.name == "llama4" and self.settings["attention.sliding_window"] == 0:
                return (i + 1) % self.layer_count == 0
            return (i + 1) % 4 == 0
        if rule == "every 4th from 0":
            return any(self.sliding) and i % 4 == 0
        if rule == "full_attention":
            dense = 0
            if self.name == "cohere2moe" and self.settings["leading_dense_block_count"]:
                dense = self.settings.layers("leading_dense_block_count")
            return self.slides and not self.sliding[i] and i >= dense
        if rule == "rope_pattern":
            pattern = self._by_layer("attention.rope_pattern")
            return pattern is not None and not pattern[i]
        return False

    def _slides(self) -> bool:
        """Whether any layer may slide."""
        size = self.settings["attention.sliding_window"]
        when = {
            "always": True,
            "window": bool(size),
            "not 0": size != 0,
            "64 layers": self.layer_count == 64,
        }
        return "window" in self.row and when[self.row["window"]["when"]]

    def _sliding(self) -> list[bool]:
        if not self.slides:
            return [False] * self.layer_count
        window = self.row["window"]
        key = "attention.sliding_window_pattern"
        pattern, every = self.settings[key], window.get("every")
        if isinstance(pattern, (list, tuple)):
            if not self.layer_count <= len(pattern) <= LAYER_LIMIT:
                self.settings.wrong(
                    key, f"an entry for each of {self.layer_count} layers", len(pattern)
                )
            return [bool(slides) for slides in pattern[: self.layer_count]]
        if pattern is not None:
            every = self.settings.count(key)
        if every is None:
            self.settings.wrong(key, f"an entry for each of {self.layer_count} layers", "none")
        if every == 0:
            return [True] * self.layer_count
        if window.get("full_first"):
            return [i % every != 0 for i in range(self.layer_count)]
        return [i % every < every - 1 for i in range(self.layer_count)]

    def _by_layer(self, key: str) -> list[int] | None:
        value = self.settings[key]
        if not isinstance(value, (list, tuple)):
            return None
        if not self.blocks <= len(value) <= LAYER_LIMIT:
            self.settings.wrong(key, f"an entry for each of {self.blocks} layers", len(value))
        if not all(isinstance(number, int) for number in value):
            self.settings.wrong(key, "ints", "other values")
        return [int(number) for number in value]

    def _sections(self) -> list[int]:
        key = "rope.dimension_sections"
        value = self.settings[key]
        if value is None:
            return [0] * 4
        if not isinstance(value, (list, tuple)):
            return [self.settings.count(key, most=HEAD_LIMIT)] * 4
        sections = [int(pairs) for pairs in self.settings.numbers(key, 4, 4)]
        if any(not 0 <= pairs <= HEAD_LIMIT for pairs in sections):
            self.settings.wrong(key, f"numbers in 0 .. {HEAD_LIMIT}", sections)
        return sections

    # Rotation

    def _rotation(self, kind: str) -> tuple[dict[str, Any], float, float]:
        """Arguments, softmax correction and base."""
        row = self.row
        window = row.get("window", {}) if kind == "sliding" else {}
        head_dim = self._head_dim(kind)
        rotary_dim = self._rotary_dim(head_dim, kind)
        if row.get("latent"):
            head_dim = rotary_dim
        base = self._base(window, kind)
        scaled = kind != "uncompressed" and (not window or window.get("scaled", False))
        scaling, scale, correction = self._scaling(scaled)
        if window.get("magnitude") is False or row.get("compressed"):
            scale = 1.0
        result: dict[str, Any] = {
            "head_dim": head_dim,
            "base": base,
            "rotary_dim": rotary_dim,
            "pairing": "interleaved" if self.rope == "norm" else "half",
            "scaling": scaling,
            "scale": scale,
            "axis_map": self._axis_map(rotary_dim // 2),
            "rotary_start": head_dim - rotary_dim if row.get("trailing") else 0,
        }
        factors = self._factors(kind, rotary_dim // 2)
        if factors is not None:
            self._divide(result, factors)
        return result, correction, base

    def _head_dim(self, kind: str) -> int:
        settings = self.settings
        if kind == "sliding" and "attention.key_length_swa" in settings:
            return settings.heads("attention.key_length_swa")
        if "attention.key_length" in settings:
            return settings.heads("attention.key_length")
        heads = settings["attention.head_count"]
        first = heads[0] if isinstance(heads, (list, tuple)) and heads else heads
        first_layer = Settings(settings.function, {"attention.head_count": first}, settings.place)
        width = settings.count("embedding_length") // first_layer.count("attention.head_count")
        if not 2 <= width <= HEAD_LIMIT:
            settings.wrong("attention.key_length", f"2 to {HEAD_LIMIT} dims", width)
        return width

    def _rotary_dim(self, head_dim: int, kind: str) -> int:
        key = "rope.dimension_count"
        if "fixed_base" in self.row:
            return check_share(self.settings, "attention.key_length", head_dim, head_dim)
        rotary_dim = self.settings.count(key, self._head_dim("full"), HEAD_LIMIT)
        if self.row.get("halved_full") and kind == "full":
            rotary_dim //= 2
        by_type = self.row.get("rotary_dim_by_type")
        if kind == "sliding" and by_type and "rope.dimension_count_swa" in self.settings:
            key = "rope.dimension_count_swa"
            rotary_dim = self.settings.count(key, most=HEAD_LIMIT)
        if self.row.get("latent"):
            head_dim = max(head_dim, rotary_dim)
        return check_share(self.settings, key, rotary_dim, head_dim)

    def _base(self, window: Mapping[str, Any], kind: str) -> float:
        settings = self.settings
        if "fixed_base" in self.row:
            return float(self.row["fixed_base"])
        base = settings.positive("rope.freq_base", 10000.0)
        if kind == "compressed":
            return settings.positive("attention.compress_rope_freq_base")
        if window.get("base") == "own":
            return settings.positive("rope.freq_base_swa", window.get("base_default", base))
        alpha = settings.number("rope.scaling.alpha", 0.0) if self.row.get("reads_alpha") else 0.0
        if alpha > 0:
            dim = self._head_dim("full")
            base *= float(alpha ** (dim / (dim - 2))) if dim > 2 else 1.0
            if not base < math.inf:
                settings.wrong("rope.scaling.alpha", "a number that leaves a finite base", alpha)
        return base

    def _scaling(self, scaled: bool) -> tuple[dict[str, Any] | None, float, float]:
        """The scaling, the factor of cosine and sine, and the factor of the softmax scale."""
        settings, row = self.settings, self.row
        if "fixed_base" in row:
            return None, 1.0, 1.0
        magnitude = settings.positive("rope.scaling.attn_factor", 1.0)
        kinds = ("none", "linear", "yarn", "longrope")
        kind = settings.one_of("rope.scaling.type", kinds, "linear")
        key = "rope.scaling.factor" if "rope.scaling.factor" in settings else "rope.scale_linear"
        factor = settings.number(key, 0.0) or 1.0
        if factor < 0:
            settings.wrong(key, "a number >= 0", factor)
        if kind == "none":
            factor = 1.0
        if row.get("reads_betas") == "all":
            kind, magnitude = self._extrapolates(kind, magnitude)
        weight = self._weight()
        # llama.cpp divides by YaRN's multiplier; softmax scales multiply by it again.
        taken_out = 1 + 0.1 * math.log(factor)
        if taken_out <= 0 and (kind == "yarn" or row.get("corrects")):
            settings.wrong(key, "a number above e^-10", factor)
        spread = yarn_magnitude(self.name, factor, weight) if kind == "yarn" else taken_out
        correction = 1.0
        if row.get("corrects"):
            correction = (magnitude * spread * (1 + 0.1 * weight * math.log(factor))) ** 2
        if kind != "yarn":
            linear = {"rope_type": "linear", "factor": factor} if factor != 1 and scaled else None
            return linear, magnitude, correction
        if not scaled:
            return None, magnitude * spread / taken_out, correction
        trained = self._trained_length()
        scaling = yarn_words(row).read(
            settings, factor=factor, original_max_position_embeddings=trained
        )
        return scaling, magnitude * spread, correction

    def _weight(self) -> float:
        """The share of the magnitude in the softmax scale, mscale_all_dim of a configuration."""
        if "log_multiplier" not in self.row:
            return 0.0
        key = "rope.scaling.yarn_log_multiplier"
        multiplier = self.settings.number(key, 0.0)
        if not 0 <= multiplier <= _MOST_WEIGHT:
            self.settings.wrong(key, f"a number in 0 .. {_MOST_WEIGHT:.0f}", multiplier)
        return float(np.float32(multiplier * self.row["log_multiplier"]))

    def _extrapolates(self, kind: str, magnitude: float) -> tuple[str, float]:
        """Whether it is YaRN, and the magnitude, by a key that overrides the type."""
        key = "rope.scaling.yarn_ext_factor"
        share = self.settings.number(key, -1.0)
        if share > 0 and share != 1:
            self.settings.wrong(key, "0, 1 or less than 0", share)
        if share >= 0:
            kind = "yarn" if share == 1 else "linear"
        if kind != "yarn":
            magnitude *= self.settings.positive("rope.scaling.yarn_attn_factor", 1.0)
        return kind, magnitude

    def _trained_length(self) -> int:
        length = self.settings.length("rope.scaling.original_context_length", "context_length")
        if length is None:
            self.settings.wrong("context_length", "a number of positions", "none")
        return length

    def _axis_map(self, pairs: int) -> npt.NDArray[np.int64] | None:
        if self.rope not in ("mrope", "imrope"):
            return None
        sections, whole = self.sections, sum(self.sections)
        if whole == 0:
            self.settings.wrong("rope.dimension_sections", "numbers of pairs by axis", "none")
        if self.rope == "mrope" and whole == pairs and sections[3] == 0:
            return mrope_axis_map(sections[:3], order="sectioned")
        # As in ggml: a pair that no axis takes gets the fourth axis.
        axes = np.full(pairs, 3, np.int64)
        sector = np.arange(pairs) % whole
        if self.rope == "imrope":
            for axis in range(3):
                axes[(sector % 3 == axis) & (sector < 3 * sections[axis])] = axis
        else:
            ends = np.cumsum(sections[:3])
            axes = np.searchsorted(ends, sector, side="right").astype(np.int64)
        return axes

    def _factors(self, kind: str, pairs: int) -> Any:
        """("all", array) or ("long", short, long), with a number per pair."""
        row, factors = self.row, self.factors
        long_rule = row.get("long_factors")
        by_length = long_rule == "always" or (
            long_rule == "longrope" and self.settings["rope.scaling.type"] == "longrope"
        )
        for_all = row.get("rope_freqs")
        if "rope_freqs" in factors and for_all and not (by_length and long_rule == "longrope"):
            if for_all == "all" or kind == "full":
                return ("all", self._checked("rope_freqs", pairs))
            return None
        names = ("rope_factors_short", "rope_factors_long")
        if by_length and all(name in factors for name in names):
            if for_all not in (None, "all") and kind != "full":
                return None
            return ("long", *(self._checked(name, pairs) for name in names))
        return None

    def _checked(self, name: str, pairs: int) -> npt.NDArray[np.float64]:
        self.factors_read.add(name)
        factors = self.factors[name][:pairs]
        if len(factors) < pairs:
            self.settings.wrong(f"{name}.weight", f"{pairs} factors, one per pair", len(factors))
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            self.settings.wrong(f"{name}.weight", "finite factors > 0", "other values")
        return factors

    def _divide(self, arguments: dict[str, Any], factors: Any) -> None:
        """Put factors into the arguments, as a scaling that fits, otherwise as frequencies."""
        scaling = arguments["scaling"]
        if factors[0] == "long":
            if scaling is not None and scaling["rope_type"] == "yarn":
                self.settings.wrong(
                    "rope.scaling.type", "no YaRN together with factors by length", "'yarn'"
                )
            by = 1.0 if scaling is None else scaling["factor"]
            arguments["scaling"] = {
                "rope_type": "longrope",
                "short_factor": (factors[1] * by).tolist(),
                "long_factor": (factors[2] * by).tolist(),
                "original_max_position_embeddings": self._trained_length(),
                "attention_factor": 1.0,
            }
            return
        plain = rounded_frequencies(arguments["rotary_dim"], arguments["base"])
        divided = np.where(factors[1] > _NEVER, 0.0, plain / factors[1])
        if scaling is None:
            llama3 = as_llama3(plain, divided, self.settings.length("context_length"))
            if llama3 is not None:
                arguments["scaling"] = llama3
                return
        else:
            both, _ = rotary_frequencies(arguments["rotary_dim"], arguments["base"], scaling)
            divided = divided * (both / plain)
            self.source_of_frequencies = f"rope_freqs.weight and {self.name}.rope.scaling.factor"
        for key in ("base", "rotary_dim", "scaling"):
            del arguments[key]
        arguments["inv_freq"] = divided.tolist()
