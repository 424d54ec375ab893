"""Scalings: what they must be given, and what they refuse."""

import math

import numpy as np
import pytest
from scalings import REQUIRED

from posenc_native.core.frequencies.frequencies import frequencies
from posenc_native.core.frequencies.scaling import (
    ROTARY_SCALINGS,
    rotary_frequencies,
    softmax_correction,
)

# Scalings


def test_unknown_rope_type_names_those_known():
    with pytest.raises(ValueError, match=r"scaling\['rope_type'\].*yarn.*got 'su'"):
        rotary_frequencies(64, scaling={"rope_type": "su"})


@pytest.mark.parametrize(
    ("scaling", "hint"),
    [
        ({"rope_type": "yarm"}, r"got 'yarm'; did you mean 'yarn'\?$"),
        ({"rope_type": "linear", "factr": 2.0}, r"got 'factr'; did you mean 'factor'\?$"),
        ({"factor": 4.0}, r"got 'factor'; add 'rope_type', such as 'linear'$"),
        ({"rope_type": "linear", "colors": 2.0}, r"got 'colors'$"),
        ({"rope_type": "linear", 3: 2.0}, r"got 3$"),
    ],
)
def test_a_misspelled_name_gets_a_suggestion(scaling, hint):
    with pytest.raises(ValueError, match=hint):
        rotary_frequencies(64, scaling=scaling)


HIGH = "high_freq_factor"
YARN = {"rope_type": "yarn", **REQUIRED["yarn"]}
LONG_ROPE = {"rope_type": "longrope", **REQUIRED["longrope"]}


def test_every_rope_type_is_covered_here():
    assert list(REQUIRED) == list(ROTARY_SCALINGS)


@pytest.mark.parametrize("rope_type", REQUIRED)
def test_missing_and_nonsense_values_are_named(rope_type):
    good = {"rope_type": rope_type, **REQUIRED[rope_type]}
    rotary_frequencies(64, scaling=good)
    for key in REQUIRED[rope_type]:
        name = rf"^rotary_frequencies: scaling\['{key}'\]: expected .*, got "
        missing = {k: value for k, value in good.items() if k != key}
        for bad in (missing, {**good, key: None}):
            with pytest.raises(ValueError, match=name):
                rotary_frequencies(64, scaling=bad)
        if key.endswith("_factor") and isinstance(good[key], list):
            with pytest.raises(ValueError, match=name):
                rotary_frequencies(64, scaling={**good, key: [1.0] * 31})
            with pytest.raises(ValueError, match=name):
                rotary_frequencies(64, scaling={**good, key: [-1.0] * 32})
        else:
            for value in (0, -1) if key == "k" else (0.0, -1.0, math.inf, math.nan):
                with pytest.raises(ValueError, match=name):
                    rotary_frequencies(64, scaling={**good, key: value})
        for value in ("4", True, 1j):
            with pytest.raises(TypeError, match=name):
                rotary_frequencies(64, scaling={**good, key: value})
    with pytest.raises(ValueError, match=r"scaling: expected a key of rope_type .*'beta'"):
        rotary_frequencies(64, scaling={**good, "beta": 1})


@pytest.mark.parametrize(
    ("error", "match", "scaling"),
    [
        (TypeError, "scaling: expected a mapping", [("rope_type", "linear")]),
        (TypeError, "'truncate'", {"rope_type": "yarn", **REQUIRED["yarn"], "truncate": 1}),
        (ValueError, "'high_freq", {"rope_type": "llama3", **REQUIRED["llama3"], HIGH: 0.5}),
        (ValueError, "'partial_", {"rope_type": "proportional", "partial_rotary_factor": 1.5}),
        (ValueError, "'max_position", {"rope_type": "dynamic", "factor": 2.0, "seq_len": 9}),
        (ValueError, "'factor'.*finite base", {"rope_type": "ntk", "factor": 1e306}),
        (ValueError, "'alpha'.*finite base", {"rope_type": "ntk_alpha", "alpha": 1e305}),
        (ValueError, "'alpha'.*finite base", {"rope_type": "ntk_alpha", "alpha": 5e-324}),
        (ValueError, "'mixed_b'", {"rope_type": "ntk", "factor": 2.0, "mixed_b": -1.0}),
        (ValueError, "'long_mscale'", {**LONG_ROPE, "short_mscale": 1.2}),
        (ValueError, "'k'.*one of the 32 pairs", {"rope_type": "riflex", "k": 33, "L_test": 66}),
        (ValueError, "'L_test'.*more than 13.41", {"rope_type": "riflex", "k": 4, "L_test": 13}),
        (ValueError, "'axes'.*64 dims", {"rope_type": "axial", "axes": 7}),
        (ValueError, "'axes'", {"rope_type": "axial", "axes": 0}),
        (TypeError, "'axes'", {"rope_type": "axial", "axes": 2.0}),
        (TypeError, "'short_factor'.*a list", {**LONG_ROPE, "short_factor": 1.0}),
        (TypeError, "'short_factor'.*a list", {**LONG_ROPE, "short_factor": np.array(1.0)}),
        (TypeError, "'short_factor'.*real", {**LONG_ROPE, "short_factor": [True] * 32}),
        (TypeError, "'short_factor'.*real", {**LONG_ROPE, "short_factor": ["1"] * 32}),
        (ValueError, "'long_factor'", {**LONG_ROPE, "long_factor": [math.nan] * 32}),
        (ValueError, "'rope_theta'", {"rope_theta": 0.0}),
        (ValueError, "'rope_theta'.*base > 1", {**YARN, "rope_theta": 1.0}),
        (ValueError, "'beta_fast'.*beta_slow = 2", {**YARN, "beta_fast": 1, "beta_slow": 2}),
        (ValueError, "'beta_fast'.*beta_slow = 33", {**YARN, "beta_slow": 33}),
        # A value that the type does not read must still make sense.
        (ValueError, "'seq_len'", {"rope_type": "linear", "factor": 2.0, "seq_len": -1}),
        (TypeError, "'max_position", {"max_position_embeddings": "4096"}),
        (ValueError, "'partial_", {"partial_rotary_factor": math.nan}),
    ],
)
def test_bad_scalings(error, match, scaling):
    with pytest.raises(error, match=match):
        rotary_frequencies(64, scaling=scaling)


@pytest.mark.parametrize("key", ["attention_factor", "beta_fast", "beta_slow", "mscale"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, "1", True, None])
def test_optional_values_of_yarn(key, value):
    if value is None:  # as in configurations that list every key
        expected, got = (rotary_frequencies(64, scaling=s) for s in (YARN, {**YARN, key: None}))
        np.testing.assert_array_equal(got[0], expected[0])
        assert got[1] == expected[1]
        return
    for function in (lambda s: rotary_frequencies(64, scaling=s), softmax_correction):
        error = TypeError if isinstance(value, (str, bool)) else ValueError
        with pytest.raises(error, match=rf"scaling\['{key}'\]: expected .*, got "):
            function({**YARN, key: value})


def test_base_and_rope_theta_must_agree():
    scaling = {"rope_type": "default", "rope_theta": 5e5}
    expected = rotary_frequencies(64, 5e5)[0]
    np.testing.assert_array_equal(rotary_frequencies(64, scaling=scaling)[0], expected)
    np.testing.assert_array_equal(rotary_frequencies(64, 5e5, scaling)[0], expected)
    with pytest.raises(ValueError, match=r"base: expected scaling\['rope_theta'\] = 500000.0"):
        rotary_frequencies(64, 1e6, scaling)


def test_length_is_a_key_or_an_argument():
    scaling = {"rope_type": "longrope", **REQUIRED["longrope"]}
    short, long = frequencies(64), frequencies(64) / 2
    np.testing.assert_array_equal(rotary_frequencies(64, scaling=scaling)[0], short)
    np.testing.assert_array_equal(rotary_frequencies(64, scaling=scaling, seq_len=4096)[0], short)
    np.testing.assert_array_equal(rotary_frequencies(64, scaling=scaling, seq_len=4097)[0], long)
    with_key = {**scaling, "seq_len": 4097}
    np.testing.assert_array_equal(rotary_frequencies(64, scaling=with_key)[0], long)


@pytest.mark.parametrize("as_given", [np.int32, np.uint64, np.array, np.float64])
@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_lengths_are_numbers_of_numpy_too(rope_type, as_given):
    scaling = {"rope_type": rope_type, **REQUIRED[rope_type], "max_position_embeddings": 4096}
    expected = rotary_frequencies(64, scaling={**scaling, "seq_len": 8192})
    assert not np.array_equal(expected[0], rotary_frequencies(64, scaling=scaling)[0])
    length = as_given(8192)
    for given in ({"seq_len": length}, {"scaling": {**scaling, "seq_len": length}}):
        inv_freq, factor = rotary_frequencies(64, **{"scaling": scaling, **given})
        np.testing.assert_array_equal(inv_freq, expected[0])
        assert factor == expected[1]
    with pytest.raises(TypeError, match=r"scaling\['seq_len'\]: expected a real number"):
        rotary_frequencies(64, scaling={**scaling, "seq_len": np.array([8192])})


def test_lengths_are_tensors_too():
    torch = pytest.importorskip("torch", reason="tensors are the point")
    scaling = {"rope_type": "longrope", **REQUIRED["longrope"]}
    for given in ({"seq_len": torch.tensor(4097)}, {"seq_len": torch.tensor(4097.0)}):
        long = rotary_frequencies(64, scaling={**scaling, **given})[0]
        np.testing.assert_array_equal(long, frequencies(64) / 2)
        np.testing.assert_array_equal(rotary_frequencies(64, scaling=scaling, **given)[0], long)
    with pytest.raises(TypeError, match=r"scaling\['seq_len'\]: expected a real number"):
        rotary_frequencies(64, scaling=scaling, seq_len=torch.tensor([4097]))


def test_old_name_of_the_type_and_keys_of_other_use():
    scaling = {"type": "linear", "factor": 2.0, "mrope_section": [16, 24, 24], "rope_theta": None}
    np.testing.assert_array_equal(rotary_frequencies(64, scaling=scaling)[0], frequencies(64) / 2)
