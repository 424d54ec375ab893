"""What compare says of two descriptions: which field, how far apart, from which position on."""

from __future__ import annotations

import json
from typing import Any

import mpmath
import numpy as np
import pytest
from published import PUBLISHED, sizes

import posenc_native as pn
from posenc_native.checkpoints.explanations.distances import VISIBLE, distances_at, first_visible
from posenc_native.core.calls.errors import fault_of
from posenc_native.models.config import LayerGroup

LLAMA = {"model_type": "llama", **sizes(4096, 32, 5e5, 131072), "num_hidden_layers": 8}
GEMMA = {**PUBLISHED["gemma-3-4b"], "num_hidden_layers": 12}
SMOL = {**PUBLISHED["smollm3"], "num_hidden_layers": 8}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
KINDS = ["sliding_attention", "full_attention"] * 2
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}


def fields(*sources: Any, **options: Any) -> list[str]:
    found = pn.compare(*sources, **options)
    assert bool(found) is bool(found.differences) is not found.alike
    return [each.field for each in found.differences]


def changed(config: dict[str, Any], **entries: Any) -> dict[str, Any]:
    return {**config, **entries}


def scaled(**scaling: Any) -> dict[str, Any]:
    return changed(LLAMA, rope_scaling=scaling)


# Two configurations and the fields in which they differ.
CASES: dict[str, tuple[Any, Any, list[str]]] = {
    "the same": (LLAMA, dict(LLAMA), []),
    "a base in float32": (LLAMA, changed(LLAMA, rope_theta=float(np.float32(500000.02))), []),
    "base": (LLAMA, changed(LLAMA, rope_theta=1e4), ["base"]),
    "base, hardly": (LLAMA, changed(LLAMA, rope_theta=500100.0), ["base"]),
    "base unsaid": (LLAMA, {k: v for k, v in LLAMA.items() if k != "rope_theta"}, ["base"]),
    "scaling": (LLAMA, scaled(**YARN), ["scaling", "scale"]),
    "a scaling by 1": (LLAMA, scaled(rope_type="linear", factor=1.0), []),
    "two ways to divide": (scaled(rope_type="linear", factor=2.0),
                           scaled(rope_type="linear", factor=4.0), ["scaling"]),
    "attention factor": (scaled(**YARN), scaled(**YARN, attention_factor=1.0), ["scale"]),
    "both factors of YaRN": (scaled(**YARN), scaled(**{**YARN, "factor": 8.0}),
                             ["scaling", "scale"]),
    "truncate": (scaled(**YARN), scaled(**YARN, truncate=False), ["scaling"]),
    "truncate, of layers that differ in windows": (
        changed(PUBLISHED["gpt-oss"], num_hidden_layers=4, layer_types=KINDS),
        changed(PUBLISHED["gpt-oss"], num_hidden_layers=4, layer_types=KINDS,
                rope_scaling={**PUBLISHED["gpt-oss"]["rope_scaling"], "truncate": True}),
        ["scaling"]),
    "dynamic": (LLAMA, scaled(**DYNAMIC), ["scaling"]),
    "dynamic and dynamic": (scaled(**DYNAMIC), scaled(**DYNAMIC), []),
    "pairing": (LLAMA, changed(LLAMA, model_type="cohere"), ["pairing"]),
    "part of the head": (changed(LLAMA, model_type="stablelm", partial_rotary_factor=1.0),
                         changed(LLAMA, model_type="stablelm", partial_rotary_factor=0.5),
                         ["rotary_dim"]),
    "head": (LLAMA, changed(LLAMA, head_dim=64), ["head_dim", "rotary_dim"]),
    "layers": (LLAMA, changed(LLAMA, num_hidden_layers=9), ["layer_count"]),
    "NoPE lost": (SMOL, changed(SMOL, no_rope_layers=[1] * 8), ["nope_layers"]),
    "NoPE elsewhere": (SMOL, changed(SMOL, no_rope_layers=[0, 1, 1, 1] * 2),
                       ["nope_layers", "nope_layers"]),
    "a local base": (GEMMA, changed(GEMMA, rope_local_base_freq=2e4), ["base"]),
    "a global scaling": (GEMMA, changed(GEMMA, rope_scaling=None), ["scaling"]),
    "the pattern of windows": (GEMMA, changed(GEMMA, sliding_window_pattern=4),
                               ["base", "scaling", "base", "scaling"]),
    "axes": (PUBLISHED["qwen2-vl"],
             changed(PUBLISHED["qwen2-vl"], model_type="qwen2", rope_scaling=None), ["axis_map"]),
    "sections": (PUBLISHED["qwen2-vl"],
                 changed(PUBLISHED["qwen2-vl"],
                         rope_scaling={"type": "mrope", "mrope_section": [24, 16, 24]}),
                 ["axis_map"]),
    "softmax": (PUBLISHED["deepseek-v3"],
                changed(PUBLISHED["deepseek-v3"], rope_scaling={
                    **PUBLISHED["deepseek-v3"]["rope_scaling"], "mscale": 0.5,
                    "mscale_all_dim": 0.5}),
                ["softmax_correction"]),
    "presets": ("llama-3.1", "llama-3.3", []),
    "a preset and its file": ("gemma-3-4b", PUBLISHED["gemma-3-4b"], []),
    "a Rotary": (pn.Rotary(128, base=5e5), LLAMA, []),
    "frequencies of their own": (pn.Rotary(128, base=5e5),
                                 pn.Rotary(128, inv_freq=pn.Rotary(128, base=5e5).inv_freq), []),
    "other frequencies": (pn.Rotary(8), pn.Rotary(8, inv_freq=[1.0, 0.1, 0.01, 0.002]),
                          ["inv_freq"]),
    "overrides": (scaled(**YARN), "OVERRIDDEN", []),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_fields_that_differ(name: str, tmp_path: Any) -> None:
    one, other, expected = CASES[name]
    if other == "OVERRIDDEN":
        (tmp_path / "config.json").write_text(json.dumps(LLAMA))
        other = f"{tmp_path}+{json.dumps({'rope_scaling': YARN})}"
    assert fields(one, other) == expected
    assert sorted(fields(other, one)) == sorted(expected)


def test_permuted_weights_excuse_the_pairing_alone() -> None:
    other = changed(LLAMA, model_type="cohere", rope_theta=1e4)
    assert fields(LLAMA, other) == ["pairing", "base"]
    assert fields(LLAMA, other, permuted=True) == ["base"]
    # The note says who knows, and only where pairings differ and the weights match them.
    cohere = changed(LLAMA, model_type="cohere")
    notes = pn.compare(LLAMA, cohere, permuted=True).notes
    assert any("the weights are said to be permuted" in note for note in notes)
    for quiet in (pn.compare(LLAMA, cohere), pn.compare(LLAMA, LLAMA, permuted=True)):
        assert not any("permuted to match" in note for note in quiet.notes)


META = {"dim": 4096, "n_layers": 8, "n_heads": 32, "rope_theta": 5e5, "use_scaled_rope": False}


def test_the_permutation_of_a_converter_is_expected_but_not_confirmed() -> None:
    """It is true, so that `assert not` fails on weights that nobody permuted."""
    found = pn.compare(LLAMA, META)
    (difference,) = found.differences
    assert difference.expected
    assert found.verdict == "alike if permuted"
    assert found
    assert not found.alike
    first, *_ = str(found).splitlines()
    assert first == "llama and a mapping: only the expected permutation differs (--permuted)"
    assert "convert_llama_weights_to_hf.py" in difference.comment
    assert pn.compare(META, LLAMA).verdict == "alike if permuted"
    assert pn.compare(LLAMA, META, permuted=True).verdict == "alike"
    assert found.to_dict()["verdict"] == found.verdict


def test_no_other_difference_is_expected() -> None:
    lost = pn.compare(LLAMA, {**META, "rope_theta": 1e4})
    assert lost.verdict == "different"
    assert [(each.field, each.expected) for each in lost.differences] == [
        ("pairing", True), ("base", False),
    ]  # fmt: skip
    assert str(lost).startswith("llama and a mapping differ: base, the expected permutation\n")
    # No converter permutes the weights of Cohere, and Llama 4 keeps Meta's order.
    assert pn.compare(LLAMA, changed(LLAMA, model_type="cohere")).verdict == "different"
    llama4 = pn.compare(LLAMA, {**META, "attention_chunk_size": 8192})
    assert [(each.field, each.expected) for each in llama4.differences] == [("pairing", False)]


def test_words_of_both_formats() -> None:
    (difference,) = pn.compare(LLAMA, pn.Rotary(128, base=1e4)).differences
    assert difference.words == ("500,000 (rope_theta)", "10,000")
    assert difference.values == (5e5, 1e4)
    (difference,) = pn.compare(LLAMA, CASES["base unsaid"][1]).differences
    assert difference.words[1] == "10,000 (not in the file; the model's class defaults to 10,000)"


def test_words_of_a_scaling_are_those_that_differ() -> None:
    """Defaults count as said; what no frequency depends on is not said."""
    bounds = {"beta_fast": 32, "beta_slow": 1, "max_position_embeddings": 131072}
    assert fields(scaled(**YARN), scaled(**YARN, **bounds)) == []
    (difference,) = pn.compare(scaled(**YARN), scaled(**YARN, **bounds, truncate=False)).differences
    assert difference.words == (
        "yarn, truncate true (rope_scaling)", "yarn, truncate false (rope_scaling)"
    )  # fmt: skip


def test_words_of_a_list_are_its_range() -> None:
    """Also of factors that do not rise from pair to pair."""
    one, other = (
        pn.Rotary(8, scaling={
            "rope_type": "longrope", "short_factor": factors, "long_factor": [4.0] * 4,
            "original_max_position_embeddings": 64, "attention_factor": 1.0,
        })
        for factors in ([2.0, 4.0, 1.0, 3.0], [1.0] * 4)
    )  # fmt: skip
    (difference,) = pn.compare(one, other).differences
    assert difference.words == ("longrope, short_factor 1 to 4", "longrope, short_factor 1 to 1")


def test_layers_are_named() -> None:
    (difference,) = pn.compare(GEMMA, changed(GEMMA, rope_local_base_freq=2e4)).differences
    assert difference.layer_type == "sliding_attention"
    assert difference.layers == (0, 1, 2, 3, 4, 6, 7, 8, 9, 10)
    (difference,) = pn.compare(SMOL, changed(SMOL, no_rope_layers=[1] * 8)).differences
    assert difference.layers == (3, 7)


def test_values_are_in_the_order_of_the_sources() -> None:
    """Also where one of the two does not number its layers, and the other has a single kind."""
    gemma, rope = PUBLISHED["gemma-3-4b"], pn.Rotary(256, base=1e4)
    for pair, values in (((gemma, rope), (1e6, 1e4)), ((rope, gemma), (1e4, 1e6))):
        found = [each.values for each in pn.compare(*pair).differences if each.field == "base"]
        assert found == [values]


def test_a_length_beyond_which_they_part() -> None:
    found = pn.compare(LLAMA, scaled(**DYNAMIC))
    assert "up to 131,072 positions" in found.differences[0].comment
    assert found.errors == () or found.errors[0].first_visible is None
    long = changed(LLAMA, max_position_embeddings=4096)
    found = pn.compare(long, changed(long, rope_scaling=DYNAMIC), at=[100, 4095, 5000])
    (error,) = found.errors
    assert [each[1] == 0 for each in error.at] == [True, True, False]
    # Of two lengths, the shorter.
    longer = scaled(**DYNAMIC)
    for pair in (
        (changed(long, rope_scaling=DYNAMIC), longer),
        (longer, changed(long, rope_scaling=DYNAMIC)),
    ):
        (difference,) = pn.compare(*pair).differences
        assert "up to 4,096 positions" in difference.comment


def test_errors_are_those_of_exact_angles() -> None:
    """Cosines, sines and scores of a few positions, by mpmath."""
    other = scaled(**YARN)
    found = pn.compare(LLAMA, other, at=[1, 77, 131071])
    a, b = pn.Rotary.from_config(LLAMA), pn.Rotary.from_config(other)
    for position, of_tables, of_scores in found.errors[0].at:
        apart, scores = [], []
        for f, g in zip(a.inv_freq, b.inv_freq, strict=True):
            x, y = (mpmath.mpf(position) * mpmath.mpf(float(each)) for each in (f, g))
            one = mpmath.expj(x)
            two = mpmath.mpf(b.scale) * mpmath.expj(y)
            apart += [abs(one.real - two.real), abs(one.imag - two.imag)]
            scores.append(abs(one - two * mpmath.mpf(b.scale)))
        assert of_tables == pytest.approx(float(max(apart)), abs=1e-12)
        assert of_scores == pytest.approx(float(max(scores)), abs=1e-12)


def test_scores_of_dims_that_are_not_rotated_differ_too() -> None:
    """Where one scales cosines, the other the softmax: the rotated dims agree, the rest do not."""
    arguments = {"head_dim": 32, "rotary_dim": 16}
    one = LayerGroup(None, (), {**arguments, "scale": 1.2})
    other = LayerGroup(None, (), arguments, 1.2**2)
    (error,) = distances_at(one, other, [5])
    assert error.score == pytest.approx(1.2**2 - 1)


@pytest.mark.parametrize("seed", range(12))
def test_first_visible_position_is_the_first(seed: int) -> None:
    """Against a search through all positions, with factors of their own too."""
    rng = np.random.default_rng(seed)
    inv_freq = np.sort(10 ** rng.uniform(-6, 0, 16))[::-1]
    nudged = inv_freq * (1 + rng.uniform(-1, 1, 16) * 10 ** rng.uniform(-6, -2))
    scales = [1.0, 1.0 if seed % 3 else 1.0 + 10 ** rng.uniform(-5, -2.5)]
    groups = [
        LayerGroup(None, (), {"head_dim": 32, "inv_freq": f.tolist(), "scale": s})
        for f, s in zip((inv_freq, nudged), scales, strict=True)
    ]
    longest = 20000
    positions = np.arange(longest)[:, None]
    cos = [s * np.cos(positions * f) for f, s in zip((inv_freq, nudged), scales, strict=True)]
    sin = [s * np.sin(positions * f) for f, s in zip((inv_freq, nudged), scales, strict=True)]
    apart = np.maximum(np.abs(cos[0] - cos[1]), np.abs(sin[0] - sin[1])).max(-1)
    seen = np.flatnonzero(apart > VISIBLE)
    assert first_visible(*groups, longest) == (seen[0] if len(seen) else None)


def test_one_with_several_others() -> None:
    found = pn.compare("llama-3", "llama-3.1", "llama-3", changed(LLAMA, rope_theta=1e6))
    assert found.sources == ("llama-3", "llama-3.1", "llama-3 (2)", "llama")
    assert [(each.sources[1], each.field) for each in found.differences] == [
        ("llama-3.1", "scaling"), ("llama", "base"),
    ]  # fmt: skip
    text = str(found)
    assert "llama-3 and llama-3 (2) rotate alike" in text
    assert max(map(len, text.splitlines())) <= 92
    as_json = json.loads(json.dumps(found.to_dict()))
    assert as_json["alike"] is False
    assert as_json["differences"][0]["field"] == "scaling"
    assert as_json["differences"][1]["values"] == [5e5, 1e6]
    assert as_json["errors"][0]["at"][0] == {
        "position": 1024,
        "cos_sin": found.errors[0].at[0].cos_sin,
        "score": found.errors[0].at[0].score,
    }


def half_trained(pairing: str, head_dim: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Weights whose partners have the products that training leaves."""
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 4 * head_dim, 64))
    pairs = head_dim // 2
    for head in range(4):
        for i in range(pairs):
            a, b = (i, i + pairs) if pairing == "half" else (2 * i, 2 * i + 1)
            a, b = head * head_dim + a, head * head_dim + b
            k[a], k[b] = q[b] + 0.3 * k[a], -q[a] + 0.3 * k[b]
    return q.astype(np.float32), k.astype(np.float32)


def test_weights_tell_whether_they_were_permuted(tmp_path: Any) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    files = {}
    for pairing in ("half", "interleaved"):
        q, k = half_trained(pairing)
        files[pairing] = tmp_path / f"{pairing}.safetensors"
        numpy.save_file({"layers.0.q_proj.weight": q, "layers.0.k_proj.weight": k}, files[pairing])
    half, other = pn.Rotary(32), pn.Rotary(32, pairing="interleaved")
    found = pn.compare(half, other, weights=[files["half"], files["interleaved"]])
    assert not found
    assert any("the weights look permuted" in note for note in found.notes)
    assert fields(half, other, weights=[files["half"], files["half"]]) == ["pairing"] * 2
    assert fields(half, half, weights=[files["half"], files["interleaved"]]) == ["pairing"]
    assert fields(half, half, weights=[None, files["half"]]) == []
    meta = {**META, "dim": 128, "n_heads": 4, "rope_theta": 1e4}
    asked = [files["half"], files["interleaved"]]
    assert pn.compare(half, meta, weights=asked).verdict == "alike"
    # Weights that were not permuted are no expected difference.
    asked = [files["half"], files["half"]]
    assert pn.compare(half, meta, weights=asked).verdict == "different"
    numpy.save_file({"x": q}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="q_proj, wq, attn_q") as caught:
        pn.compare(half, half, weights=[None, tmp_path / "x.safetensors"])
    assert fault_of(caught.value) is not None


def test_weights_of_some_of_all_layers_are_read(tmp_path: Any) -> None:
    """And of each head the dims that are rotated: the first layers and dims are random here."""
    numpy = pytest.importorskip("safetensors.numpy")
    rng = np.random.default_rng(1)
    state = {}
    for layer in range(16):
        for name, trained in zip("qk", half_trained("half"), strict=True):
            weight = rng.standard_normal((4, 48, 64)).astype(np.float32)
            if layer >= 4:
                weight[:, 16:] = trained.reshape(4, 32, 64)
            state[f"layers.{layer:02}.{name}_proj.weight"] = weight.reshape(-1, 64)
    numpy.save_file(state, tmp_path / "deep.safetensors")
    rope = pn.Rotary(48, rotary_dim=32, rotary_start=16, pairing="interleaved")
    assert fields(rope, rope, weights=[None, tmp_path / "deep.safetensors"]) == ["pairing"]


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (ValueError, "at: expected positions from 0", lambda: pn.compare(LLAMA, LLAMA, at=[-1])),
        (TypeError, "at: expected a dtype", lambda: pn.compare(LLAMA, LLAMA, at=[0.5])),
        (ValueError, "weights: expected 2 paths", lambda: pn.compare(LLAMA, LLAMA, weights=[None])),
        (OSError, "nowhere", lambda: pn.compare(LLAMA, "nowhere.json")),
        (ValueError, "overrides: expected JSON", lambda: pn.compare(LLAMA, "llama-3+{")),
        (ValueError, "overrides: expected a configuration",
         lambda: pn.compare(LLAMA, 'llama-3+{"rope_theta": 1}')),
        (TypeError, "att", lambda: pn.compare(LLAMA, LLAMA, att=[1])),
    ],
)  # fmt: skip
def test_what_cannot_be_compared(error: Any, match: str, call: Any) -> None:
    with pytest.raises(error, match=match):
        call()
