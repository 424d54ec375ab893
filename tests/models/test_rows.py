"""The tables of models: what every row must have, and the form of the files."""

import dataclasses
import json
from pathlib import Path
from types import NoneType

import model_rows  # scripts/model_rows.py
import pytest
from posenc_native.rotary import axial_rotary

import posenc_native.models
from posenc_native import Rotary
from posenc_native.core.frequencies.axes import mrope_axis_map
from posenc_native.core.frequencies.scaling import ROTARY_SCALINGS
from posenc_native.models.diffusion import DiffusionFacts, diffusion_models
from posenc_native.models.facts import (
    GridRule,
    ModelFacts,
    TextRule,
    facts_of,
    model_facts,
    vision_grids,
    vision_models,
)
from posenc_native.models.layers import has_attention

FOLDER = Path(posenc_native.models.__file__).parent

NUMBER = (int, float)

# The kinds of the values under each key; a key with a star must be there.
PRESET = {
    "source*": str, "head_dim*": int, "base*": float, "length*": int, "pairing": str,
    "rotary_dim": int, "scaling": dict, "mrope": dict, "layers": dict, "corrects_softmax": bool,
    "nope": str, "note": str, "query_scale": dict,
}  # fmt: skip
LAYERS = {"head_dim": int, "base": float, "scaling": (dict, NoneType)}
FACTS = {
    "source*": str, "same_as": str, "refused": str, "rotary_if": dict, "defaults": dict,
    "defaults_or_scaling": bool, "flat": dict, "labels": dict, "pairing": str, "backward": bool,
    "trailing": bool, "global_head_dim": int, "mrope": dict, "rows_and_columns": bool,
    "full_attention_every": int, "others_linear": bool, "full_first": bool, "head_dim": int,
    "full_attention_nope": str, "nope_every": int, "corrects_softmax": bool, "note": str,
    "layers": dict, "base": str, "fixed": bool, "share": str, "parameters_only": bool,
    "own_parameters": bool, "flat_unknown": bool, "rotary_dim_unread": bool, "widening": int,
    "whole_share": bool, "unrotated": bool, "scalings": list, "needs": list, "query_scale": str,
}  # fmt: skip
VISION = {
    "source*": str, "axial*": dict, "parts": list, "trailing": bool, "positions": dict
}  # fmt: skip
AXIAL = {
    "axes_dim": list, "scaling": list,
    "axes": int, "base": float, "spectrum": str, "freq_scale": float, "order": str,
    "axis_order": list, "pairing": str, "tiled": bool,
}  # fmt: skip
POSITIONS = {
    "width_first": bool, "merge_size": int, "coordinates": str, "reference": list, "first": int,
    "row_ends": int, "before": list, "after": list, "note": str, "origin": float, "steps": list,
    "fps": float, "centered": bool, "text": dict,
}  # fmt: skip
TEXT = {"side*": str, "axes": list, "first": int, "after_patches": bool, "time_after": bool}
DIFFUSERS = {
    "source*": str, "models": dict, "grid": dict, "defaults": dict, "axes_dim": str, "base": str,
    "scaling": dict, "width": list, "all_heads": str, "beside": list, "refused": str,
    "unrotated": bool,
}  # fmt: skip
# Of a scaling, beside rope_type.
SCALING = {
    "rope_type*": str, "factor": NUMBER, "low_freq_factor": float, "high_freq_factor": float,
    "original_max_position_embeddings": int, "max_position_embeddings": int,
    "beta_fast": NUMBER, "beta_slow": NUMBER, "mscale": float, "mscale_all_dim": float,
    "attention_factor": float, "truncate": bool, "partial_rotary_factor": float,
    "short_factor": list, "long_factor": list,
}  # fmt: skip
# Of the parameters of a configuration, which may leave the type out.
PARAMETERS = {
    **{key.rstrip("*"): kinds for key, kinds in SCALING.items()},
    "rope_theta": float,
    "partial_rotary_factor": float,
    "llama_4_scaling_beta": float,
}


def table(name):
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def rows(name):
    return [pytest.param(model, row, id=model) for model, row in table(name).items()]


def check(values, schema):
    """That all that must be there is, nothing unknown is, and all is of the right kind."""
    kinds = {key.rstrip("*"): kind for key, kind in schema.items()}
    assert {key[:-1] for key in schema if key.endswith("*")} <= set(values) <= set(kinds)
    for key, value in values.items():
        kind = kinds[key] if isinstance(kinds[key], tuple) else (kinds[key],)
        assert type(value) in kind, (key, value)
        if isinstance(value, str):
            assert value == value.strip() != "", key


def check_scaling(scaling):
    check(scaling, SCALING)
    known = ROTARY_SCALINGS[scaling["rope_type"]]
    assert set(scaling) - {"rope_type"} <= set(known.keys)
    for key in ("short_factor", "long_factor"):
        assert all(type(factor) is float for factor in scaling.get(key, []))


def check_mrope(mrope, pairs=None):
    check(mrope, {"section*": list, "order*": str})
    section = mrope["section"]
    assert len(section) == 3
    assert all(type(count) is int for count in section)
    axes = mrope_axis_map(section, order=mrope["order"])
    assert pairs in (None, len(axes))


@pytest.mark.parametrize("name", ["diffusers", "facts", "presets", "vision"])
def test_tables_are_in_their_form(name):
    """A row once, and as scripts/model_rows.py writes it."""
    text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    pairs = []
    json.loads(text, object_pairs_hook=lambda found: pairs.append([key for key, _ in found]))
    assert all(len(keys) == len(set(keys)) for keys in pairs)
    assert text == model_rows.canonical(json.loads(text)), "python scripts/model_rows.py --write"


def test_every_table_is_checked_here():
    ours = {"diffusers", "facts", "presets", "vision"}
    assert {path.stem for path in FOLDER.glob("*.json")} == ours
    # tests/checkpoints/formats tries the rows of other engines.
    assert {path.stem for path in model_rows.TABLES} == {
        *ours,
        "llama_cpp",
        "mlx",
        "mlx_scalings",
        "served",
        "torchtune",
    }


# --- presets.json ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "row"), rows("presets"))
def test_rows_of_presets(name, row):
    check(row, PRESET)
    assert row.get("pairing", "interleaved") == "interleaved"  # "half" is the default
    assert row.get("nope", "every fourth layer") == "every fourth layer"
    assert row.get("corrects_softmax", True)
    assert row["head_dim"] % 2 == row.get("rotary_dim", 0) % 2 == 0
    assert 0 < row.get("rotary_dim", 2) < row["head_dim"]
    if "scaling" in row:
        check_scaling(row["scaling"])
    if "mrope" in row:
        check_mrope(row["mrope"], row.get("rotary_dim", row["head_dim"]) // 2)
    for layer_type, changes in row.get("layers", {}).items():
        assert has_attention(layer_type)
        check(changes, LAYERS)
        if changes.get("scaling"):
            check_scaling(changes["scaling"])
    facts = Rotary.presets()[name]
    assert (facts.source, facts.head_dim, facts.base) == (
        row["source"], row["head_dim"], row["base"]
    )  # fmt: skip


# --- facts.json -----------------------------------------------------------------------------------


def check_parameters(parameters):
    check(parameters, PARAMETERS)
    if "rope_type" in parameters:
        known = ROTARY_SCALINGS[parameters["rope_type"]]
        beside = {"rope_type", "rope_theta", "partial_rotary_factor", "llama_4_scaling_beta"}
        assert set(parameters) - beside <= set(known.keys)
    else:
        assert set(parameters) <= {"rope_theta", "partial_rotary_factor", "attention_factor"}


@pytest.mark.parametrize(("name", "row"), rows("facts"))
def test_rows_of_facts(name, row):
    check(row, FACTS)
    assert set(row) - {"source", "note"}, "nothing is said"
    assert row["source"].startswith("transformers 5.23, models/") or "same_as" in row
    # What is not so is not said.
    default = ModelFacts()
    for key, value in row.items():
        assert value != getattr(default, key), key
    defaults = row.get("defaults", {})
    by_type = {k: v for k, v in defaults.items() if v is None or isinstance(v, dict)}
    for parameters in by_type.values() if by_type else [defaults]:
        if parameters is not None:  # a layer type without rotary encoding
            check_parameters(parameters)
    assert set(by_type) in (set(), set(defaults))
    if "rotary_if" in row:
        assert list(row["rotary_if"]) == ["entry", "value", "default"]
        assert type(row["rotary_if"]["entry"]) is str
    for rule in row.get("flat", {}).values():
        check(rule, {"scaled*": bool, "base*": (str, NoneType)})
    if "flat" in row:
        assert set(row["flat"]) == set(defaults)
    for label in row.get("labels", {}).values():
        assert label in defaults
    if "mrope" in row:
        check_mrope(row["mrope"])
    assert row.get("pairing", "interleaved") == "interleaved"
    assert row.get("full_attention_nope", "always") in ("always", "beside_windows")
    assert row.get("full_attention_every", 2) > 1
    assert abs(row.get("nope_every", 2)) > 1
    if "same_as" in row:
        assert set(row) == {"source", "same_as"}
        assert facts_of(row["same_as"]) is not facts_of("a model of which nothing is known")


def test_the_schema_of_facts_is_that_of_the_class():
    fields = {field.name for field in dataclasses.fields(ModelFacts)}
    assert fields == {key.rstrip("*") for key in FACTS}
    assert list(table("facts")) == sorted(table("facts")) == list(model_facts())
    assert facts_of("a model of which nothing is known") == ModelFacts()


# --- vision.json ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "row"), rows("vision"))
def test_rows_of_vision_models(name, row):
    check(row, VISION)
    check(row["axial"], AXIAL)
    check(row.get("positions", {}), POSITIONS)
    check(row.get("positions", {}).get("text", {"side": "before"}), TEXT)
    sources = ("timm, models/eva", f"transformers 5.23, models/{name}", "diffusers 0.42, models/")
    assert row["source"].startswith(sources)
    assert axial_rotary(192, **row["axial"]) == axial_rotary(192, **vision_models()[name])
    assert len(row.get("parts", "xyz")) == 3


def test_the_schema_of_positions_is_that_of_the_class():
    assert {field.name for field in dataclasses.fields(GridRule)} == {"axes", *POSITIONS}
    assert {field.name for field in dataclasses.fields(TextRule)} == {
        key.rstrip("*") for key in TEXT
    }


@pytest.mark.parametrize(("name", "row"), rows("diffusers"))
def test_rows_of_diffusers(name, row):
    check(row, DIFFUSERS)
    assert len({"models", "refused", "unrotated"} & set(row)) == 1
    assert set(row.get("models", {})) <= set(vision_models())
    assert set(row.get("grid", {})) <= set(row.get("models", {}))
    conditions = [*row.get("models", {}).values(), *row.get("grid", {}).values()]
    entries = {key for values in conditions for key in values} | {*row.get("width", [])}
    entries |= {row[key] for key in ("axes_dim", "base", "all_heads") if key in row}
    entries |= {row["scaling"]["entry"]} if "scaling" in row else set()
    entries |= set() if "width" in row or "models" not in row else {"attention_head_dim"}
    assert entries == set(row.get("defaults", {}))


def test_the_schema_of_diffusers_is_that_of_the_class():
    assert {field.name for field in dataclasses.fields(DiffusionFacts)} == {
        key.rstrip("*") for key in DIFFUSERS
    }
    assert list(table("diffusers")) == sorted(table("diffusers")) == list(diffusion_models())


def test_what_is_read_cannot_be_changed():
    for read in (
        model_facts(),
        diffusion_models(),
        vision_models(),
        vision_grids(),
        Rotary.presets(),
    ):
        with pytest.raises(TypeError):
            read["mine"] = None
    with pytest.raises(AttributeError):
        facts_of("llama").pairing = "interleaved"
