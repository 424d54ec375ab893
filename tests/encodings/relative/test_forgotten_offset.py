"""Where queries and keys differ in number, what counts distances asks where the first query is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import posenc_native as pn

TABLE = np.ones((5, 2), np.float32)

# name: the call for so many queries and keys
FUNCTIONS: dict[str, Any] = {
    "relative_positions": pn.relative.relative_positions,
    "alibi_diagonals": lambda q, k, **at: pn.relative.alibi_diagonals(2, q, k, **at),
    "t5_diagonals": lambda q, k, **at: pn.relative.t5_diagonals(np.ones((32, 2)), q, k, **at),
    "clipped_diagonals": lambda q, k, **at: pn.relative.clipped_diagonals(TABLE, q, k, **at),
    "kerple_diagonals": lambda q, k, **at: pn.relative.kerple_diagonals([1.0], [1.0], q, k, **at),
    "sandwich_diagonals": lambda q, k, **at: pn.relative.sandwich_diagonals(2, q, k, **at),
    "fire_bias": lambda q, k, **at: pn.relative.fire_bias(q, k, lambda x: x, **at),
    "clipped_index": lambda q, k, **at: pn.relative.clipped_index(q, k, 2, **at),
    "deberta_index": pn.relative.deberta_index,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("queries", "keys"), [(1, 97), (3, 5), (5, 3), (0, 1)])
def test_the_error_names_both_readings_to_paste(name, queries, keys):
    with pytest.raises(ValueError, match=f"{name}: q_offset: ") as caught:
        FUNCTIONS[name](queries, keys)
    for offset in (0, keys - queries):
        assert f"q_offset={offset} " in str(caught.value)
        FUNCTIONS[name](queries, keys, q_offset=offset)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("length", [0, 1, 6])
def test_as_many_queries_as_keys_begin_with_them(name, length):
    np.testing.assert_array_equal(
        FUNCTIONS[name](length, length), FUNCTIONS[name](length, length, q_offset=0)
    )


MODULES = {
    "alibi_diagonals": lambda nn: nn.ALiBi(2),
    "kerple_diagonals": lambda nn: nn.Kerple(2),
    "sandwich_diagonals": lambda nn: nn.Sandwich(2),
    "t5_diagonals": lambda nn: nn.T5RelativeBias(2),
    "clipped_diagonals": lambda nn: nn.ClippedRelativeBias(2, 4),
    "fire_bias": lambda nn: nn.FIRE(2),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_asks_in_decoding(name):
    torch = pytest.importorskip("torch")
    module = MODULES[name](pn.nn)
    whole = module(torch.zeros(1, 2, 9, 9))
    for call in (lambda: module(torch.zeros(1, 2, 1, 9)), lambda: module.bias(1, 9)):
        with pytest.raises(ValueError, match=f"{name}: q_offset: .*q_offset=8 "):
            call()
    last = module(torch.zeros(1, 2, 1, 9), q_offset=8)
    torch.testing.assert_close(last, whole[:, :, -1:])


def test_a_table_of_distances_asks_too():
    pytest.importorskip("torch")
    module = pn.nn.RelativePositionalEncoding(8, 2)
    for call in (module.table, module.matrix):
        with pytest.raises(ValueError, match=r"RelativePositionalEncoding.*: q_offset: "):
            call(2, 5)
        call(2, 5, 3)
        call(5)


def test_diagonals_that_are_there_include_their_offset():
    diagonals = pn.relative.alibi_diagonals(2, 1, 9, q_offset=8)
    bias = pn.toeplitz_bias(diagonals, 1, 9)
    longer = pn.relative.alibi_diagonals(2, 9, 9)
    np.testing.assert_array_equal(bias, pn.toeplitz_bias(longer, 1, 9, q_offset=8, origin=8))
    np.testing.assert_array_equal(bias, pn.toeplitz_bias(longer, 1, 9, origin=0))
