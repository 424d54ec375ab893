"""The bfloat16 instructions of newer processors against AVX-512 without them: the same bits.

The instructions turn subnormal results into zeros, which the kernels must notice.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import posenc_native as pn
from posenc_native.engines import backend

pytestmark = pytest.mark.skipif(
    backend.native is None or "AVX3_BF16" not in backend.native.available_targets(),
    reason="needs the native module and a processor with AVX512_BF16 (Zen 4, Sapphire Rapids)",
)

# Every bfloat16, as rows of 256; and below, how a function of the library maps rows of dim numbers.
EVERY = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).reshape(256, 256)
POSITIONS = np.arange(256) * 37


def rotate(pairing: str, dim: int, out: bool) -> Callable[[np.ndarray], np.ndarray]:
    # Down to frequencies whose sines leave subnormal products.
    inv_freq = np.logspace(0, -30, dim // 2)

    def run(rows: np.ndarray) -> np.ndarray:
        x = rows[None, None]
        into = np.empty_like(x) if out else x.copy()
        source = x if out else into
        return pn.apply_rotary(source, POSITIONS, inv_freq, pairing=pairing, out=into)[0, 0]

    return run


CASES = {
    "rotary, half": rotate("half", 256, False),
    "rotary, interleaved": rotate("interleaved", 256, False),
    "rotary, half, out=": rotate("half", 256, True),
    "rotary, interleaved, part of a vector": rotate("interleaved", 202, True),
    "add_sinusoidal, interleaved": lambda x: pn.add_sinusoidal(x, x_scale=0.25),
    "add_sinusoidal, halves": lambda x: pn.add_sinusoidal(x, layout="sin_cos"),
    "sinusoidal": lambda x: pn.sinusoidal(256, 256, scale=2.0**-127, dtype=x.dtype),
}


@pytest.mark.parametrize("case", CASES)
def test_bits_are_those_without(case: str, native: None):
    results = {}
    for target in ("AVX3_BF16", "AVX3"):
        assert backend.native.set_target(target)
        try:
            results[target] = CASES[case](EVERY.copy()).view(np.uint16)
        finally:
            backend.native.set_target("")
    np.testing.assert_array_equal(results["AVX3_BF16"], results["AVX3"])


def test_subnormal_results_are_among_them():
    results = CASES["rotary, half"](EVERY.copy()).view(np.uint16)
    exponent, rest = results & 0x7F80, results & 0x7F
    assert np.count_nonzero((exponent == 0) & (rest != 0)) > 100
