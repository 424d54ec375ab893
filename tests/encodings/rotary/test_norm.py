"""RMS norm and rotation in one pass: against float64, against transformers, and its bits."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from arrays import number_views
from hypothesis import given, settings
from hypothesis import strategies as st
from norms import CASES, Case, assert_normed, exact, heads_of, weights_of
from oracle import DTYPES, assert_same_bits
from targets import NATIVE, NEEDS_NATIVE, written_past_the_cache

import posenc_native as pn

LAYOUTS = ["bhsd", "bshd", "sbhd", "thd", "hsd", "sd"]
WEIGHTS = {"head": ["none", "[D]", "[H, D]"], "token": ["none", "[H, D]", "[H * D]"]}


def numbers(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def q_and_k(layout: str, case: Case, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Of three heads and two."""
    return (
        numbers(heads_of(layout, case, 3), dtype, 1),
        numbers(heads_of(layout, case, 2), dtype, 2),
    )


def weighted(kind: str, case: Case, layout: str, dtype: Any = np.float32) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    q_heads, k_heads = (3, 2) if "h" in layout else (1, 1)
    return {
        "q_weight": weights_of(kind, q_heads, case, rng, dtype),
        "k_weight": weights_of(kind, k_heads, case, rng, dtype),
    }


def magnitude(expected: np.ndarray) -> float:
    return float(np.abs(expected).max(initial=0.0))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_those_of_float64(case, dtype, target):
    for layout, over, first in itertools.product(LAYOUTS, WEIGHTS, (True, False)):
        q, k = q_and_k(layout, case, dtype)
        for kind in WEIGHTS[over]:
            options = {
                **case.options, "layout": layout, "norm_over": over, "norm_first": first,
                **weighted(kind, case, layout), "weight_offset": 0.5, "scale": 1.25, "eps": 1e-5,
            }  # fmt: skip
            results = pn.norm_rotary_qk(q, k, None, case.inv_freq, **options)
            for result, x, value in zip(
                results, (q, k), exact(q, k, None, case.inv_freq, **options), strict=True
            ):
                heads = x.shape[layout.index("h")] if "h" in layout else 1
                count = case.dims * (heads if over == "token" else 1)
                assert_normed(result, value, magnitude(value), count)


def test_the_formula(backend):
    """Written down once more, for a whole head that is normed and a slice that is turned."""
    q = numbers((4, 8), np.float64)
    inv_freq = np.array([1.0, 0.1])
    weight = np.arange(8.0)
    normed = q / np.sqrt(np.mean(q**2, axis=1, keepdims=True) + 0.01) * (weight + 1)
    expected = normed.copy()
    for token, pair in itertools.product(range(4), range(2)):
        angle = token * inv_freq[pair]
        a, b = normed[token, 2 + pair], normed[token, 4 + pair]
        expected[token, 2 + pair] = a * np.cos(angle) - b * np.sin(angle)
        expected[token, 4 + pair] = b * np.cos(angle) + a * np.sin(angle)
    result, _ = pn.norm_rotary_qk(
        q, q.copy(), None, inv_freq, q_weight=weight, weight_offset=1.0, eps=0.01, rotary_start=2,
        layout="sd",
    )  # fmt: skip
    np.testing.assert_allclose(result, expected, rtol=1e-13, atol=1e-13)


# --- The same bits


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("case", CASES[:6], ids=str)
@pytest.mark.parametrize("over", WEIGHTS)
def test_bits_do_not_depend_on_memory(over, case, dtype, target):
    """In place, strided dims, another layout, past the cache: one sum in one order."""
    q, k = q_and_k("bshd", case, dtype)
    options = {**case.options, **weighted("[H, D]", case, "bshd"), "norm_over": over}

    def run(q, k, layout, **more):
        return pn.norm_rotary_qk(q, k, None, case.inv_freq, layout=layout, **options, **more)

    expected = run(q, k, "bshd")
    with written_past_the_cache():
        past = run(q, k, "bshd")
    strided = [np.stack([x, x], -1)[..., 1] for x in (q, k)]
    planes = [x.swapaxes(1, 2) for x in (q, k)]
    copies = [np.ascontiguousarray(x) for x in planes]
    for results in (
        past,
        run(*strided, "bshd"),
        run(q.copy(), k.copy(), "bshd", inplace=True),
        [x.swapaxes(1, 2) for x in run(*planes, "bhsd")],
        [x.swapaxes(1, 2) for x in run(*copies, "bhsd")],
    ):
        for result, value in zip(results, expected, strict=True):
            assert_same_bits(np.ascontiguousarray(result), value)


@NEEDS_NATIVE
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_targets_with_fused_multiply_add_agree(dtype, native):
    """And all of them on the sum, which shows where nothing is turned."""
    before = NATIVE.current_target()
    results: dict[str, dict[str, Any]] = {}
    try:
        for name in NATIVE.available_targets():
            assert NATIVE.set_target(name)
            results[name] = {}
            for case in CASES:
                for what, inv_freq in (("turned", case.inv_freq), ("sum", np.ones(0))):
                    q, k = q_and_k("bshd", case, dtype)
                    options = weighted("[D]", case, "bshd") | {"layout": "bshd"}
                    if what == "turned":
                        options |= case.options
                    results[name][f"{case} {what}"] = pn.norm_rotary_qk(
                        q, k, None, inv_freq, **options
                    )
    finally:
        NATIVE.set_target(before)
    first, *others = (name for name in results if name != "SSE4")
    for other in [*others, *(name for name in results if name == "SSE4")]:
        for what, pair in results[first].items():
            if other == "SSE4" and what.endswith("turned"):
                continue
            for a, b in zip(pair, results[other][what], strict=True):
                assert_same_bits(a, b)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_torch_and_numpy_agree(dtype):
    torch = pytest.importorskip("torch")
    for case in CASES:
        q, k = q_and_k("bshd", case, dtype)
        weights = weighted("[D]", case, "bshd")
        arrays = pn.norm_rotary_qk(
            q, k, None, case.inv_freq, layout="bshd", **weights, **case.options
        )

        def tensor(x):
            if x.dtype == ml_dtypes.bfloat16:
                return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
            return torch.from_numpy(x)

        tensors = pn.norm_rotary_qk(
            tensor(q), tensor(k), None, torch.from_numpy(case.inv_freq), layout="bshd",
            **{name: tensor(x) for name, x in weights.items()}, **case.options,
        )  # fmt: skip
        for a, b in zip(arrays, tensors, strict=True):
            bits = np.dtype(f"i{a.dtype.itemsize}")
            assert (a.view(bits) == b.view(getattr(torch, str(bits))).numpy()).all()


@settings(max_examples=60)
@given(data=st.data())
def test_any_strides_and_positions(data, target):
    dtype = DTYPES[data.draw(st.sampled_from(list(DTYPES)))]
    case = data.draw(st.sampled_from(CASES))
    layout = data.draw(st.sampled_from(LAYOUTS))
    heads, tokens, batch = (data.draw(st.integers(0, 3)) for _ in range(3))
    q = data.draw(number_views(heads_of(layout, case, heads, tokens, batch), dtype))
    k = data.draw(number_views(heads_of(layout, case, 2, tokens, batch), dtype))
    positions = np.array([data.draw(st.integers(-(2**40), 2**40)) for _ in range(tokens)], np.int64)
    options = {
        **case.options,
        "layout": layout,
        "norm_over": data.draw(st.sampled_from(["head", "token"])),
    }
    results = pn.norm_rotary_qk(q.array, k.array, positions, case.inv_freq, **options)
    q.assert_untouched()
    k.assert_untouched()
    for result, value in zip(
        results, exact(q.array, k.array, positions, case.inv_freq, **options), strict=True
    ):
        # Frequencies are rounded to 2^-64 turn.
        assert_normed(result, value, magnitude(value), case.dims * 3, 2.0**40 * 2.0**-60)


# --- Edges


def test_a_head_of_zeros_stays_one(target):
    for dtype in DTYPES.values():
        q = np.zeros((1, 2, 3, 128), dtype)
        result, _ = pn.norm_rotary_qk(q, q.copy(), None, CASES[0].inv_freq)
        assert_same_bits(np.abs(result), q)


def test_infinities_and_subnormal_numbers(target):
    """1 / sqrt(inf) is 0, and 0 times infinity no number. Squares may underflow."""
    case = CASES[0]
    q = np.ones((1, 1, 2, 128), np.float32)
    q[0, 0, 0, 7] = np.inf
    q[0, 0, 1] = 1e-42
    result, _ = pn.norm_rotary_qk(q, q.copy(), None, case.inv_freq, eps=1e-12)
    assert np.isnan(result[0, 0, 0, [7, 71]]).all()
    assert (np.delete(result[0, 0, 0], [7, 71]) == 0).all()
    expected, _ = exact(q[:, :, 1:], q[:, :, 1:], [1], case.inv_freq, eps=1e-12)
    np.testing.assert_allclose(result[:, :, 1:], expected, rtol=1e-5, atol=1e-44)


def test_large_squares_overflow_as_in_float32(target):
    q = np.full((1, 1, 1, 128), 1e30, np.float32)
    assert (pn.norm_rotary_qk(q, q.copy(), None, CASES[0].inv_freq)[0] == 0).all()
    wide, _ = pn.norm_rotary_qk(q.astype(float), q.astype(float), None, CASES[0].inv_freq)
    np.testing.assert_allclose(np.mean(wide**2), 1.0)


def test_heads_wider_than_the_scratch(backend):
    """Their angles are computed in pieces."""
    dims = 9000
    inv_freq = pn.rotary.rotary_frequencies(dims)[0]
    q = numbers((2, 2, dims), np.float32)
    for pairing in ("half", "interleaved", 90):
        options: dict[str, Any] = {"layout": "thd", "pairing": pairing}
        results = pn.norm_rotary_qk(q, q[:, :1].copy(), None, inv_freq, **options)
        expected = exact(q, q[:, :1], None, inv_freq, **options)
        for result, value in zip(results, expected, strict=True):
            assert_normed(result, value, magnitude(value), dims)


def test_a_slice_in_heads_that_are_wider(target):
    """Several heads of a token: the rest of each is normed too, and not that of its neighbor."""
    q = numbers((3, 4, 128), np.float32)
    inv_freq = pn.rotary.rotary_frequencies(32)[0]
    result, _ = pn.norm_rotary_qk(q, q.copy(), None, inv_freq, layout="thd")
    for head in range(4):
        one = np.ascontiguousarray(q[:, head])
        alone, _ = pn.norm_rotary_qk(one, one.copy(), None, inv_freq, layout="sd")
        assert_same_bits(np.ascontiguousarray(result[:, head]), alone)


# --- transformers


def attention_of(name: str) -> Any:
    """The module of a model: its norm, and its rotary function."""
    pytest.importorskip("torch")
    reason = "what transformers computes is compared with; it is not installed"
    pytest.importorskip("transformers", reason=reason)
    import importlib

    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


# The norm of a model, its weights as they are passed, what a call of ours has beside them.
MODELS = {
    "qwen3": ("Qwen3RMSNorm", lambda w: w, {}),
    "gemma3": ("Gemma3RMSNorm", lambda w: w, {"weight_offset": 1.0}),
    "gemma3n": ("Gemma3nRMSNorm", lambda w: w.float(), {}),
    "lfm2": ("Lfm2RMSNorm", lambda w: w, {}),
    "exaone4": ("Exaone4RMSNorm", lambda w: w, {}),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("model", MODELS)
def test_as_written_is_what_models_of_transformers_compute(model, dtype):
    """Bit for bit, but where a last bit of r shows: torch adds squares in an order of its own."""
    torch = pytest.importorskip("torch")
    module = attention_of(model)
    name, weight_of, options = MODELS[model]
    torch.manual_seed(0)
    of_dtype = getattr(torch, dtype)
    norm = getattr(module, name)(128, eps=1e-6)
    torch.nn.init.normal_(norm.weight, 1.0, 0.5)
    norm = norm.to(of_dtype)
    q, k = torch.randn(2, 8, 50, 128).to(of_dtype), torch.randn(2, 4, 50, 128).to(of_dtype)
    cos, sin = pn.rotary_tables(torch.arange(50), torch.tensor(CASES[0].inv_freq), dtype=of_dtype)
    full = [torch.cat([table, table], -1)[None] for table in (cos, sin)]
    with torch.no_grad():
        if model == "gemma3n":
            rotate = module.apply_rotary_pos_emb
            expected = [rotate(norm(x), *full) for x in (q, k)]
        else:
            expected = module.apply_rotary_pos_emb(norm(q), norm(k), *full)
        weight = weight_of(norm.weight)
        results = pn.norm_rotary_qk(
            q,
            k,
            None,
            pn.Tables(cos, sin, compute="as_written"),
            q_weight=weight,
            k_weight=weight,
            **options,
        )
        once = pn.norm_rotary_qk(
            q, k, None, pn.Tables(cos, sin), q_weight=weight, k_weight=weight, **options
        )
    step = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-22}[dtype]
    for result, rounded_once, value in zip(results, once, expected, strict=True):
        different = (result != value).double().mean().item()
        # In float32 a last bit of r shows in every element; in 16 bits where it decides a tie.
        if dtype != "float32":
            assert different < 2e-4
            assert (rounded_once != value).double().mean().item() > 0.05
        largest = value.abs().max().item()
        assert (result - value).abs().max().item() <= 2 * step * largest


def test_the_norm_over_all_heads_is_that_of_olmo2():
    torch = pytest.importorskip("torch")
    module = attention_of("olmo2")
    torch.manual_seed(0)
    norm = module.Olmo2RMSNorm(8 * 64, eps=1e-6)
    torch.nn.init.normal_(norm.weight, 1.0, 0.5)
    q = torch.randn(2, 9, 8 * 64)
    inv_freq = torch.tensor(pn.rotary.rotary_frequencies(64)[0])
    with torch.no_grad():
        heads = norm(q).view(2, 9, 8, 64)
        expected = pn.apply_rotary(heads, None, inv_freq, layout="bshd")
        result, _ = pn.norm_rotary_qk(
            q.view(2, 9, 8, 64), q.view(2, 9, 8, 64), None, inv_freq, layout="bshd",
            q_weight=norm.weight, norm_over="token",
        )  # fmt: skip
    torch.testing.assert_close(result, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("model", ["hunyuan_v1_dense", "llama4"])
def test_the_norm_after_the_rotation(model):
    torch = pytest.importorskip("torch")
    module = attention_of(model)
    torch.manual_seed(0)
    q, k = torch.randn(2, 9, 4, 64), torch.randn(2, 9, 2, 64)
    inv_freq = torch.tensor(pn.rotary.rotary_frequencies(64)[0])
    weight = None
    if model == "llama4":
        norm, pairing = module.Llama4TextL2Norm(1e-6), "interleaved"
    else:
        norm, pairing = module.HunYuanDenseV1RMSNorm(64, eps=1e-6), "half"
        torch.nn.init.normal_(norm.weight, 1.0, 0.5)
        weight = norm.weight
    with torch.no_grad():
        rotated = pn.apply_rotary_qk(q, k, None, inv_freq, layout="bshd", pairing=pairing)
        expected = [norm(x) for x in rotated]
        results = pn.norm_rotary_qk(
            q, k, None, inv_freq, layout="bshd", pairing=pairing, norm_first=False,
            q_weight=weight, k_weight=weight,
        )  # fmt: skip
    for result, value in zip(results, expected, strict=True):
        torch.testing.assert_close(result, value, rtol=2e-6, atol=2e-6)
