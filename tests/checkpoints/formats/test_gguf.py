"""GGUF files: read as llama.cpp computes, and compared with what their converter made them of."""

import math

import numpy as np
import pytest
from published import PUBLISHED, QWEN_YARN, sizes

import posenc_native as pn
from posenc_native.checkpoints.formats.description import at_length
from posenc_native.core.calls.errors import fault_of

pytest.importorskip("gguf")
from gguf_files import converted, llama3, write_gguf

SIZES = {
    "block_count": 6, "context_length": 131072, "embedding_length": 1024, "attention.head_count": 8,
}  # fmt: skip
# Of a token in time, height, width and the fourth axis; text has the same in the first three.
POSITIONS = np.array(
    [[0, 1, 7, 4095, 20000, 131071], [0, 2, 5, 4000, 20011, 131000],
     [0, 3, 11, 3999, 20047, 130000], [0, 4, 13, 4001, 20101, 120000]]
)  # fmt: skip


@pytest.fixture
def write(tmp_path):
    """A file of an architecture, its keys given without the name; None leaves a key out."""

    def write(arch, given, factors=None):
        metadata = {f"{arch}.{key}": value for key, value in given.items() if value is not None}
        metadata["general.architecture"] = arch
        tensors = {f"{name}.weight": values for name, values in (factors or {}).items()}
        return str(write_gguf(tmp_path / f"{arch}.gguf", metadata, tensors))

    return write


# --- What llama.cpp computes: llama_context, ggml_rope_cache_init, rope_yarn


def axis_of(pair, rope, sections):
    if rope in ("norm", "neox"):
        return 0
    sector = pair % sum(sections)
    if rope == "imrope":
        return sector % 3 if sector < 3 * sections[sector % 3] else 3
    return sum(sector >= sum(sections[: axis + 1]) for axis in range(3))


def turned(
    given, factors, rope, *, base=None, dims=128, betas=(32, 1), log=0, both=False, scaled=True,
    plain=False, grows=True, blends=True,
):  # fmt: skip
    """Cosines, sines and angles, one a pair, for each of POSITIONS.

    log: what the code multiplies yarn_log_multiplier by; both: it is mscale as well. plain: the
    graph gives the layer no scaling and no magnitude; not scaled, not grows: one of the two. Not
    blends: the file switches YaRN off beside its type.
    """
    base = base or given.get("rope.freq_base", 1e4)
    kind = given.get("rope.scaling.type", "linear")
    factor = given.get("rope.scaling.factor", given.get("rope.scale_linear", 1.0))
    factor = 1.0 if kind == "none" else factor
    yarn = kind == "yarn" and blends and not plain

    def grown(weight):
        return 1 + 0.1 * weight * math.log(factor) if factor > 1 else 1.0

    magnitude = 1.0 if blends else given["rope.scaling.yarn_attn_factor"]
    if yarn:
        weight = float(np.float32(log * given.get("rope.scaling.yarn_log_multiplier", 0.0)))
        magnitude = grown(weight if both else 1.0) / grown(weight) if weight else grown(1.0)
        magnitude /= 1 + 0.1 * math.log(factor)
    magnitude *= 1.0 if plain else given.get("rope.scaling.attn_factor", 1.0)
    slowed = 1 / factor if scaled and not plain else 1.0
    if yarn:
        magnitude *= 1 + 0.1 * math.log(1 / slowed)
    magnitude = magnitude if grows else 1.0
    trained = given.get("rope.scaling.original_context_length", given["context_length"])
    edges = [dims * math.log(trained / (2 * math.pi * b)) / (2 * math.log(base)) for b in betas]
    low, high = max(0, math.floor(edges[0])), min(dims - 1, math.ceil(edges[1]))
    sections = given.get("rope.dimension_sections", [0] * 4)
    sections = sections if isinstance(sections, list) else [sections] * 4
    angles = []
    for pair in range(dims // 2):
        angle = POSITIONS[axis_of(pair, rope, sections)] * base ** (-2 * pair / dims)
        if factors is not None:
            angle = angle / np.float64(np.float32(factors[pair]))
        ramp = 1 - min(1, max(0, (pair - low) / max(0.001, high - low)))
        mix = ramp if yarn else 0.0
        angles.append(slowed * angle * (1 - mix) + angle * mix)
    angles = np.stack(angles, 1)
    return magnitude * np.cos(angles), magnitude * np.sin(angles), magnitude * angles


def yarn(factor, trained=32768, **others):
    others = {f"rope.scaling.{key}": value for key, value in others.items()}
    return {"rope.scaling.type": "yarn", "rope.scaling.factor": factor,
            "rope.scaling.original_context_length": trained, **others}  # fmt: skip


WAVES = (1.5 + np.sin(np.arange(256))).tolist()
LONG = {
    "rope_factors_short": np.linspace(1, 1.4, 48).tolist(),
    "rope_factors_long": np.geomspace(1, 64, 48).tolist(),
}
PHI = {"rope.dimension_count": 96, "rope.scaling.original_context_length": 4096,
       "rope.scaling.attn_factor": 1.1902381}  # fmt: skip
LATENT = {"attention.key_length": 576, "attention.key_length_mla": 192, "rope.dimension_count": 64}
GEMMA = {"rope.freq_base": 1e6, "attention.sliding_window": 1024}
GEMMA4 = {
    "attention.key_length": 512, "rope.dimension_count": 512, "rope.freq_base": 1e6,
    "attention.key_length_swa": 256, "rope.dimension_count_swa": 256, "rope.freq_base_swa": 2e4,
    "attention.sliding_window_pattern": [True] * 5 + [False],
}  # fmt: skip
GROK = {
    "yarn_beta_fast": 6.0, "yarn_beta_slow": 2.0, "yarn_ext_factor": 1.0, "yarn_attn_factor": 3.0,
}  # fmt: skip
SLIDES = {"attention.sliding_window": 4096}
GLM = {"rope.dimension_count": 64}
SCALED, DEEP = yarn(40.0, 4096), yarn(40.0, 4096, yarn_log_multiplier=0.1)

# Architecture, keys, tensors, and what `turned` is to be told of some layers; None: not rotated.
CASES = {
    "llama3": ("llama", {"rope.freq_base": 5e5}, {"rope_freqs": llama3(8.0)}, {0: {}}),
    "llama3, step": ("llama4", {"rope.freq_base": 5e5}, {"rope_freqs": llama3(16.0, 1.0)},
                     {0: {}, 2: {}, 3: None}),
    "factors of no formula": ("llama", {}, {"rope_freqs": WAVES}, {5: {}}),
    "factors and linear": ("llama", {"rope.scaling.factor": 4.0}, {"rope_freqs": WAVES}, {0: {}}),
    "factors and yarn": ("llama", yarn(4.0), {"rope_freqs": WAVES}, {0: {}}),
    "factors not read": ("qwen2", {}, {"rope_freqs": WAVES}, {0: {"chosen": None}}),
    "plain": ("qwen2", {"rope.freq_base": 1e6}, {}, {0: {}}),
    "no base": ("qwen2", {}, {}, {0: {}}),
    "yarn": ("qwen2", yarn(4.0), {}, {0: {}}),
    "yarn, magnitude": ("qwen2", yarn(4.0, attn_factor=0.75), {}, {0: {}}),
    "yarn, betas not read": ("qwen2", yarn(4.0, **GROK), {}, {0: {}}),
    "yarn, context_length": ("qwen2", yarn(4.0, None), {}, {0: {}}),
    "linear": ("qwen2", {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}, {}, {0: {}}),
    "linear by default": ("qwen2", {"rope.scaling.factor": 8.0}, {}, {0: {}}),
    "old linear": ("qwen2", {"rope.scale_linear": 2.0}, {}, {0: {}}),
    "old and new": ("qwen2", {"rope.scale_linear": 2.0, "rope.scaling.factor": 4.0}, {}, {0: {}}),
    "none": ("qwen2", {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {}, {0: {}}),
    "longrope": ("phi3", PHI, LONG, {0: {"dims": 96}}),
    "longrope, longer": ("phi3", PHI, LONG, {0: {"dims": 96, "length": 4097}}),
    "longrope, not longer": ("phi3", PHI, LONG, {0: {"dims": 96, "length": 4096}}),
    "longrope by type": ("llama", {**PHI, "rope.scaling.type": "longrope"},
                         {**LONG, "rope_freqs": WAVES}, {0: {"dims": 96, "length": 4097}}),
    "longrope, factor": ("phi3", {**PHI, "rope.scaling.factor": 2.0}, LONG, {0: {"dims": 96}}),
    "two bases": ("gemma3", {**GEMMA, "rope.scaling.factor": 8.0, "rope.freq_base_swa": 2e4}, {},
                  {4: {"base": 2e4, "scaled": False}, 5: {}}),
    "sliding base by default": ("gemma3", GEMMA, {}, {0: {"base": 1e4}, 5: {}}),
    "no sliding layers": ("gemma3", {"rope.freq_base": 1e6}, {}, {0: {}, 5: {}}),
    "sliding heads": ("gemma3", {**GEMMA, "attention.key_length": 128,
                                 "attention.key_length_swa": 256}, {}, {0: {"base": 1e4}, 5: {}}),
    "period": ("gemma3", {**GEMMA, "attention.sliding_window_pattern": 3}, {},
               {0: {"base": 1e4}, 2: {}, 5: {}}),
    "yarn, sliding": ("gemma3", {**GEMMA, **yarn(4.0, attn_factor=1.5)}, {},
                      {0: {"base": 1e4, "scaled": False}, 5: {}}),
    "yarn, sliding alike": ("gpt-oss", {**yarn(32.0, 4096), **SLIDES}, {}, {0: {}, 1: {}}),
    "yarn, sliding plain": ("olmo2", {**SCALED, **SLIDES}, {}, {0: {"plain": True}, 3: {}}),
    "yarn, mellum": ("mellum", {**SCALED, **SLIDES}, {}, {0: {"plain": True}, 3: {}}),
    "full first": ("modern-bert", {**GEMMA, "rope.freq_base": 1.6e5}, {},
                   {0: {}, 1: {"base": 1e4}, 2: {"base": 1e4}, 3: {}}),
    "share": ("gptneox", {"rope.dimension_count": 32}, {}, {0: {"dims": 32}}),
    "last layers": ("deepseek4", {**SCALED, "attention.key_length": 512, **GLM,
                                  "attention.compress_ratios": [0, 4, 4, 128, 4, 0],
                                  "attention.compress_rope_freq_base": 1.6e5}, {},
                    {0: {"dims": 64, "plain": True, "start": 448},
                     1: {"dims": 64, "base": 1.6e5, "grows": False, "start": 448}}),
    "mscale_all_dim": ("deepseek2", {**LATENT, **DEEP}, {}, {0: {"dims": 64, "log": 10}}),
    "mscale_all_dim, both": ("deepseek2", {**LATENT, **yarn(40.0, yarn_log_multiplier=0.07)}, {},
                             {0: {"dims": 64, "log": 10, "both": True}}),
    "mscale_all_dim, alone": ("mistral4", {**LATENT, **yarn(40.0, yarn_log_multiplier=0.07)}, {},
                              {0: {"dims": 64, "log": 10}}),
    "no mscale_all_dim": ("deepseek2", {**LATENT, **SCALED}, {}, {0: {"dims": 64}}),
    "betas": ("grok", yarn(16.0, 8192, **GROK), {}, {0: {"betas": (6, 2)}}),
    "betas not needed": ("grok", yarn(16.0, **{**GROK, "yarn_ext_factor": 0.0}), {},
                         {0: {"blends": False}}),
    "betas by default": ("grok", yarn(16.0, 8192), {}, {0: {"betas": (8, 1)}}),
    "betas, mistral3": ("mistral3", yarn(16.0, 16384, yarn_log_multiplier=1.0, **GROK), {},
                        {0: {"betas": (6, 2), "log": 1}}),
    "sections": ("qwen2vl", {"rope.dimension_sections": [16, 24, 24, 0]}, {}, {0: {}}),
    "sections, one number": ("paddleocr", {"rope.dimension_sections": 8}, {}, {0: {}}),
    "sections by turns": ("qwen3vl", {"rope.dimension_sections": [24, 20, 20, 0]}, {}, {0: {}}),
    "sections by turns, all": ("qwen35", {"rope.dimension_sections": [11, 11, 10, 0], **GLM}, {},
                               {2: "no attention", 3: {"dims": 64}}),
    "no sections": ("glm4", GLM, {}, {0: {"dims": 64}}),
    "sections that decide": ("glm4", {**GLM, "rope.dimension_sections": [8, 12, 12, 0]}, {},
                             {0: {"dims": 64, "rope": "mrope"}}),
    "still pairs": ("gemma4", GEMMA4, {"rope_freqs": [1.0] * 64 + [1e30] * 192},
                    {0: {"dims": 256, "base": 2e4, "chosen": None}, 5: {"dims": 512}}),
    "every 4th": ("smollm3", {}, {}, {2: {}, 3: None}),
    "full without": ("cohere2", SLIDES, {}, {2: {}, 3: None}),
    "full without, of 64": ("exaone4", {**SLIDES, "block_count": 64}, {}, {2: {}, 3: None}),
    "full with": ("exaone4", SLIDES, {}, {2: {}, 3: {}}),
    "without in code": ("llama4", {**SLIDES, "attention.sliding_window": 0}, {}, {3: {}, 5: None}),
    "heads by layer": ("deci", {"attention.head_count": [8, 0, 8, 8, 8, 8],
                                "attention.head_count_kv": [8, 0, 0, 8, 8, 8]}, {},
                       {0: {}, 1: "no attention", 2: "no attention"}),
    "last are drafts": ("glm4moe", {"nextn_predict_layers": 1}, {}, {4: {}, 5: "no attention"}),
    "trained without": ("granite", {"rope.scaling.finetuned": True}, {}, {0: {}}),
    "whole head, no scaling": ("deepseek2-ocr", {**SCALED, "rope.dimension_count": 64}, {},
                               {0: {"plain": True}}),
}  # fmt: skip
ROPES = {
    "norm": "llama llama4 deepseek2 deepseek4 mistral3 mistral4 glm4 smollm3 cohere2 deci granite",
    "mrope": "qwen2vl paddleocr", "imrope": "qwen3vl qwen35",
}  # fmt: skip


def expected(arch, given, factors, *, length=None, start=0, **options):
    """Cosines, sines, angles, and the attributes of the Rotary."""
    rope = next((rope for rope, names in ROPES.items() if arch in names.split()), "neox")
    rope = options.pop("rope", rope)
    given = {key: float(np.float32(value)) if isinstance(value, float) else value
             for key, value in given.items() if value is not None}  # fmt: skip
    chosen = factors.get("rope_freqs")
    if "rope_factors_long" in factors:
        short = (length or 0) <= given["rope.scaling.original_context_length"]
        chosen = factors["rope_factors_short" if short else "rope_factors_long"]
    tables = turned(given, options.pop("chosen", chosen), rope, **options)
    pairing = "interleaved" if rope == "norm" else "half"
    return tables, (pairing, start, options.get("dims", 128))


@pytest.mark.parametrize("case", CASES)
def test_as_llama_cpp_computes(write, case):
    arch, given, factors, layers = CASES[case]
    given = {**SIZES, **given}
    explained = pn.explain(write(arch, given, factors))
    found = {i: group for group in explained.description.groups for i in group.layers}
    for layer, options in layers.items():
        if options in (None, "no attention"):
            assert (layer in found, layer in explained.nope_layers) == (options is None,) * 2
            continue
        (cos, sin, angles), attributes = expected(arch, given, factors, **options)
        rotary = pn.Rotary(**at_length(found[layer].arguments, options.get("length") or 1))
        assert (rotary.pairing, rotary.rotary_start, rotary.rotary_dim) == attributes
        at = POSITIONS[0] if rotary.axis_map is None else POSITIONS
        # Blended factors stand in the file as float32; cosines of float64 angles are not exact.
        slack = 1e-12 + np.abs(angles) * (1.2e-7 if "rope_freqs" in factors else 4e-15)
        for table, wanted in zip(rotary.tables(at, dtype=np.float64), (cos, sin), strict=True):
            assert (np.abs(table - wanted) <= slack).all()


GROWN = (1 + 0.1 * math.log(40)) ** 2
CORRECTIONS = {
    "read": ("deepseek2", DEEP, GROWN),
    "read, less": ("deepseek2", yarn(40.0, yarn_log_multiplier=0.07),
                   (1 + 0.07 * math.log(40)) ** 2),
    "less, alone": ("mistral4", yarn(40.0, yarn_log_multiplier=0.07), GROWN),
    "not there": ("deepseek2", SCALED, GROWN),
    "linear": ("deepseek2", {"rope.scaling.factor": 40.0}, GROWN),
    "and a magnitude": ("deepseek2", yarn(40.0, yarn_log_multiplier=0.1, attn_factor=0.5),
                        GROWN / 4),
    "not scaled": ("deepseek2", {}, 1.0),
    "not read": ("glm-dsa", yarn(40.0, yarn_log_multiplier=0.2), GROWN),
    "not applied": ("minicpm3", SCALED, 1.0),
    "latent, not applied": ("hy_v4", SCALED, 1.0),
}  # fmt: skip


@pytest.mark.parametrize("case", CORRECTIONS)
def test_softmax_scales(write, case):
    arch, given, wanted = CORRECTIONS[case]
    explained = pn.explain(write(arch, {**SIZES, **LATENT, **given}))
    assert explained.layers[0].softmax_correction == pytest.approx(wanted, rel=1e-6)


# --- What llama.cpp's converter makes of a configuration


def of(name, **changes):
    """A published configuration with a number of layers, and changes."""
    return {"num_hidden_layers": 12, "sliding_window": 4096, **PUBLISHED[name], **changes}


COHERE2 = {"model_type": "cohere2", **sizes(4096, 32, 5e4, 8192), "num_hidden_layers": 8,
           "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2}  # fmt: skip
HYBRID = (["linear_attention"] * 3 + ["full_attention"]) * 3
# By architecture: converted as they are, and with permuted weights.
PLAIN = {
    "qwen2": "qwen2.5 qwen2.5-yarn", "qwen2vl": "qwen2-vl qwen2.5-vl", "qwen3": "qwen3 qwen3-yarn",
    "deepseek2": "deepseek-v2 deepseek-v2-lite deepseek-v3", "mistral4": "mistral-4",
    "phi2": "phi-2", "phi3": "phi-3-mini-4k phi-3-mini-128k phi-3.5-mini phi-4 phi-4-mini",
    "gemma3": "gemma-3-1b gemma-3-4b gemma-3-27b", "gemma4": "gemma-4", "gptneox": "gpt-neox-20b",
    "glm4": "glm-4", "glm4moe": "glm-4.5", "command-r": "command-r", "olmo2": "olmo-3",
    "llama4": "llama-4-scout llama-4-maverick", "modern-bert": "modernbert",
}  # fmt: skip
PERMUTED = {
    "llama": "llama-2 llama-3 llama-3.1 llama-3.2-1b llama-3.2-3b llama-3.3 mistral-7b-v0.3 "
    "mixtral-8x7b mistral-nemo",
    "mistral3": "ministral-3",
    "smollm3": "smollm3",
}
ALIKE = {
    **{name: (of(name), arch, False) for arch, names in PLAIN.items() for name in names.split()},
    **{name: (of(name), arch, True) for arch, names in PERMUTED.items() for name in names.split()},
    "cohere2": (COHERE2, "cohere2", False),
    "qwen3-next": (of("qwen3-next", layer_types=HYBRID), "qwen3next", False),
}


def fields(found):
    return {difference.field for difference in found.differences}


@pytest.mark.parametrize("name", ALIKE)
def test_converted_models_rotate_alike(write, name):
    config, arch, permuted = ALIKE[name]
    path = write(arch, *converted(config, arch))
    found = pn.compare(config, path, permuted=permuted)
    assert found.alike, str(found)
    found = pn.compare(config, path)
    assert fields(found) == ({"pairing"} if permuted else set())
    assert found.verdict == ("alike if permuted" if permuted else "alike")


ROPE = "rope.scaling."
# Configuration, architecture, changes to the keys, and the fields that differ.
LOST = {
    "base": (of("qwen2.5"), "qwen2", {"rope.freq_base": None}, {"base"}),
    "base beside factors": (of("llama-3.1"), "llama", {"rope.freq_base": None}, {"base"}),
    "another base": (of("qwen2.5"), "qwen2", {"rope.freq_base": 1e5}, {"base"}),
    "truncate": (of("gpt-oss"), "gpt-oss", {}, {"scaling"}),
    "fourth axis": (of("qwen3-vl"), "qwen3vl", {}, {"axis_map"}),
    "sections": (of("qwen2-vl"), "qwen2vl", {"rope.dimension_sections": [24, 20, 20, 0]},
                 {"axis_map"}),
    "axes": (of("qwen2-vl"), "qwen2", {}, {"axis_map"}),
    "linear factor": (of("gemma-3-4b"), "gemma3", {f"{ROPE}factor": 4.0}, {"scaling"}),
    "yarn factor": (of("qwen3-yarn"), "qwen3", {f"{ROPE}factor": 2.0}, {"scaling", "scale"}),
    "yarn": (of("qwen3-yarn"), "qwen3", {f"{ROPE}type": "none"}, {"scaling", "scale"}),
    "trained length": (of("qwen3-yarn"), "qwen3", {f"{ROPE}original_context_length": None},
                       {"scaling"}),
    "betas": (of("kimi-k2"), "deepseek2", {}, {"scaling"}),
    "llama3": (of("llama-3.1"), "nanbeige", {}, set()),
    "llama3, not read": (of("llama-3.1"), "smollm3", {}, {"scaling", "nope_layers"}),
    "dynamic": (of("qwen2.5", rope_scaling={"type": "dynamic", "factor": 2.0}), "qwen2", {},
                {"scaling"}),
    "share": (of("gpt-neox-20b"), "gptneox", {"rope.dimension_count": None}, {"rotary_dim"}),
    "head": (of("mistral-nemo"), "llama", {"attention.key_length": 160,
                                           "rope.dimension_count": None},
             {"head_dim", "rotary_dim"}),
    "nope": (of("smollm3"), "llama", {}, {"nope_layers"}),
    "nope of its own": (of("smollm3", no_rope_layers=[1] * 36), "smollm3", {}, {"nope_layers"}),
    "nope, full": (COHERE2, "command-r", {}, {"nope_layers"}),
    "sliding base": (of("gemma-3-4b", rope_local_base_freq=2e4), "gemma3",
                     {"rope.freq_base_swa": None}, {"base"}),
    "sliding layers": (of("gemma-3-1b"), "gemma3", {"attention.sliding_window": None}, {"base"}),
    "sliding period": (of("gemma-3-1b"), "gemma3", {"attention.sliding_window_pattern": 4},
                       {"base"}),
    "sliding scaled": (of("olmo-3"), "gemma2", {"attention.sliding_window_pattern": 4},
                       {"scaling", "scale"}),
    "magnitude of longrope": (of("phi-3.5-mini"), "phi3", {f"{ROPE}attn_factor": None}, {"scale"}),
    "magnitude of yarn": (of("qwen3-yarn", rope_scaling={**QWEN_YARN, "attention_factor": 1.5}),
                          "qwen3", {}, {"scale"}),
    "mscale": (of("deepseek-v3"), "deepseek2", {f"{ROPE}yarn_log_multiplier": None}, {"scale"}),
    "mscale, less": (of("deepseek-v2-lite"), "deepseek2", {f"{ROPE}yarn_log_multiplier": None},
                     {"scale", "softmax_correction"}),
    "another mscale": (of("deepseek-v3"), "deepseek2", {f"{ROPE}yarn_log_multiplier": 0.0707},
                       {"softmax_correction"}),
    "layers": (of("qwen2.5"), "qwen2", {"block_count": 24}, {"layer_count"}),
    "kinds of layers": (of("qwen3-next", full_attention_interval=3), "qwen3next", {},
                        {"layer_types"}),
}  # fmt: skip


@pytest.mark.parametrize("case", LOST)
def test_what_conversion_loses(write, case):
    config, arch, changes, wanted = LOST[case]
    given, factors = converted(config, arch)
    found = pn.compare(config, write(arch, {**given, **changes}, factors), permuted=True)
    assert fields(found) == wanted, str(found)


def test_words_for_a_base_that_is_not_there(write):
    found = pn.compare(of("qwen2.5"), write("qwen2", SIZES))
    said = [each.words[1] for each in found.differences if each.field == "base"]
    assert said == ["10,000 (not in the file; llama.cpp defaults to 10,000)"]


HF = of("llama-3.1")


@pytest.mark.parametrize(
    ("changes", "factors", "said"),
    [
        # Factors of the base 500,000 on a base that is lost: only the base is wrong.
        ({"rope.freq_base": 1e4}, llama3(8.0),
         {"base": ("500,000 (rope_theta)", "10,000 (llama.rope.freq_base)")}),
        ({"rope.freq_base": None}, llama3(8.0),
         {"base": ("500,000 (rope_theta)",
                   "10,000 (not in the file; llama.cpp defaults to 10,000)")}),
        ({"rope.freq_base": 1e4}, WAVES,
         {"base": ("500,000 (rope_theta)", "10,000 (llama.rope.freq_base)"), "inv_freq": None}),
        ({}, WAVES, {"inv_freq": None}),
        ({"rope.freq_base": 1e4, "rope.scaling.factor": 4.0}, llama3(8.0),
         {"base": ("500,000 (rope_theta)", "10,000 (llama.rope.freq_base)"), "inv_freq": None}),
        ({}, llama3(4.0), {"scaling": ("llama3, factor 8 (rope_scaling)",
                                       "llama3, factor 4 (rope_freqs.weight)")}),
        ({}, None, {"scaling": ("llama3, factor 8 (rope_scaling)",
                                "none (no llama.rope.scaling.type and no rope_freqs.weight)")}),
        ({"rope.scaling.type": "none"}, None,
         {"scaling": ("llama3, factor 8 (rope_scaling)", "none (llama.rope.scaling.type)")}),
        ({"rope.scale_linear": 4.0}, None,
         {"scaling": ("llama3, factor 8 (rope_scaling)",
                      "linear, factor 4 (llama.rope.scale_linear)")}),
    ],
)  # fmt: skip
def test_the_wrong_key_or_tensor_is_named(write, changes, factors, said):
    """By the names that the file has, base and factors apart."""
    given, _ = converted(HF, "llama")
    tensors = {} if factors is None else {"rope_freqs": factors}
    found = pn.compare(HF, write("llama", {**given, **changes}, tensors), permuted=True)
    assert fields(found) == {*said}, str(found)
    for difference in found.differences:
        assert said[difference.field] in (None, difference.words)


def test_factors_that_no_scaling_gives_are_shown_with_their_base(write):
    path = write("llama", {**SIZES, "rope.freq_base": 2e4}, {"rope_freqs": [1.0] * 32 + [8.0] * 32})
    found = pn.explain(path)
    assert "(base 20,000)" in found.text(10**4)
    said = "Every frequency is divided by its own factor, 1 to 8 (rope_freqs.weight)."
    assert found.layers[0].facts[-1] == said
    rotary = found.to_dict()["layers"][0]["rotary"]
    assert rotary["base"] == found.layers[0].base == 2e4
    np.testing.assert_allclose(rotary["factors"], [1.0] * 32 + [8.0] * 32, rtol=1e-12)
    path = write("llama", {**SIZES, "rope.scaling.factor": 4.0}, {"rope_freqs": [1.0, 8.0] * 32})
    said = "by its own factor, 4 to 32 (rope_freqs.weight and llama.rope.scaling.factor)."
    assert pn.explain(path).layers[0].facts[-1].endswith(said)
    # A pair that does not turn has no factor in JSON, and one of a known scaling has none.
    path = write("llama", SIZES, {"rope_freqs": [1.0] * 8 + [1e30] * 56})
    assert pn.explain(path).to_dict()["layers"][0]["rotary"]["factors"] == [1.0] * 8 + [None] * 56
    for known in (llama3(8.0), llama3(16.0, 1.0)):  # Llama 4 has one bound
        path = write("llama", {**SIZES, "rope.freq_base": 5e5}, {"rope_freqs": known})
        assert pn.explain(path).to_dict()["layers"][0]["rotary"]["factors"] is None


@pytest.mark.parametrize(
    ("arch", "given", "factors", "said"),
    [
        ("qwen2", {}, {"rope_freqs": WAVES},
         "but qwen2 has no such factors in llama.cpp, which refuses files"),
        ("phi3", PHI, {"rope_freqs": WAVES, **LONG}, "The tensor rope_freqs.weight is in the file"),
        ("deci", {}, {"rope_factors_long": WAVES}, "with these settings"),
        ("llama", {}, {"rope_freqs": WAVES}, None),
    ],
)  # fmt: skip
def test_factors_that_llama_cpp_does_not_read_are_a_remark(write, arch, given, factors, said):
    path = write(arch, {**SIZES, **given}, factors)
    remarks = [each for each in pn.explain(path).warnings if "is in the file" in each]
    assert len(remarks) == (said is not None)
    assert all(said in each for each in remarks)
    assert not remarks or f"{path}: {remarks[0]}" in pn.compare(path, path).notes


def test_weights_of_gguf_files_are_not_asked_for(write, tmp_path):
    """Neither by the text of a permutation, nor with a message about a header of safetensors."""
    pytest.importorskip("safetensors")
    given, factors = converted(HF, "llama")
    path = write("llama", given, factors)
    (difference,) = pn.compare(HF, path).differences
    assert difference.expected
    assert "(permuted=True); weights in the GGUF file cannot be checked." in difference.comment
    with pytest.raises(ValueError, match="got a GGUF file; its weights cannot be read") as caught:
        pn.compare(HF, path, weights=[None, path])
    assert "--permuted" in fault_of(caught.value).hint


@pytest.mark.parametrize(("fast", "said"), [(32.0, False), (1.0, True)])
def test_bounds_that_llama_cpp_takes_anyway_are_no_remark(write, fast, said):
    given = {**SIZES, **yarn(4.0, yarn_beta_fast=fast, yarn_beta_slow=1.0)}
    notes = pn.explain(write("qwen3", given)).warnings
    assert any("does not read yarn_beta_fast for qwen3" in note for note in notes) is said


# --- Refusals

REFUSED = {
    "unknown": ("llama9", {}, {}, "general.architecture"),
    "no rotation": ("gpt2", {}, {}, "general.architecture"),
    "no rotation in code": ("bert", {}, {}, "general.architecture"),
    "no layer that slides": ("cohere2", {"attention.sliding_window_pattern": 1}, {},
                             "general.architecture"),
    "no layers": ("llama", {"block_count": None}, {}, "block_count"),
    "heads, too few": ("deci", {"attention.head_count": [8] * 5}, {}, "attention.head_count"),
    "heads, no ints": ("deci", {"attention.head_count": [8.0, math.nan] * 3}, {},
                       "attention.head_count"),
    "kv heads, too few": ("lfm2", {"attention.head_count_kv": [8, 0] * 2}, {},
                          "attention.head_count_kv"),
    "no heads": ("llama", {"attention.head_count": None}, {}, "attention.head_count"),
    "pattern, too short": ("gemma4", {"attention.sliding_window_pattern": [True] * 5}, {},
                           "attention.sliding_window_pattern"),
    "no pattern": ("gemma4", {}, {}, "attention.sliding_window_pattern"),
    "sections, three": ("qwen2vl", {"rope.dimension_sections": [16, 24, 24]}, {},
                        "rope.dimension_sections"),
    "sections, five": ("qwen2vl", {"rope.dimension_sections": [16, 24, 24, 0, 0]}, {},
                       "rope.dimension_sections"),
    "sections, negative": ("qwen2vl", {"rope.dimension_sections": [65, -1, 0, 0]}, {},
                           "rope.dimension_sections"),
    "no sections": ("qwen2vl", {}, {}, "rope.dimension_sections"),
    "no sections, turns": ("qwen3vl", {}, {}, "rope.dimension_sections"),
    "factors, too few": ("llama", {}, {"rope_freqs": [1.0] * 63}, "rope_freqs.weight"),
    "long factors, too few": ("phi3", PHI, {**LONG, "rope_factors_long": [1.0] * 47},
                              "rope_factors_long.weight"),
    **{f"factor {value}": ("llama", {}, {"rope_freqs": [1.0] * 63 + [value]}, "rope_freqs.weight")
       for value in (math.nan, math.inf, 0.0, -1.0)},
    "type": ("llama", {"rope.scaling.type": "ntk"}, {}, "rope.scaling.type"),
    "linear factor": ("llama", {"rope.scaling.factor": -2.0}, {}, "rope.scaling.factor"),
    "yarn factor": ("llama", yarn(1e-30), {}, "rope.scaling.factor"),
    "yarn weight": ("mistral3", yarn(4.0, yarn_log_multiplier=-8.0), {},
                    "rope.scaling.yarn_log_multiplier"),
    "yarn of no length": ("llama", {**yarn(4.0, None), "context_length": None}, {},
                          "context_length"),
    "yarn and lengths": ("phi3", {**PHI, **yarn(4.0)}, LONG, "rope.scaling.type"),
    "share of yarn": ("grok", yarn(4.0, yarn_ext_factor=0.5), {}, "rope.scaling.yarn_ext_factor"),
    "base": ("llama", {"rope.freq_base": math.nan}, {}, "rope.freq_base"),
    "more dims than a head has": ("qwen2", {"rope.dimension_count": 130}, {},
                                  "rope.dimension_count"),
    "odd dims": ("qwen2", {"rope.dimension_count": 63}, {}, "rope.dimension_count"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_key(write, case):
    arch, given, factors, key = REFUSED[case]
    with pytest.raises(ValueError, match=r"^explain: ") as caught:
        pn.explain(write(arch, {**SIZES, **given}, factors))
    fault = fault_of(caught.value)
    assert fault.function == "explain"
    assert key in fault.argument


def test_cut_files(write, tmp_path):
    whole = write("llama", SIZES, {"rope_freqs": llama3(8.0)})
    with open(whole, "rb") as file:
        data = file.read()
    for length in (*range(64), *range(64, len(data) - 32, 41)):
        (tmp_path / "cut.gguf").write_bytes(data[:length])
        with pytest.raises(ValueError, match="GGUF file") as caught:
            pn.explain(tmp_path / "cut.gguf")
        assert fault_of(caught.value).argument == "config"
