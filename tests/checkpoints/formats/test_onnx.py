"""ONNX: what graphs rotate is found again from their caches, and is that of the configuration."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_graphs import (
    DTYPES,
    ML,
    attention,
    by_length,
    constants,
    cosines,
    helper,
    model,
    onnx,
    rotary,
    save,
    tensors,
)
from published import PUBLISHED

import posenc_native as pn

LLAMA3_1 = PUBLISHED["llama-3.1"]["rope_scaling"]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LINEAR = {"rope_type": "linear", "factor": 8.0}
NAMES = "cos_cache", "sin_cache"

# The configuration, and what its exporter computes caches of: width, base, rows, scaling.
MODELS = {
    "llama-3": (PUBLISHED["llama-3"], (128, 5e5, 8192)),
    "llama-3.1": (PUBLISHED["llama-3.1"], (128, 5e5, 16384, LLAMA3_1)),
    "qwen2.5": (PUBLISHED["qwen2.5"], (128, 1e6, 16384)),
    "qwen2.5-yarn": (PUBLISHED["qwen2.5-yarn"], (128, 1e6, 16384, YARN)),
    "qwen3-yarn": (PUBLISHED["qwen3-yarn"], (128, 1e6, 16384, YARN)),
    "gpt-oss": (
        PUBLISHED["gpt-oss"],
        (64, 1.5e5, 16384, {**PUBLISHED["gpt-oss"]["rope_scaling"]}),
    ),
    "linear": (
        {**PUBLISHED["llama-2"], "rope_scaling": LINEAR}, (128, 1e4, 8192, LINEAR),
    ),
}  # fmt: skip


def fields(first, second, **settings):
    return [each.field for each in pn.compare(first, second, **settings).differences]


def scaling_of(path):
    (group,) = pn.explain(path).description.groups
    return group.arguments["scaling"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_the_configuration_is_found_again(name, dtype, tmp_path):
    config, given = MODELS[name]
    path = save(tmp_path / "m.onnx", [attention(i) for i in range(3)],
                tensors(cosines(*given), dtype=dtype))  # fmt: skip
    assert fields(path, config) == []
    report = pn.explain(path)
    assert report.layers[0].rotary.base == given[1]
    assert report.description.length == given[2]
    assert report.description.groups[0].layers == (0, 1, 2)


def test_scalings_are_named(tmp_path):
    for name, scaling in (("llama-3.1", LLAMA3_1), ("linear", LINEAR)):
        path = save(tmp_path / "m.onnx", [attention(0)], tensors(cosines(*MODELS[name][1])))
        assert scaling_of(path) == scaling
    # Rounded bounds of YaRN fit several lengths: that one is told of which the rows are a multiple.
    path = save(tmp_path / "m.onnx", [attention(0)], tensors(cosines(128, 1e6, 131072, YARN)))
    assert scaling_of(path) == YARN


# Where a pair of caches may be: nodes before those that rotate, and initializers.
def renamed(*operators, **attributes):
    nodes = []
    for name in NAMES:
        names = [*(f"{name}_{i}" for i in range(len(operators))), name]
        nodes += [
            helper.make_node(operator, [names[i]], [names[i + 1]], **attributes)
            for i, operator in enumerate(operators)
        ]
    return nodes


CACHES = cosines(64, 5e5, 4096)
FIRST = [f"{name}_0" for name in NAMES]
PLACES = {
    "initializers": ([], tensors(CACHES)),
    "Constant": (constants(tensors(CACHES)), []),
    "Cast": (renamed("Cast", to=DTYPES["float16"]), tensors(CACHES, FIRST)),
    "Cast of Constant": (
        [*constants(tensors(CACHES, FIRST)), *renamed("Cast", to=DTYPES["float16"])], [],
    ),
    "Identity, Cast, Identity": (
        [*renamed("Identity"),
         *(helper.make_node("Cast", [f"{name}_1"], [f"{name}_0"], to=1) for name in NAMES),
         *(helper.make_node("Identity", [f"{name}_2"], [f"{name}_1"]) for name in NAMES)],
        tensors(CACHES, [f"{name}_2" for name in NAMES]),
    ),
    # make_tensor writes 16 bits of floats as ints, one by one.
    "ints": (
        [],
        [helper.make_tensor(name, DTYPES["float16"], each.shape, each.astype(np.float16).ravel())
         for name, each in zip(NAMES, CACHES, strict=True)],
    ),
    "floats": (
        [],
        [helper.make_tensor(name, DTYPES["float32"], each.shape, each.ravel())
         for name, each in zip(NAMES, CACHES, strict=True)],
    ),
    "an inner graph": (
        [helper.make_node("Loop", [], [], body=helper.make_graph(
            [rotary(0)], "body", [], [], tensors(CACHES)))],
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_caches_may_be_anywhere(place, tmp_path):
    nodes, initializers = PLACES[place]
    path = save(tmp_path / "m.onnx", [*nodes, rotary(0), rotary(0, "k")], initializers)
    assert fields(path, pn.Rotary(64, base=5e5)) == []
    assert fields(path, pn.Rotary(64, base=4e5)) == ["base"]


def test_caches_in_a_file_beside_it(tmp_path, monkeypatch):
    folder = tmp_path / "snapshot"
    folder.mkdir()
    path = folder / "model.onnx"
    save(path, [attention(0)], tensors(CACHES, dtype="bfloat16"), save_as_external_data=True,
         location="model.onnx_data", size_threshold=0)  # fmt: skip
    assert (folder / "model.onnx_data").stat().st_size == 4 * CACHES[0].size
    rotation = pn.Rotary(64, base=5e5)
    assert fields(path, rotation) == []
    monkeypatch.chdir(folder)
    assert fields("model.onnx", rotation) == []
    # A cache of downloads keeps files elsewhere, side by side, and has links to them.
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for name, blob in (("model.onnx", "0a"), ("model.onnx_data", "1b")):
        (folder / name).rename(blobs / blob)
        (folder / name).symlink_to(f"../blobs/{blob}")
    assert fields(path, rotation) == []


DOMAINS = {"com.microsoft": ML, "ai.onnx": ""}


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("name", ["gpt-neox-20b", "gpt-j"])
def test_a_part_of_a_head(name, domain, tmp_path):
    width, interleaved = {"gpt-neox-20b": (24, 0), "gpt-j": (64, 1)}[name]
    given = {"rotary_embedding_dim": width, "num_heads": 8, "domain": DOMAINS[domain]}
    caches = tensors(cosines(width, 1e4, 2048))

    def saved(file, interleaved, **changes):
        nodes = [
            rotary(i, which, interleaved=interleaved, **{**given, **changes})
            for i in range(2)
            for which in "qk"
        ]
        return save(tmp_path / file, nodes, caches)

    config = PUBLISHED[name]
    path = saved("m.onnx", interleaved)
    assert fields(path, config) == []
    assert fields(saved("other.onnx", 1 - interleaved), config) == ["pairing"]
    assert fields(saved("other.onnx", 1 - interleaved), config, permuted=True) == []
    # The width of the head is not in the graph: it is not compared, and said to be unknown.
    assert f"{path}: head dimension: not in the file." in pn.compare(path, config).notes
    whole = saved("whole.onnx", interleaved, rotary_embedding_dim=0, num_heads=0)
    assert "head_dim" in fields(whole, config)


def test_interleaved_attention(tmp_path):
    caches = tensors(CACHES)
    path = save(tmp_path / "m.onnx", [attention(0, interleaved=1)], caches)
    assert fields(path, pn.Rotary(64, base=5e5, pairing="interleaved")) == []
    assert fields(path, pn.Rotary(64, base=5e5)) == ["pairing"]


SMOLLM3 = {**PUBLISHED["smollm3"], "num_hidden_layers": 8, "no_rope_layers": [1, 1, 1, 0] * 2}
ROTATING = [0, 1, 2, 4, 5, 6]


@pytest.mark.parametrize("fused", [True, False], ids=["in attention", "before it"])
def test_layers_without(fused, tmp_path):
    caches = tensors(cosines(128, 5e6, 8192))

    def saved(rotating):
        nodes = []
        for i in range(8):
            if not fused and i in rotating:
                nodes += [rotary(i), rotary(i, "k")]
            nodes.append(attention(i, rotary=int(fused and i in rotating)))
        return save(tmp_path / "m.onnx", nodes, caches)

    assert fields(saved(ROTATING), SMOLLM3) == []
    assert pn.explain(saved(ROTATING)).nope_layers == (3, 7)
    found = pn.compare(saved(range(8)), SMOLLM3).differences
    assert [(each.field, each.layers) for each in found] == [("nope_layers", (3, 7))]
    assert fields(saved(ROTATING), {**SMOLLM3, "num_hidden_layers": 7}) == ["layer_count"]


# LongRoPE: two pairs of caches


PHI = {**PUBLISHED["phi-3.5-mini"], "max_position_embeddings": 32768}
LONGROPE = {**PHI["rope_scaling"], "original_max_position_embeddings": 4096,
            "max_position_embeddings": 32768}  # fmt: skip
SMALL = cosines(96, 1e4, 4096, LONGROPE)
LARGE = cosines(96, 1e4, 32768, {**LONGROPE, "seq_len": 32768})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["If", "one after the other"])
def test_caches_by_length(form, dtype, tmp_path):
    if form == "If":
        nodes, caches = [by_length(LARGE, SMALL, dtype)], []
    else:  # as for DirectML
        both = [np.concatenate(each) for each in zip(SMALL, LARGE, strict=True)]
        nodes, caches = [], tensors(both, dtype=dtype)
    path = save(tmp_path / "m.onnx", [*nodes, attention(0)], caches)
    assert fields(path, PHI) == []
    ground = pn.explain(path).description.ground
    assert (ground.kind, "by length" in ground.why) == ("unknown", True)
    found = scaling_of(path)
    assert found["rope_type"] == "longrope"
    assert found["original_max_position_embeddings"] == 4096
    if dtype == "float32":
        for key in ("short_factor", "long_factor"):
            np.testing.assert_allclose(found[key], LONGROPE[key], rtol=1e-6)
    for key in ("short_factor", "long_factor"):
        changed = {**PHI["rope_scaling"], key: [1.05 * each for each in LONGROPE[key]]}
        assert fields(path, {**PHI, "rope_scaling": changed}) == ["scaling"], key


# Others than those of the configuration


YARN_8 = {**YARN, "factor": 8.0, "attention_factor": 1.0}
DIFFERENT = {
    "a base": ("llama-3", (128, 1e4, 8192), ["base"]),
    "a base of another digit": ("llama-3", (128, 500100.0, 8192), ["base"]),
    "a factor": ("llama-3.1", (128, 5e5, 16384, {**LLAMA3_1, "factor": 32.0}), ["scaling"]),
    "a scaling lost": ("llama-3.1", (128, 5e5, 16384), ["scaling"]),
    "a kind": ("linear", (128, 1e4, 16384, YARN), ["scaling", "scale"]),
    "an attention factor": (
        "qwen2.5-yarn", (128, 1e6, 16384, {**YARN, "attention_factor": 1.0}), ["scale"],
    ),
    "both factors": ("qwen2.5-yarn", (128, 1e6, 16384, YARN_8), ["scaling", "scale"]),
    "a width": ("gpt-oss", (128, 1.5e5, 8192), ["head_dim", "rotary_dim", "scale"]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", DIFFERENT)
def test_differences_have_a_name(name, dtype, tmp_path):
    model_name, given, expected = DIFFERENT[name]
    caches = tensors(cosines(*given), dtype=dtype)
    whole = [rotary(0), rotary(0, "k")]
    assert fields(save(tmp_path / "m.onnx", whole, caches), MODELS[model_name][0]) == expected


def test_frequencies_that_no_base_explains(tmp_path):
    inv_freq = np.random.default_rng(0).uniform(1e-4, 1, 16)
    angles = np.arange(2048)[:, None] * inv_freq
    path = save(tmp_path / "m.onnx", [rotary(0)], tensors([np.cos(angles), np.sin(angles)]))
    assert fields(path, pn.Rotary(32, inv_freq=inv_freq)) == []
    inv_freq[7] *= 1.001
    assert fields(path, pn.Rotary(32, inv_freq=inv_freq)) == ["inv_freq"]


REFUSED = {
    "no rotation": ([helper.make_node("Relu", ["x"], ["y"])], [], "got none"),
    "an attention that does not rotate": ([attention(0, rotary=0)], [], "got none"),
    "frequencies of its own": (
        [helper.make_node("Attention", ["x"], ["y"], domain=ML, do_rotary=1)], [],
        "got one whose Attention computes its own frequencies",
    ),
    "computed caches": (
        [helper.make_node("Cos", ["angles"], ["cos_cache"]), rotary(0)], [],
        "expected constant caches, got 'cos_cache', which the graph computes",
    ),
    "no cosines": ([rotary(0)], tensors([np.ones((64, 8))] * 2), "got other caches"),
    "positions from 1": ([rotary(0)], tensors([each[1:] for each in CACHES]), "got other caches"),
    "one position": ([rotary(0)], tensors([each[:1] for each in CACHES]), "got [1, 32] and"),
    "shapes that differ": (
        [rotary(0)], tensors([CACHES[0], CACHES[1][:9]]), "got [4096, 32] and [9, 32]",
    ),
    "another width": (
        [rotary(0, rotary_embedding_dim=32)], tensors(CACHES),
        "rotary_embedding_dim: expected twice the 32 columns of its caches, got 32",
    ),
    "ints": (
        [rotary(0)],
        [onnx.numpy_helper.from_array(np.ones((8, 8), np.int64), name) for name in NAMES],
        "expected a tensor of floats, got one of type 7",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name, tmp_path):
    nodes, initializers, said = REFUSED[name]
    path = save(tmp_path / "m.onnx", nodes, initializers)
    with pytest.raises(ValueError, match=r"^explain: ") as error:
        pn.explain(path)
    assert said in str(error.value)


# What runs a graph


@pytest.mark.parametrize("interleaved", [0, 1], ids=["half", "interleaved"])
@pytest.mark.parametrize("name", ["llama-3.1", "qwen2.5-yarn", "linear"])
def test_rotates_as_the_graph_does(name, interleaved, tmp_path):
    """What ONNX's own implementation computes is what the description computes."""
    from onnx.reference import ReferenceEvaluator

    width, base, _, *scaling = MODELS[name][1]
    rows = 1024
    caches = tensors(cosines(width, base, rows, *scaling))
    node = rotary(0, domain="", interleaved=interleaved)
    shape = [2, 3, 8, width]
    inputs = [
        helper.make_tensor_value_info("q", DTYPES["float32"], shape),
        helper.make_tensor_value_info("positions", onnx.TensorProto.INT64, [2, 8]),
    ]
    output = helper.make_tensor_value_info("q_0", DTYPES["float32"], shape)
    graph = model([node], caches, inputs, [output])
    path = tmp_path / "m.onnx"
    onnx.save_model(graph, str(path))

    random = np.random.default_rng(0)
    x = random.standard_normal(shape).astype(np.float32)
    positions = random.integers(0, rows, (2, 8))
    (theirs,) = ReferenceEvaluator(graph).run(None, {"q": x, "positions": positions})
    ours = pn.explain(path).layers[0].rotary.apply(x, positions)
    # Their angles are products in float32: 2^-24 of up to 1024 radians, rounded twice.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1024 * 2.0**-23 * 2 * abs(x).max())
