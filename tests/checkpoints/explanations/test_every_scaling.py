"""Every rope_type of the register: explain, compare and from_config know it, however it is said."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from scalings import REQUIRED

import posenc_native as pn
from posenc_native.core.frequencies.scaling import ROTARY_SCALINGS
from posenc_native.core.frequencies.scaling_values import rope_type

PLAIN = pn.Rotary(64)


def words(rotary: pn.Rotary) -> str:
    return " ".join(str(pn.explain(rotary)).split())


@pytest.mark.parametrize("name", ROTARY_SCALINGS)
def test_explain_and_compare_know_every_type(name: str) -> None:
    """A rule needs no entry anywhere else; without words of its own it has general ones."""
    rotary = pn.Rotary(64, scaling={"rope_type": name, **REQUIRED[name]})
    said = words(rotary)
    assert (f"Scaling {name}: " if name != "default" else "No scaling: ") in said
    assert not re.search(r"\b(None|nan|inf)\b", said)
    json.dumps(pn.explain(rotary).to_dict(), allow_nan=False)

    assert pn.compare(rotary, rotary).verdict == "alike"
    for pair in ((rotary, PLAIN), (PLAIN, rotary)):
        found = pn.compare(*pair)
        alike = name == "default" or (rotary.inv_freq == PLAIN.inv_freq).all()
        assert bool(found) is (not alike or name in ("dynamic", "longrope"))
        assert all(name in str(each) for each in found.differences if each.field == "scaling")
        json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("name", ROTARY_SCALINGS)
def test_a_configuration_may_name_every_type(name: str) -> None:
    """Except "axial": a configuration cannot describe the order of its frequencies in a head."""
    scaling = {"rope_type": name, **REQUIRED[name]}
    config = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2,
              "max_position_embeddings": 8192, "rope_scaling": scaling}  # fmt: skip
    if name == "axial":
        for function in (pn.Rotary.from_config, pn.explain):
            with pytest.raises(ValueError, match=r"rope_type.*got axial"):
                function(config)
        return
    rotary = pn.Rotary.from_config(config)
    np.testing.assert_array_equal(rotary.inv_freq, pn.Rotary(64, scaling=scaling).inv_freq)
    assert (f"Scaling {name}: " if name != "default" else "No scaling: ") in words(config)
    assert pn.compare(config, rotary).verdict == "alike"


def test_words_of_a_type_that_has_none_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bent", "flat"):
        monkeypatch.setitem(ROTARY_SCALINGS, name, ROTARY_SCALINGS["default"])

    @rope_type("bent", "strength", "steps")
    def _bent(dim: int, base: float, values: Any) -> tuple[Any, float]:
        plain = pn.rotary.rotary_frequencies(dim, base)[0]
        plain[1:3] /= values.number("strength")
        plain[3] *= 2
        return plain, 1.0

    bent = pn.Rotary(8, scaling={"rope_type": "bent", "strength": 4.0, "steps": [1, 5]})
    assert (
        "Scaling bent: the frequencies follow a rule of this name with strength 4, steps 1 to 5. "
        "Number of pairs that keep their frequency: 1; that are slowed: 2 (by up to 4); that are "
        "faster: 1 (by up to 2)."
    ) in words(bent)
    flat = words(pn.Rotary(8, scaling={"rope_type": "flat"}))
    assert "a rule of this name. Number of pairs that keep their frequency: 4." in flat
    (scaling, *_) = pn.compare(bent, pn.Rotary(8)).differences
    assert scaling.words == ("bent", "none")


LENGTHS = {"max_position_embeddings": 8192, "original_max_position_embeddings": 4096}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096}
LONG = {"rope_type": "longrope", **REQUIRED["longrope"]}
LLAMA3 = {"rope_type": "llama3", **REQUIRED["llama3"]}
TRAINED = "original_max_position_embeddings"
# The same scaling, said in two ways.
SAID = {
    "type": ({"type": "linear", "factor": 2}, {"rope_type": "linear", "factor": 2.0}),
    "None": ({**YARN, "beta_fast": None, "mscale": None}, YARN),
    "truncate None": ({**YARN, "truncate": None}, {**YARN, "truncate": False}),
    "a factor of lengths": ({"rope_type": "yarn", **LENGTHS}, YARN),
    "a factor of lengths, longrope": (
        {**{k: v for k, v in LONG.items() if k != "factor"}, **LENGTHS}, LONG
    ),
    "one length": (
        {**{k: v for k, v in LLAMA3.items() if k != TRAINED}, "max_position_embeddings": 4096},
        LLAMA3,
    ),
    "arrays": ({**LONG, "long_factor": np.array(LONG["long_factor"])}, LONG),
    "NumPy numbers": ({**YARN, "factor": np.float32(2)}, YARN),
    "keys that are not read": ({**YARN, "mrope_section": [8, 12, 12]}, YARN),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_a_scaling_said_in_two_ways_is_one(name: str) -> None:
    one, other = (pn.Rotary(64, scaling=each) for each in SAID[name])
    assert pn.compare(one, other).verdict == "alike"
    assert pn.explain(one).layers[0].facts == pn.explain(other).layers[0].facts
    assert pn.compare(one, PLAIN).differences[0].words == (
        pn.compare(other, PLAIN).differences[0].words
    )
    json.dumps(pn.explain(one).to_dict())


def test_a_base_beside_a_scaling_is_the_base() -> None:
    beside = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    one = pn.Rotary(64, scaling=beside)
    other = pn.Rotary(64, base=5e5, scaling={"rope_type": "linear", "factor": 2.0})
    assert words(one) == words(other)
    assert [each.field for each in pn.compare(one, PLAIN).differences] == ["base", "scaling"]


def test_a_scaling_by_length_that_has_no_length() -> None:
    """Nothing can be computed beyond the trained length, so no distance is given."""
    dynamic = pn.Rotary(64, scaling={"rope_type": "dynamic", "factor": 2.0})
    found = pn.compare(dynamic, PLAIN)
    (difference,) = found.differences
    assert difference.words == ("dynamic, factor 2", "none")
    assert "up to the trained length" in difference.comment
    assert found.errors == ()
    assert "SGLang 0.5.23 computes them once, for 2 times the length in training" in words(dynamic)


def test_the_length_that_frequencies_are_shown_for() -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 4096}
    assert "shown are for shorter ones" in words(pn.Rotary(64, scaling=scaling))
    longer = pn.Rotary(64, scaling={**scaling, "seq_len": 9000})
    assert "shown are for 9,000 positions" in words(longer)
