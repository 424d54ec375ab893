"""Every operation on DTensors, cut in every way, beside the same operation on whole tensors."""

from __future__ import annotations

import pytest
from processes import run

pytest.importorskip("torch")

import sharded_errors
import sharded_gradients
from sharded_calls import CASES
from sharded_compare import compare, compare_wrongly
from sharded_modules import MODULES

NAMES = [*CASES, *MODULES]
# torch.compile takes seconds a case: other cases, gradients and in place are slow tests.
COMPILED = ["apply_rotary_qk, of rows"]


def compared(count: int, shape: tuple[int, ...], names: list[str], *ways: str) -> int:
    """How many comparisons there were, on each of the ranks; failing where one is wrong."""
    found = run(count, compare, shape, names, ways)
    wrong = {what for one, _ in found for what in one}
    assert not wrong, "\n".join(sorted(wrong))
    return min(count for _, count in found)


def test_on_two_ranks() -> None:
    assert compared(2, (2,), NAMES, "gradients", "in place") > 40 * len(NAMES)


def test_on_a_mesh_of_two_axes() -> None:
    """Uneven parts, and empty ones; all operations are among the slow tests."""
    some = NAMES[::8]
    assert compared(4, (2, 2), some, "gradients", "in place") > 40 * len(some)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4,), (2, 2), (1, 4)], ids=str)
def test_on_four_ranks(shape: tuple[int, ...]) -> None:
    count = compared(4, shape, NAMES, "gradients", "in place", "most")
    assert count > (40 if len(shape) == 1 else 200) * len(NAMES)


def test_compiled() -> None:
    assert compared(2, (2,), COMPILED, "compile") > 5 * len(COMPILED)


@pytest.mark.slow
def test_all_compiled() -> None:
    # One after another: all at once, the ranks compile for longer than they are waited for.
    counts = [compared(2, (2,), [name], "gradients", "in place", "compile") for name in CASES]
    assert sum(counts) > 30 * len(CASES)


@pytest.mark.slow
def test_compiled_with_code() -> None:
    assert compared(2, (2,), COMPILED, "gradients", "in place", "compile", "inductor") > 30


@pytest.mark.parametrize(
    "name",
    ["apply_rotary_qk, counted", "apply_rotary_qk, of rows", "add_toeplitz_bias", "add_sinusoidal"],
)
def test_parts_that_begin_elsewhere_are_noticed(name: str) -> None:
    for wrong in run(2, compare_wrongly, name):
        assert any("values" in what for what in wrong)
        assert all("cuts ('',)" not in what for what in wrong)


@pytest.mark.parametrize("name", sharded_errors.ERRORS)
def test_errors(name: str) -> None:
    wrong = {what for one in run(2, sharded_errors.compare_error, name) for what in one}
    assert not wrong, "\n".join(sorted(wrong))


def test_other_meshes() -> None:
    """q and k are turned each by itself; what has to lie beside other tensors is refused."""
    assert run(4, sharded_errors.compare_meshes) == [[]] * 4


def test_a_plain_tensor_in_place_beside_one_that_is_followed() -> None:
    assert run(2, sharded_errors.compare_plain_in_place) == [[], []]


@pytest.mark.parametrize("name", sharded_errors.TWICE)
def test_second_derivatives(name: str) -> None:
    wrong = {what for one in run(2, sharded_errors.compare_second, name) for what in one}
    assert not wrong, "\n".join(sorted(wrong))


@pytest.mark.parametrize("name", sharded_gradients.CALLS)
def test_gradients_that_are_placed_unlike_results(name: str) -> None:
    wrong = {what for one in run(2, sharded_gradients.compare_placements, name) for what in one}
    assert not wrong, "\n".join(sorted(wrong))


def test_a_call_is_one_node() -> None:
    assert run(2, sharded_gradients.compare_node) == [[], []]
