"""The rotary encodings of published models, as facts.

Numbers are those of the ``config.json`` published with the model named, or of the configuration
class of transformers 5.23 where that is said. `Rotary.preset` makes a `Rotary` of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from posenc_native import arguments
from posenc_native.frequencies import softmax_correction
from posenc_native.multi_axis import mrope_axis_map


@dataclass(frozen=True)
class RotaryPreset:
    """How one published model rotates.

    Attributes:
        head_dim: width of a head; with multi-head latent attention, of its rotated part.
        base: base of the frequencies (rope_theta).
        pairing: "half" or "interleaved".
        rotary_dim: how many dims are rotated; None: the head.
        scaling: as in `rotary_frequencies`.
        mrope: ``(section, order)`` of `mrope_axis_map`, for positions on three axes.
        layers: what is different in layers of a type, by that type; empty: nothing.
        length: the longest sequence that the model is meant for, in positions.
        corrects_softmax: whether the model scales its scores by ``softmax_correction(scaling)``.
        nope: layers without rotary encoding, in words; empty: none.
        source: whose published configuration this is.
    """

    head_dim: int
    base: float
    length: int
    source: str
    pairing: str = "half"
    rotary_dim: int | None = None
    scaling: Mapping[str, Any] | None = None
    mrope: tuple[tuple[int, ...], str] | None = None
    layers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    corrects_softmax: bool = False
    nope: str = ""

    @property
    def softmax_correction(self) -> float:
        """Factor of the softmax scale."""
        return softmax_correction(self.scaling) if self.corrects_softmax else 1.0

    def rotary_arguments(
        self, layer_type: str | None = None, seq_len: int | None = None
    ) -> dict[str, Any]:
        """Arguments of `Rotary`; ValueError if layers differ and the type is not one of them."""
        if layer_type not in (self.layers or (None,)):
            expected = f"one of {', '.join(self.layers) or None}"
            arguments.wrong_value("Rotary.preset", "layer_type", expected, repr(layer_type))
        facts = {
            key: getattr(self, key)
            for key in ("head_dim", "base", "pairing", "rotary_dim", "scaling")
        }
        facts.update(self.layers.get(layer_type or "", {}))
        scaling = facts["scaling"]
        if seq_len is not None and scaling and scaling["rope_type"] == "longrope":
            facts["scaling"] = {**scaling, "seq_len": seq_len}
        if self.mrope is not None:
            section, order = self.mrope
            facts["axis_map"] = mrope_axis_map(section, order=order)
        return facts


def rotary_presets() -> Mapping[str, RotaryPreset]:
    """The published models whose rotary encodings are known by name, and the facts of each.

    Returns:
        A read-only mapping from name to facts: head_dim, base, pairing, rotary_dim, scaling, mrope,
        layers (what differs by layer type), length, softmax_correction, nope, source.

    Example:
        >>> facts = rotary_presets()["llama-3.1"]
        >>> facts.head_dim, facts.base, facts.scaling["factor"]
        (128, 500000.0, 8.0)
    """
    return _PRESETS


def rotary_preset(name: str) -> RotaryPreset:
    """The facts of one model; ValueError that lists names like it if there is none."""
    if not isinstance(name, str):
        arguments.wrong_type("Rotary.preset", "name", "a str", type(name).__name__)
    if name not in _PRESETS:
        import difflib

        near = difflib.get_close_matches(name.lower(), _PRESETS, n=5, cutoff=0.4)
        expected = f"one of {', '.join(near or sorted(_PRESETS))}"
        if near:
            expected += " or others of rotary_presets()"
        arguments.wrong_value("Rotary.preset", "name", expected, repr(name))
    return _PRESETS[name]


def _llama3(factor: float, high: float = 4.0) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": high,
        "original_max_position_embeddings": 8192,
    }


def _yarn(factor: float, trained: int, **others: Any) -> dict[str, Any]:
    lengths = {"factor": factor, "original_max_position_embeddings": trained}
    return {"rope_type": "yarn", **lengths, **others}


def _longrope(short: tuple[float, ...], long: tuple[float, ...]) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": 4096,
        "max_position_embeddings": 131072,
    }


def _gemma3(head_dim: int, length: int, factor: float | None) -> RotaryPreset:
    linear = None if factor is None else {"rope_type": "linear", "factor": factor}
    return RotaryPreset(
        head_dim,
        1e6,
        length,
        "google/gemma-3-*-it",
        layers={
            "full_attention": {"base": 1e6, "scaling": linear},
            "sliding_attention": {"base": 1e4},
        },
    )


def _latent(base: float, length: int, source: str, scaling: Mapping[str, Any]) -> RotaryPreset:
    """With multi-head latent attention: 64 rotated dims beside those that are not."""
    return RotaryPreset(
        64, base, length, source, pairing="interleaved", scaling=scaling, corrects_softmax=True
    )


_PHI_3_SHORT = (
    1.1,
    1.1,
    1.1,
    1.3000000000000003,
    1.3500000000000003,
    1.3500000000000003,
    1.4000000000000004,
    1.5500000000000005,
    *(2.000000000000001,) * 17,
    *(2.0500000000000007,) * 6,
    2.1000000000000005,
    2.1000000000000005,
    2.1500000000000004,
    *(2.25,) * 5,
    2.3999999999999995,
    2.4499999999999993,
    2.499999999999999,
    2.6999999999999984,
    2.6999999999999984,
    2.7499999999999982,
    2.799999999999998,
    2.8999999999999977,
    3.049999999999997,
)
_PHI_3_LONG = (
    1.0700000524520874,
    1.1200000047683716,
    1.149999976158142,
    1.4199999570846558,
    1.5699999332427979,
    1.7999999523162842,
    2.129999876022339,
    2.129999876022339,
    3.009999990463257,
    5.910000324249268,
    6.950000286102295,
    9.070000648498535,
    9.930000305175781,
    10.710000038146973,
    11.130000114440918,
    14.609999656677246,
    15.409998893737793,
    19.809999465942383,
    37.279998779296875,
    38.279998779296875,
    38.599998474121094,
    40.12000274658203,
    46.20000457763672,
    50.940006256103516,
    53.66000747680664,
    54.9373893737793,
    56.89738845825195,
    57.28738784790039,
    59.98738479614258,
    60.86738586425781,
    60.887386322021484,
    61.71739196777344,
    62.91739273071289,
    62.957393646240234,
    63.41739273071289,
    63.8173942565918,
    63.83739471435547,
    63.897396087646484,
    63.93739700317383,
    64.06739807128906,
    64.11434936523438,
    64.12435150146484,
    64.15435028076172,
    64.19435119628906,
    64.24435424804688,
    64.57435607910156,
    64.69000244140625,
    64.76000213623047,
)
_PHI_3_VISION_SHORT = (
    1.05,
    1.05,
    1.05,
    1.1,
    1.1,
    1.1,
    1.2500000000000002,
    1.2500000000000002,
    1.4000000000000004,
    1.4500000000000004,
    1.5500000000000005,
    1.8500000000000008,
    1.9000000000000008,
    *(2.000000000000001,) * 19,
    2.1000000000000005,
    2.1000000000000005,
    2.2,
    *(2.3499999999999996,) * 4,
    2.3999999999999995,
    2.3999999999999995,
    2.6499999999999986,
    2.6999999999999984,
    2.8999999999999977,
    2.9499999999999975,
    3.049999999999997,
    3.049999999999997,
    3.049999999999997,
)
_PHI_3_VISION_LONG = (
    1.0299999713897705,
    1.0499999523162842,
    1.0499999523162842,
    1.0799999237060547,
    1.2299998998641968,
    1.2299998998641968,
    1.2999999523162842,
    1.4499999284744263,
    1.5999999046325684,
    1.6499998569488525,
    1.8999998569488525,
    2.859999895095825,
    3.68999981880188,
    5.419999599456787,
    5.489999771118164,
    5.489999771118164,
    9.09000015258789,
    11.579999923706055,
    15.65999984741211,
    15.769999504089355,
    15.789999961853027,
    18.360000610351562,
    21.989999771118164,
    23.079999923706055,
    30.009998321533203,
    32.35000228881836,
    32.590003967285156,
    35.56000518798828,
    39.95000457763672,
    53.840003967285156,
    56.20000457763672,
    57.95000457763672,
    59.29000473022461,
    59.77000427246094,
    59.920005798339844,
    61.190006256103516,
    61.96000671386719,
    62.50000762939453,
    63.3700065612793,
    63.48000717163086,
    63.48000717163086,
    63.66000747680664,
    63.850006103515625,
    64.08000946044922,
    64.760009765625,
    64.80001068115234,
    64.81001281738281,
    64.81001281738281,
)
_PHI_3_5_SHORT = (
    1.0,
    1.0199999809265137,
    1.0299999713897705,
    1.0299999713897705,
    *(1.0499999523162842,) * 5,
    1.0699999332427979,
    1.0999999046325684,
    1.1099998950958252,
    1.1599998474121094,
    1.1599998474121094,
    1.1699998378753662,
    1.2899998426437378,
    1.339999794960022,
    1.679999828338623,
    1.7899998426437378,
    1.8199998140335083,
    1.8499997854232788,
    1.8799997568130493,
    1.9099997282028198,
    1.9399996995925903,
    1.9899996519088745,
    *(2.0199997425079346,) * 6,
    *(2.0299997329711914,) * 9,
    2.0799996852874756,
    2.0899996757507324,
    2.189999580383301,
    2.2199995517730713,
    2.5899994373321533,
    2.729999542236328,
    2.749999523162842,
    2.8399994373321533,
)
_PHI_3_5_LONG = (
    1.0800000429153442,
    1.1100000143051147,
    1.1399999856948853,
    1.340000033378601,
    1.5899999141693115,
    1.600000023841858,
    1.6200000047683716,
    2.620000123977661,
    3.2300000190734863,
    3.2300000190734863,
    4.789999961853027,
    7.400000095367432,
    7.700000286102295,
    9.09000015258789,
    12.199999809265137,
    17.670000076293945,
    24.46000099182129,
    28.57000160217285,
    30.420001983642578,
    30.840002059936523,
    32.590003967285156,
    32.93000411987305,
    42.320003509521484,
    44.96000289916992,
    50.340003967285156,
    50.45000457763672,
    57.55000305175781,
    57.93000411987305,
    58.21000289916992,
    60.1400032043457,
    62.61000442504883,
    62.62000274658203,
    62.71000289916992,
    63.1400032043457,
    63.1400032043457,
    63.77000427246094,
    63.93000411987305,
    63.96000289916992,
    63.970001220703125,
    64.02999877929688,
    64.06999969482422,
    64.08000183105469,
    64.12000274658203,
    64.41000366210938,
    64.4800033569336,
    64.51000213623047,
    64.52999877929688,
    64.83999633789062,
)
_PHI_4_MINI_LONG = (
    1.0,
    1.118320672,
    1.250641126,
    1.398617824,
    1.564103225,
    1.74916897,
    1.956131817,
    2.187582649,
    2.446418898,
    2.735880826,
    3.059592084,
    3.421605075,
    3.826451687,
    4.279200023,
    4.785517845,
    5.351743533,
    5.984965424,
    6.693110555,
    7.485043894,
    8.370679318,
    9.36110372,
    10.4687158,
    11.70738129,
    13.09260651,
    14.64173252,
    16.37415215,
    18.31155283,
    20.47818807,
    22.90118105,
    25.61086418,
    28.64115884,
    32.03,
    32.1,
    32.13,
    32.23,
    32.6,
    32.61,
    32.64,
    32.66,
    32.7,
    32.71,
    32.93,
    32.97,
    33.28,
    33.49,
    33.5,
    44.16,
    47.77,
)

_PRESETS: Mapping[str, RotaryPreset] = MappingProxyType(
    {
        "roformer": RotaryPreset(
            64, 1e4, 1536, "junnyu/roformer_chinese_base", pairing="interleaved"
        ),
        "gpt-j": RotaryPreset(
            256, 1e4, 2048, "EleutherAI/gpt-j-6b", pairing="interleaved", rotary_dim=64
        ),
        "gpt-neox-20b": RotaryPreset(96, 1e4, 2048, "EleutherAI/gpt-neox-20b", rotary_dim=24),
        "llama-2": RotaryPreset(128, 1e4, 4096, "meta-llama/Llama-2-*-hf"),
        "llama-3": RotaryPreset(128, 5e5, 8192, "meta-llama/Meta-Llama-3-*"),
        "llama-3.1": RotaryPreset(128, 5e5, 131072, "meta-llama/Llama-3.1-*", scaling=_llama3(8.0)),
        "llama-3.2-1b": RotaryPreset(
            64, 5e5, 131072, "meta-llama/Llama-3.2-1B", scaling=_llama3(32.0)
        ),
        "llama-3.2-3b": RotaryPreset(
            128, 5e5, 131072, "meta-llama/Llama-3.2-3B", scaling=_llama3(32.0)
        ),
        "llama-3.3": RotaryPreset(
            128, 5e5, 131072, "meta-llama/Llama-3.3-70B-Instruct", scaling=_llama3(8.0)
        ),
        "llama-4-scout": RotaryPreset(
            128,
            5e5,
            10485760,
            "meta-llama/Llama-4-Scout-17B-16E-Instruct",
            pairing="interleaved",
            scaling=_llama3(16.0, high=1.0),
            nope="every fourth layer",
        ),
        "llama-4-maverick": RotaryPreset(
            128,
            5e5,
            1048576,
            "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
            pairing="interleaved",
            nope="every fourth layer",
        ),
        "mistral-7b-v0.1": RotaryPreset(128, 1e4, 32768, "mistralai/Mistral-7B-v0.1"),
        "mistral-7b-v0.3": RotaryPreset(128, 1e6, 32768, "mistralai/Mistral-7B-v0.3"),
        "mixtral-8x7b": RotaryPreset(128, 1e6, 32768, "mistralai/Mixtral-8x7B-v0.1"),
        "mistral-nemo": RotaryPreset(128, 1e6, 131072, "mistralai/Mistral-Nemo-Instruct-2407"),
        "mistral-small-3.1": RotaryPreset(
            128, 1e9, 131072, "mistralai/Mistral-Small-3.1-24B-Instruct-2503"
        ),
        # mscale_all_dim without the softmax correction of the models with latent attention.
        "ministral-3": RotaryPreset(
            128,
            1e6,
            262144,
            "mistralai/Ministral-3-*-2512; Ministral3Config",
            scaling=_yarn(
                16.0, 16384, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0
            ),
        ),
        "mistral-4": _latent(
            1e4,
            1048576,
            "Mistral4Config",
            _yarn(128.0, 8192, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0),
        ),
        "qwen2.5": RotaryPreset(128, 1e6, 32768, "Qwen/Qwen2.5-7B-Instruct"),
        "qwen2.5-yarn": RotaryPreset(
            128,
            1e6,
            131072,
            "Qwen/Qwen2.5-7B-Instruct, as its README says for long texts",
            scaling=_yarn(4.0, 32768),
        ),
        "qwen2-vl": RotaryPreset(
            128, 1e6, 32768, "Qwen/Qwen2-VL-7B-Instruct", mrope=((16, 24, 24), "sectioned")
        ),
        "qwen2.5-vl": RotaryPreset(
            128, 1e6, 128000, "Qwen/Qwen2.5-VL-7B-Instruct", mrope=((16, 24, 24), "sectioned")
        ),
        "qwen3": RotaryPreset(128, 1e6, 40960, "Qwen/Qwen3-8B"),
        "qwen3-yarn": RotaryPreset(
            128,
            1e6,
            131072,
            "Qwen/Qwen3-8B, as its README says for long texts",
            scaling=_yarn(4.0, 32768),
        ),
        "qwen3-next": RotaryPreset(
            256, 1e7, 262144, "Qwen/Qwen3-Next-80B-A3B-Instruct", rotary_dim=64
        ),
        "qwen3-vl": RotaryPreset(
            128, 5e6, 262144, "Qwen/Qwen3-VL-8B-Instruct", mrope=((24, 20, 20), "interleaved")
        ),
        "deepseek-v2": _latent(
            1e4,
            163840,
            "deepseek-ai/DeepSeek-V2",
            _yarn(40, 4096, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0),
        ),
        "deepseek-v2-lite": _latent(
            1e4,
            163840,
            "deepseek-ai/DeepSeek-V2-Lite",
            _yarn(40, 4096, beta_fast=32, beta_slow=1, mscale=0.707, mscale_all_dim=0.707),
        ),
        "deepseek-v3": _latent(
            1e4,
            163840,
            "deepseek-ai/DeepSeek-V3",
            _yarn(40, 4096, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0),
        ),
        "deepseek-r1": _latent(
            1e4,
            163840,
            "deepseek-ai/DeepSeek-R1",
            _yarn(40, 4096, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0),
        ),
        "kimi-k2": _latent(
            5e4,
            131072,
            "moonshotai/Kimi-K2-Instruct",
            _yarn(32.0, 4096, beta_fast=1.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0),
        ),
        "phi-2": RotaryPreset(80, 1e4, 2048, "microsoft/phi-2", rotary_dim=32),
        "phi-3-mini-4k": RotaryPreset(96, 1e4, 4096, "microsoft/Phi-3-mini-4k-instruct"),
        "phi-3-mini-128k": RotaryPreset(
            96,
            1e4,
            131072,
            "microsoft/Phi-3-mini-128k-instruct",
            scaling=_longrope(_PHI_3_SHORT, _PHI_3_LONG),
        ),
        "phi-3-vision-128k": RotaryPreset(
            96,
            1e4,
            131072,
            "microsoft/Phi-3-vision-128k-instruct",
            scaling=_longrope(_PHI_3_VISION_SHORT, _PHI_3_VISION_LONG),
        ),
        "phi-3.5-mini": RotaryPreset(
            96,
            1e4,
            131072,
            "microsoft/Phi-3.5-mini-instruct",
            scaling=_longrope(_PHI_3_5_SHORT, _PHI_3_5_LONG),
        ),
        "phi-4": RotaryPreset(128, 2.5e5, 16384, "microsoft/phi-4"),
        "phi-4-mini": RotaryPreset(
            128,
            1e4,
            131072,
            "microsoft/Phi-4-mini-instruct",
            rotary_dim=96,
            scaling=_longrope((1.0,) * 48, _PHI_4_MINI_LONG),
        ),
        "gpt-oss": RotaryPreset(
            64,
            1.5e5,
            131072,
            "openai/gpt-oss-20b, -120b",
            scaling=_yarn(32.0, 4096, beta_fast=32.0, beta_slow=1.0, truncate=False),
        ),
        "gemma-3-1b": _gemma3(256, 32768, None),
        "gemma-3-4b": _gemma3(256, 131072, 8.0),
        "gemma-3-12b": _gemma3(256, 131072, 8.0),
        "gemma-3-27b": _gemma3(128, 131072, 8.0),
        "gemma-4": RotaryPreset(
            256,
            1e6,
            131072,
            "Gemma4TextConfig",
            layers={
                "full_attention": {
                    "head_dim": 512,
                    "scaling": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
                },
                "sliding_attention": {"base": 1e4},
            },
        ),
        "glm-4": RotaryPreset(
            128, 1e4, 32768, "zai-org/GLM-4-9B-0414", pairing="interleaved", rotary_dim=64
        ),
        "glm-4.5": RotaryPreset(128, 1e6, 131072, "zai-org/GLM-4.5", rotary_dim=64),
        "command-r": RotaryPreset(
            128, 8e6, 131072, "CohereLabs/c4ai-command-r-v01", pairing="interleaved"
        ),
        "olmo-3": RotaryPreset(
            128,
            5e5,
            65536,
            "allenai/Olmo-3-*",
            layers={
                "full_attention": {
                    "scaling": _yarn(
                        8.0,
                        8192,
                        beta_fast=32.0,
                        beta_slow=1.0,
                        attention_factor=1.2079441541679836,
                    )
                },
                "sliding_attention": {},
            },
        ),
        "smollm3": RotaryPreset(
            128, 5e6, 65536, "HuggingFaceTB/SmolLM3-3B", nope="every fourth layer"
        ),
        "modernbert": RotaryPreset(
            64,
            1.6e5,
            8192,
            "answerdotai/ModernBERT-base",
            layers={"full_attention": {}, "sliding_attention": {"base": 1e4}},
        ),
    }
)
