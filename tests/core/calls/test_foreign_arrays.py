"""Arrays of other libraries as arguments: read without a copy, answered with NumPy arrays.

`CALLS` has a call of every public function that takes arrays, with all of its array arguments; the
tests put arrays of other kinds in the place of NumPy's.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from rotating import public

import posenc_native as pn
from posenc_native.core.calls import arguments

try:
    import jax.numpy as jnp
except ImportError:
    jnp = None
NEEDS_JAX = pytest.mark.skipif(jnp is None, reason="needs JAX")

RNG = np.random.default_rng(0)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


Q, K = normal(2, 4, 5, 8), normal(2, 2, 5, 8)
POSITIONS = np.array([3, 0, 7, 7, 2])
INV_FREQ = np.array([1.0, 0.1, 0.01, 0.001])
COS, SIN = normal(5, 4), normal(5, 4)
SCORES, DIAGONALS = normal(2, 4, 5, 6), normal(4, 10)
INDEX = np.arange(10) % 3
ROPE = pn.Rotary(8)
FULL = pn.rotary.FullWidthRotary.of_dims(8, np.linspace(0.1, 1, 8))
IDS = np.array([[1, 0, 0], [1, 1, 0]])


def identity(x: Any) -> Any:
    return x


CALLS: dict[str, tuple[Any, ...]] = {
    "ContextParallel.shard": (
        lambda x: pn.positions.ContextParallel(0, 2).shard(x, 0),
        normal(8, 2),
    ),
    "ContextParallel.packed": (
        lambda x: tuple(pn.positions.ContextParallel(0, 2).packed(x, 12)), np.array([0, 4, 12])),
    "Rotary": (lambda inv_freq, axis_map: pn.Rotary(8, inv_freq=inv_freq, axis_map=axis_map).apply(
        Q, np.array([POSITIONS, POSITIONS + 1])), INV_FREQ, np.array([0, 1, 0, 1])),
    "Rotary()": (ROPE, Q, K, POSITIONS),
    "Rotary.apply": (ROPE.apply, Q, POSITIONS),
    "Rotary.tables": (ROPE.tables, POSITIONS),
    "FullWidthRotary()": (FULL, Q, K, POSITIONS),
    "FullWidthRotary.apply": (FULL.apply, Q, POSITIONS),
    "FullWidthRotary.of_dims": (
        lambda *each: pn.rotary.FullWidthRotary.of_dims(8, each[0]).apply(each[1]),
        np.linspace(0.1, 1, 8),
        Q,
    ),
    "SinusoidalSpec()": (pn.SinusoidalSpec(dim=8), POSITIONS),
    "SinusoidalSpec() of two axes": (pn.SinusoidalSpec(dim=8, axis_order=(0, 1)),
                                     (POSITIONS, POSITIONS + 1)),
    "GridCoordinates.of_mask": (
        lambda mask: pn.sinusoids.GridCoordinates().of_mask(mask, 2),
        IDS == 1,
    ),
    "accumulated_phases": (
        lambda *each: pn.selective.accumulated_phases(each[0], axis=0, starts=each[1]),
        normal(5, 2), np.array([0, 2, 5])),
    "add_sinusoidal": (pn.add_sinusoidal, Q, POSITIONS),
    "add_toeplitz_bias": (pn.add_toeplitz_bias, SCORES, DIAGONALS),
    "add_toeplitz_bias of rows": (
        lambda *each: pn.add_toeplitz_bias(*each[:2], q_offset=each[2], origin=4),
        SCORES, DIAGONALS, np.array([0, 0])),
    "add_unrotated_tokens": (lambda x: pn.positions.add_unrotated_tokens(x, before=1), POSITIONS),
    "alibi_columns": (
        lambda *each: pn.relative.alibi_columns(2, 3, key_mask=each[0], slopes=each[1]),
        IDS,
        np.array([0.5, 0.25]),
    ),
    "alibi_diagonals": (
        lambda *each: pn.relative.alibi_diagonals(2, 3, 4, q_offset=each[0], slopes=each[1]),
        np.array([1, 2]), np.array([0.5, 0.25])),
    "apply_rotary": (
        lambda *each: pn.apply_rotary(*each[:3], axis_map=each[3]),
        Q, np.array([POSITIONS, POSITIONS]), INV_FREQ, np.array([0, 1, 0, 1])),
    "apply_rotary_qk": (pn.apply_rotary_qk, Q, K, POSITIONS, INV_FREQ),
    "apply_rotary_qk by tables": (public("apply_rotary_qk by tables"), Q, K, COS, SIN),
    "apply_rotary by tables": (public("apply_rotary by tables"), Q, COS, SIN),
    "augment_coordinates": (
        lambda x: pn.positions.augment_coordinates(
            x, shift=0.5, generator=np.random.default_rng(0)
        ),
        normal(2, 6)),
    "axial_rotary": (lambda x: pn.rotary.axial_rotary(8, inv_freq=x).tables(np.array([[1], [2]])),
                     INV_FREQ[:2]),
    "clipped_diagonals": (
        lambda *each: pn.relative.clipped_diagonals(each[0], 3, 4, q_offset=each[1]),
        normal(5, 2), np.array([1, 2])),
    "clipped_index": (lambda x: pn.relative.clipped_index(3, 4, 2, q_offset=x), np.array([1, 2])),
    "combine": (pn.absolute.combine, Q, normal(5, 8)),
    "decomposed_scores": (
        lambda q, *tables: pn.relative.decomposed_scores(q, tables, (5, 1)),
        Q, normal(9, 8), normal(1, 8)),
    "deberta_bucket": (pn.relative.deberta_bucket, POSITIONS),
    "deberta_index": (lambda x: pn.relative.deberta_index(3, 4, q_offset=x), np.array([1, 2])),
    "diagonal_sums": (pn.diagonal_sums, SCORES),
    "expected_pairing": (
        lambda x: np.array(list(pn.checkpoints.expected_pairing(
            lambda pairing: Q + (pairing == "half"), x).scores.values())), Q),
    "bias_at_positions": (
        lambda *each: pn.relative.bias_at_positions(*each),
        normal(2, 9), np.array([0, 2]), np.array([[0, 1, 2]])),
    "fire_bias": (
        lambda c, threshold, offset: pn.relative.fire_bias(
            3, 4, lambda x: np.repeat(x, 2, -1), c=c, threshold=threshold, q_offset=offset),
        np.array(0.2), np.array(100.0), np.array([0, 1])),
    "guess_pairing": (
        lambda q, k: np.array(list(pn.checkpoints.guess_pairing([(q, k)], 16).scores.values())),
        normal(32, 8), normal(16, 8)),
    "kerple_diagonals": (
        lambda *each: pn.relative.kerple_diagonals(*each[:2], 3, 4, q_offset=each[2]),
        np.array([1.0, 2.0]), np.array([0.5, 0.1]), np.array([0, 1])),
    "learned_positions": (pn.absolute.learned_positions, normal(9, 4), POSITIONS),
    "linear_positions": (lambda x, scale: pn.absolute.linear_positions(x, 2, scale=scale),
                         POSITIONS, np.array([1.0, 0.5])),
    "norm_rotary_qk": (
        lambda *each: pn.norm_rotary_qk(*each[:4], q_weight=each[4], k_weight=each[5]),
        Q, K, POSITIONS, INV_FREQ, normal(8), normal(2, 8)),
    "norm_rotary_qk by tables": (
        lambda *each: pn.norm_rotary_qk(*each[:2], None, pn.Tables(*each[2:4]), q_weight=each[4]),
        Q, K, COS, SIN, normal(4, 8)),
    "normalized_positions": (pn.absolute.normalized_positions, POSITIONS, np.array(9)),
    "normalized_positions of a mask": (lambda x: pn.absolute.normalized_positions(mask=x), IDS),
    "packed_grid_positions": (lambda x: pn.positions.packed_grid_positions(x, 10),
                              np.array([[1, 2, 2], [1, 2, 3]])),
    "packed_positions": (lambda x, start: pn.positions.packed_positions(x, 5, start=start),
                         np.array([0, 2, 5]), np.array([1, 0])),
    "packed_segments": (lambda x: pn.positions.packed_segments(x, 5), np.array([0, 2, 5])),
    "padded_positions": (lambda x, start: pn.positions.padded_positions(x, start=start),
                         IDS, np.array([1, 0])),
    "permute_qk": (lambda x: pn.checkpoints.permute_qk(x, 8, to="half"), normal(16, 3)),
    "phase_tables": (pn.selective.phase_tables, np.array([[0, 2**62], [-5, 1]])),
    "permute_state_dict": (
        lambda x: list(
            pn.checkpoints.permute_state_dict({"q_proj.weight": x}, 8, to="half").values()
        ),
        normal(16, 3)),
    "recurrent_positions": (
        lambda *each: pn.absolute.recurrent_positions(4, *each),
        normal(2), normal(6, 2), normal(6), normal(6)),
    "relative_gather": (
        lambda x, index, content: pn.relative_gather(x, index, 6, content=content),
        normal(2, 5, 3), INDEX, normal(2, 5, 6)),
    "relative_position_bucket": (pn.relative.relative_position_bucket, POSITIONS),
    "relative_positions": (
        lambda x: pn.relative.relative_positions(3, 4, q_offset=x),
        np.array([1, 2]),
    ),
    "relative_scatter": (lambda x, index: pn.relative_scatter(x, index, 3), SCORES, INDEX),
    "rerotate": (lambda *each: pn.rerotate(*each, ROPE), K, POSITIONS, POSITIONS + 4),
    "resample_positions": (lambda x: pn.absolute.resample_positions(x, 6), normal(4, 3)),
    # Caches are written to, so they are arrays of NumPy.
    "rotary_append": (
        lambda *each: pn.rotary_append(
            *each[:5], *np.zeros((2, 2, 2, 5, 8), np.float32), each[5], q_weight=each[6]),
        Q, K, normal(2, 2, 5, 8), POSITIONS, INV_FREQ, np.arange(5), normal(8)),
    "rotary_append by tables": (
        lambda *each: pn.rotary_append(
            *each[:3], None, pn.Tables(*each[3:5]), *np.zeros((2, 2, 2, 5, 8), "f"), each[5]),
        Q, K, normal(2, 2, 5, 8), COS, SIN, np.arange(5)),
    "rotary_tables": (
        lambda x, w, axes: pn.rotary_tables(x, w, axis_map=axes),
        np.array([POSITIONS, POSITIONS]), INV_FREQ, np.array([0, 1, 0, 1])),
    "sandwich_diagonals": (
        lambda x: pn.relative.sandwich_diagonals(2, 3, 4, q_offset=x),
        np.array([0, 1]),
    ),
    "selective_rotary_qk": (
        lambda *each: pn.selective_rotary_qk(*each, layout="bhsd"), Q, K, normal(2, 1, 5, 4)),
    "sinusoidal": (lambda x: pn.sinusoidal(x, 8), POSITIONS),
    "sinusoidal of floats": (lambda x: pn.sinusoidal(x, 8), POSITIONS / 3),
    "SinusoidalSpec": (pn.SinusoidalSpec.preset("diffusers_timestep", 8), POSITIONS),
    "SinusoidalSpec of a grid": (pn.SinusoidalSpec(8, axis_order=(0, 1)), normal(3, 2)),
    "swin_diagonals": (lambda x: pn.relative.swin_diagonals(x, (2, 2)), normal(9, 3)),
    "t5_diagonals": (lambda x, offset: pn.relative.t5_diagonals(x, 3, 4, q_offset=offset),
                     normal(32, 2), np.array([0, 1])),
    "toeplitz_bias": (lambda x: pn.toeplitz_bias(x, 5, 6), DIAGONALS),
    "vision_language_positions": (
        pn.positions.vision_language_positions,
        np.array([[0, 1, 1, 1, 1, 0]]), np.array([[1, 4, 4]])),
    "xpos_tables": (
        lambda *each: sum(pn.rotary.xpos_tables(*each)[:2], ()), POSITIONS, INV_FREQ),
}  # fmt: skip

NO_ARRAYS = {
    "GridCoordinates", "FullWidthRotary", "Tables",
    "alibi_slopes",
    "compare", "explain", "frequencies", "get_num_threads",
    "grid_positions",
    "image_coordinates", "mixed_frequencies", "mrope_axis_map", "nope_layers",
    "rotary_frequencies", "set_backend", "set_num_threads", "shift_matrix",
    "show_config", "softmax_correction", "swin_v2_coordinates",
    "vision_rotary", "wavelengths",
}  # fmt: skip


class OnlyArray:
    """Like a pandas Series or an xarray DataArray: it becomes a NumPy array if asked."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        assert dtype is None
        assert copy is not True
        return self.array


class OnlyDLPack:
    """Memory that can be exchanged, and nothing else; it counts copies."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device, self.exports, self.copies = array, device, 0, 0

    def __dlpack__(self, *, copy: bool | None = None, **options: Any) -> Any:
        self.exports += 1
        self.copies += copy is True
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def memory_mapped(array: np.ndarray) -> np.ndarray:
    return array.view(np.memmap)


def of_jax(array: np.ndarray) -> Any:
    with warnings.catch_warnings():  # 64 bits become 32
        warnings.simplefilter("ignore")
        return jnp.asarray(array)


KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "__array__": OnlyArray,
    "DLPack": OnlyDLPack,
    "memmap": memory_mapped,
    "JAX": of_jax,
}


def replaced(value: Any, change: Callable[[np.ndarray], Any]) -> Any:
    """The value with each array in it changed."""
    if isinstance(value, np.ndarray):
        return change(value)
    return tuple(replaced(v, change) for v in value) if isinstance(value, tuple) else value


def arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from arrays(each)
    else:
        yield value


def test_every_function_is_here():
    modules = (
        "absolute",
        "checkpoints",
        "positions",
        "relative",
        "rotary",
        "selective",
        "sinusoids",
    )
    public = set(pn.__all__).union(*(getattr(pn, name).__all__ for name in modules))
    public -= {*modules, "flex", "hf", "nn", "plot"}
    called = {name.partition(" ")[0].partition(".")[0].removesuffix("()") for name in CALLS}
    assert public - NO_ARRAYS <= called
    assert called | NO_ARRAYS <= public


@pytest.mark.parametrize("name", CALLS)
def test_arrays_of_other_kinds(name, backend, subtests):
    for kind in KINDS:
        with subtests.test(kind):
            if kind == "JAX" and jnp is None:
                pytest.skip("needs JAX")
            if (name, kind) == ("phase_tables", "JAX"):
                pytest.skip("JAX makes int32 of int64, unless jax_enable_x64 is set: no phases")
            _assert_read_as_of_numpy(kind, *CALLS[name])


def _assert_read_as_of_numpy(kind, function, *given):
    foreign = replaced(given, KINDS[kind])
    plain = replaced(given, lambda x: np.array(KINDS["JAX"](x)) if kind == "JAX" else x)
    for got, expected in zip(arrays(function(*foreign)), arrays(function(*plain)), strict=True):
        assert type(got) is np.ndarray
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


# Arguments are read before any backend is asked.
@pytest.mark.parametrize("name", CALLS)
def test_masked_arrays_are_refused(name):
    function, *given = CALLS[name]
    with pytest.raises(
        TypeError, match=r"^[\w.]+: .*: expected an array without a mask, got a mask"
    ):
        function(*replaced(tuple(given), lambda x: np.ma.array(x, mask=x > 0)))


@pytest.mark.parametrize("name", CALLS)
def test_arrays_elsewhere_are_refused(name):
    function, *given = CALLS[name]
    message = (
        r"^[\w.]+: .*: expected an array on the CPU, or a torch tensor, got OnlyDLPack on CUDA:1"
    )
    with pytest.raises(TypeError, match=message):
        function(*replaced(tuple(given), lambda x: OnlyDLPack(x, (2, 1))))


def test_memory_is_read_where_it_is():
    for foreign in (OnlyArray(Q), OnlyDLPack(Q), memory_mapped(Q), COS.view(np.matrix)):
        read = arguments.as_array("f", "x", foreign)
        assert type(read) is np.ndarray
        assert np.shares_memory(read, COS if isinstance(foreign, np.matrix) else Q)
    packed = OnlyDLPack(Q)
    pn.apply_rotary(packed, None, INV_FREQ)
    assert (packed.exports, packed.copies) == (1, 0)


@NEEDS_JAX
def test_jax_memory_is_read_where_it_is():
    given = jnp.asarray(Q)
    read = arguments.as_array("f", "x", given)
    assert read.ctypes.data == given.unsafe_buffer_pointer()


@NEEDS_JAX
def test_bfloat16_of_jax():
    given = jnp.asarray(Q).astype(jnp.bfloat16)
    turned = pn.apply_rotary(given, POSITIONS, INV_FREQ)
    assert turned.dtype == ml_dtypes.bfloat16
    same = pn.apply_rotary(np.asarray(given), POSITIONS, INV_FREQ)
    np.testing.assert_array_equal(turned.view(np.uint16), same.view(np.uint16))
    assert jnp.asarray(turned).dtype == jnp.bfloat16


@NEEDS_JAX
def test_an_array_that_jax_traces_says_so():
    import jax

    with pytest.raises(TypeError, match=r"apply_rotary: x: expected an array.*[Tt]race"):
        jax.jit(lambda x: pn.apply_rotary(x, None, INV_FREQ))(Q)


def test_pandas():
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    series = pandas.Series(POSITIONS)
    np.testing.assert_array_equal(pn.sinusoidal(series, 8), pn.sinusoidal(POSITIONS, 8))
    frame = pandas.DataFrame(COS, columns=list("abcd"))
    turned = pn.apply_rotary(frame, None, INV_FREQ[:2], layout="sd")
    np.testing.assert_array_equal(turned, pn.apply_rotary(COS, None, INV_FREQ[:2], layout="sd"))
    with pytest.raises(ValueError, match="positions"):  # NumPy has NaN for what is missing
        pn.sinusoidal(pandas.Series([1, None], dtype="Int64"), 8)
    with pytest.raises(TypeError, match="positions"):
        pn.sinusoidal(pandas.Series(["1"]), 8)


@pytest.mark.parametrize(
    "wrong",
    [
        np.array([(1.0, 2.0)], dtype=[("a", float), ("b", float)]),
        np.array([1, None]),
        np.array(["1"]),
        np.array([True]),
        {"a": 1},
        object(),
    ],
    ids=["structured", "objects", "strings", "bools", "dict", "object"],
)
def test_what_is_no_array_of_numbers(wrong, backend):
    with pytest.raises(TypeError, match=r"^sinusoidal: positions: expected"):
        pn.sinusoidal(wrong, 8)
    with pytest.raises(TypeError, match=r"^apply_rotary: x: expected"):
        pn.apply_rotary(wrong, None, INV_FREQ, layout="sd")


@pytest.mark.parametrize("wrong", [[1j, 2], np.array(["1", "2"]), [None, {}]], ids=str)
def test_numbers_are_not_cut_off(wrong):
    """Neither an imaginary part nor quotation marks."""
    with pytest.raises(TypeError, match=r"^linear_positions: scale: expected real numbers, got"):
        pn.absolute.linear_positions(3, 2, scale=wrong)
    with pytest.raises(TypeError, match=r"^expected_pairing: reference: expected real numbers"):
        pn.checkpoints.expected_pairing(lambda pairing: Q, wrong)


class Anything:
    """Like an object that torch.fx traces with: it has every name that it is asked for."""

    def __getattr__(self, name: str) -> Any:
        return self


def test_what_has_every_name_is_no_array():
    assert not arguments.is_array(Anything())
    for function in (lambda x: pn.apply_rotary(x, None, INV_FREQ), lambda x: ROPE(x, x)):
        with pytest.raises(TypeError, match=r"expected a NumPy array or a torch tensor, got Any"):
            function(Anything())


def test_a_matrix_is_its_numbers(backend):
    table = pn.apply_rotary(Q[0, 0].view(np.matrix), None, pn.Tables(COS, SIN), layout="sd")
    assert type(table) is np.ndarray
    np.testing.assert_array_equal(
        table, pn.apply_rotary(Q[0, 0], None, pn.Tables(COS, SIN), layout="sd")
    )


# --- results in memory that is given


def test_a_file_is_rotated_in_place(tmp_path, backend):
    """The point of memmap: keys larger than memory."""
    q, k = (
        np.memmap(tmp_path / name, np.float32, "w+", shape=x.shape)
        for name, x in (("q", Q), ("k", K))
    )
    q[...], k[...] = Q, K
    expected = ROPE(Q, K, POSITIONS)
    rotated = ROPE(q, k, POSITIONS, inplace=True)
    assert rotated[0] is q
    assert rotated[1] is k
    np.testing.assert_array_equal(q, expected[0])
    np.testing.assert_array_equal(k, expected[1])
    q.flush()
    np.testing.assert_array_equal(
        np.fromfile(tmp_path / "q", np.float32).reshape(Q.shape), expected[0]
    )
    k[...] = K
    assert pn.apply_rotary(k, POSITIONS, INV_FREQ, out=k) is k
    k[...] = K
    assert pn.rerotate(k, None, POSITIONS, ROPE, out=k) is k
    xpos = functools.partial(pn.apply_rotary_qk, inv_freq=pn.rotary.xpos_tables(POSITIONS, ROPE))
    for function, positions in ((FULL, POSITIONS), (xpos, None)):
        q[...], k[...] = Q, K
        rotated = function(q, k, positions, inplace=True)
        assert rotated[0] is q
        assert rotated[1] is k
        np.testing.assert_array_equal(q, function(Q, K, positions)[0])
    q[...], k[...] = Q, K
    steps = normal(2, 1, 5, 4)
    rotated = pn.selective_rotary_qk(q, k, steps, layout="bhsd", inplace=True)
    assert rotated[0] is q
    assert rotated[1] is k
    np.testing.assert_array_equal(q, pn.selective_rotary_qk(Q, K, steps, layout="bhsd")[0])
    scores = memory_mapped(SCORES.copy())
    assert pn.add_toeplitz_bias(scores, DIAGONALS, out=scores) is scores
    np.testing.assert_array_equal(scores, pn.add_toeplitz_bias(SCORES, DIAGONALS))


@pytest.mark.parametrize("kind", [OnlyArray, OnlyDLPack, pytest.param(of_jax, marks=NEEDS_JAX)])
def test_others_are_not_written(kind, backend):
    """They may be immutable or a copy: a call is refused, rather than its result lost."""
    q, k = Q.copy(), K.copy()
    for call in (
        lambda: ROPE(kind(q), kind(k), inplace=True),
        lambda: FULL(kind(q), kind(k), inplace=True),
        lambda: pn.apply_rotary_qk(kind(q), kind(k), None, pn.Tables(COS, SIN), inplace=True),
        lambda: pn.apply_rotary(q, None, INV_FREQ, out=kind(q)),
        lambda: pn.add_sinusoidal(q, out=kind(q)),
        lambda: pn.sinusoidal(5, 8, out=kind(COS.repeat(2, 1))),
        lambda: pn.toeplitz_bias(DIAGONALS, 5, 6, out=kind(SCORES[0])),
    ):
        with pytest.raises(TypeError, match=r": (q|out): expected a (NumPy|writable)? ?.*array"):
            call()
    np.testing.assert_array_equal(q, Q)
    np.testing.assert_array_equal(k, K)


@pytest.mark.parametrize("rope", [ROPE, FULL], ids=["Rotary", "FullWidthRotary"])
def test_nothing_is_written_where_one_cannot_be(rope, backend):
    q, fixed, whole = Q.copy(), K.copy(), Q.copy()
    fixed.flags.writeable = False
    for pair in ((q, fixed), (q, K.astype(np.float64)), (whole, whole[:, :2])):
        before = pair[0].copy()
        with pytest.raises((ValueError, TypeError), match=r": [qk]: expected"):
            rope(*pair, inplace=True)
        np.testing.assert_array_equal(pair[0], before)


@pytest.mark.parametrize("name", CALLS)
def test_results_are_no_views_of_arguments(name):
    """Arrays of another library may be immutable."""
    function, *given = CALLS[name]
    for result in arrays(function(*given)):
        for x in arrays(tuple(given)):
            assert not np.shares_memory(result, x)


# --- beside torch


def test_foreign_arrays_beside_tensors():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(Q)
    same = pn.apply_rotary(x, torch.from_numpy(POSITIONS), INV_FREQ)
    for kind in (OnlyArray, OnlyDLPack):
        turned = pn.apply_rotary(x, kind(POSITIONS), kind(INV_FREQ))
        assert torch.equal(turned, same)


def test_nothing_is_imported_to_look_at_an_array():
    """Not even numpy.ma, which an array with a mask has brought along."""
    program = textwrap.dedent(
        """
        import sys
        import numpy as np
        import posenc_native as pn
        pn.sinusoidal(3, 8)
        before = set(sys.modules)
        class Foreign:
            def __array__(self, dtype=None, copy=None):
                return np.arange(3)
        pn.sinusoidal(Foreign(), 8)
        pn.sinusoidal(np.arange(3).view(np.memmap), 8)
        print(sorted(set(sys.modules) - before))
        """
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stdout == "[]\n"


OUTPUTS = {
    "apply_rotary": lambda out: pn.apply_rotary(Q, POSITIONS, INV_FREQ, out=out),
    "apply_rotary in place": lambda out: pn.apply_rotary(out, POSITIONS, INV_FREQ, out=out),
    "apply_rotary by tables": lambda out: pn.apply_rotary(Q, None, pn.Tables(COS, COS), out=out),
    "Rotary.apply": lambda out: pn.Rotary(Q.shape[-1]).apply(Q, out=out),
    "rerotate": lambda out: pn.rerotate(Q, None, POSITIONS, pn.Rotary(Q.shape[-1]), out=out),
    "sinusoidal": lambda out: pn.sinusoidal(Q[..., 0], Q.shape[-1], out=out),
    "add_sinusoidal": lambda out: pn.add_sinusoidal(Q, out=out),
    "toeplitz_bias": lambda out: pn.toeplitz_bias(
        np.zeros((*Q.shape[:2], sum(Q.shape[2:]) - 1), Q.dtype), *Q.shape[2:], out=out
    ),
    "add_toeplitz_bias": lambda out: pn.add_toeplitz_bias(
        Q, np.zeros((Q.shape[1], sum(Q.shape[2:]) - 1), Q.dtype), out=out
    ),
    "relative_gather": lambda out: pn.relative_gather(Q, None, Q.shape[-1], out=out),
    "relative_scatter": lambda out: pn.relative_scatter(Q, None, Q.shape[-1], out=out),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_masked_arrays_are_not_written_to(name, backend):
    """A mask would stay as it was, over numbers that are others."""
    OUTPUTS[name](Q.copy())
    out = np.ma.array(Q.copy(), mask=Q > 0)
    with pytest.raises(TypeError, match=r"^\w+: \w+: expected an array without a mask, got a mask"):
        OUTPUTS[name](out)
    np.testing.assert_array_equal(out.data, Q)
