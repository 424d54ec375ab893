"""Where the plugin for vLLM stays out, without vLLM. What it does in vLLM: tests/in_vllm/."""

from __future__ import annotations

import json
import sys
import types
from importlib import metadata

import pytest
from command_line import output_of as printed
from interpreters import output_of

pytest.importorskip("torch", reason="requirements/test.txt has it")

import posenc_native as pn
from posenc_native import vllm as plugin

ROTARY = "head_size rotary_dim max_position_embeddings base is_neox_style dtype init_cache"

# A stand-in for vLLM's structure: its register of classes, and a rotary class in its package.
CUSTOM_OP = """
from torch import nn
op_registry_oot = {}
class CustomOp(nn.Module):
    def __new__(cls, *args, **kwargs):
        return super().__new__(op_registry_oot.get(cls.__name__, cls))
    @classmethod
    def register_oot(cls, kind, name):
        op_registry_oot[name] = kind
    def forward_native(self, *args):
        raise NotImplementedError
    def forward(self, *args):
        return self.forward_native(*args)
"""
BASE = """
from vllm.model_executor.custom_op import CustomOp
made = []  # the layers with a table
class RotaryEmbeddingBase(CustomOp):
    pass
class RotaryEmbedding(RotaryEmbeddingBase):
    def __init__(self, {arguments}):
        super().__init__()
        self.head_size, self.rotary_dim, self.base = head_size, rotary_dim, base
        self.register_buffer("cos_sin_cache", self._compute_cos_sin_cache(), persistent=False)
    def _compute_cos_sin_cache(self):
        import torch
        made.append(type(self).__name__)
        return torch.ones(3, 4)
    def _compute_inv_freq(self, base):
        import torch
        return base ** -(torch.arange(0, self.rotary_dim, 2) / self.rotary_dim)
    def forward_native(self, {call}):
        return "vLLM's"
    def forward_cuda(self, {call}):
        return "vLLM's for GPUs"
class NewRotaryEmbedding(RotaryEmbedding):
    pass
"""
# A class that vLLM's register does not know, and a module that this platform does not use.
LONG = """
from torch import nn
class Phi3LongRoPEScaledRotaryEmbedding(nn.Module):
    def forward(self, positions, query, key=None):
        return "vLLM's"
"""
OF_ANOTHER_PLATFORM = "raise ImportError('no compiler')"
CONTEXT = """
current = None
def get_forward_context():
    return current
def is_forward_context_available():
    return current is not None
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Make the stand-in importable; a function that returns a layer after `register`."""
    before = {*sys.modules}

    def make(
        arguments=ROTARY, call="positions query key=None", platform="cpu", custom_op=CUSTOM_OP,
        base=BASE, context=CONTEXT, taken=False, rotary_dim=4, dtype="float32", off="",
    ):  # fmt: skip
        package = "model_executor/layers/rotary_embedding"
        asked = (f"is_{name} = lambda: {name == platform}" for name in ("cpu", "cuda"))
        platforms = "\n    ".join(["class current_platform:", *asked])
        base = base.replace("{arguments}", ", ".join(arguments.split()))
        for name, text in {
            "__init__": "",
            "envs": "environment_variables = {}",
            "forward_context": context,
            "platforms": platforms,
            "model_executor/__init__": "",
            "model_executor/custom_op": custom_op,
            "model_executor/layers/__init__": "",
            f"{package}/__init__": "from .base import RotaryEmbedding\nfrom .long import *",
            f"{package}/long": LONG,
            f"{package}/another": OF_ANOTHER_PLATFORM,
            f"{package}/base": base.replace("{call}", ", ".join(call.split())),
        }.items():
            file = tmp_path / "vllm" / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(plugin, "_switched_off", lambda: off)
        import torch
        from vllm.model_executor.layers.rotary_embedding import base as module

        if taken:
            from vllm.model_executor.custom_op import op_registry_oot

            op_registry_oot["RotaryEmbedding"] = module.RotaryEmbedding
        plugin.register()
        values = (8, rotary_dim, 16, 10000.0, True, getattr(torch, dtype), True)
        return [
            getattr(module, name)(*values[: len(arguments.split())])
            for name in ("RotaryEmbedding", "NewRotaryEmbedding")
        ]

    yield make
    for name in {*sys.modules} - before:
        if name.partition(".")[0] == "vllm":
            del sys.modules[name]


def _kinds(layers):
    return [type(layer).__name__ for layer in layers]


KEPT = ["RotaryEmbedding", "NewRotaryEmbedding"]


def test_a_known_class_is_replaced_and_an_unknown_stays(install, caplog):
    caplog.set_level("INFO")
    ours, theirs = install()
    assert _kinds([ours, theirs]) == ["ExactRotaryEmbedding", "NewRotaryEmbedding"]
    assert not [*ours.buffers()]
    assert tuple(ours.cos_sin_cache.shape) == (16, 4)
    assert tuple(theirs.cos_sin_cache.shape) == (3, 4)
    assert "exact angles and no table in a layer RotaryEmbedding" in caplog.text
    assert "own NewRotaryEmbedding stays: this library does not know this class" in caplog.text


def test_register_again_changes_nothing(install, caplog):
    """In a process that inherits another. A base without a rotation is no class to replace."""
    install()
    from vllm import envs
    from vllm.model_executor import custom_op
    from vllm.model_executor.layers import rotary_embedding

    long = rotary_embedding.Phi3LongRoPEScaledRotaryEmbedding
    assert long.__name__ == "ExactPhi3LongRoPEScaledRotaryEmbedding"
    before = dict(custom_op.op_registry_oot)
    assert sorted(before) == ["NewRotaryEmbedding", "RotaryEmbedding"]
    plugin.register()
    assert before == custom_op.op_registry_oot
    assert rotary_embedding.Phi3LongRoPEScaledRotaryEmbedding is long
    assert "another plugin" not in caplog.text
    # vLLM's name for files of compiled models has the values of these.
    assert envs.environment_variables["VLLM_POSENC_NATIVE"]()


def test_a_gpu_has_kernels_too(install):
    assert _kinds(install(platform="cuda")) == ["ExactRotaryEmbedding", "NewRotaryEmbedding"]


def test_a_table_is_made_when_it_is_read_and_not_saved(install):
    ours, _ = install(dtype="bfloat16")
    from vllm.model_executor.layers.rotary_embedding import base

    assert base.made == ["NewRotaryEmbedding"]
    assert str(ours.cos_sin_cache.dtype) == "torch.bfloat16"
    assert not ours.state_dict()


def test_other_ways_to_call_a_layer(install):
    """forward_native keeps its arguments and passes all of them on; a GPU has no other forward."""
    import torch

    ours, _ = install()
    positions, (q, k) = torch.arange(5), torch.randn(2, 5, 16)
    kept = q.clone(), k.clone()
    rotated = ours.forward_native(positions, q, k)
    assert all(map(torch.equal, (q, k), kept))
    assert not torch.equal(rotated[0], q)
    back = ours.forward_native(positions, *rotated, None, True)
    torch.testing.assert_close(back, kept)
    assert all(map(torch.equal, ours.forward_cuda(positions, q, k), rotated))


def test_dims_of_heads_that_a_class_rotates():
    """DeepSeek gives whole heads, or only their rotated dims."""
    import torch

    from posenc_native.vllm.layer import ExactRotary
    from posenc_native.vllm.rotations import KNOWN

    x = torch.arange(6.0).expand(2, 3, 6)
    for name, dims in (("", [0, 1, 2, 3]), ("V4", [2, 3, 4, 5])):
        known = KNOWN[f"Deepseek{name}ScalingRotaryEmbedding"]
        layer = types.SimpleNamespace(known=known, rotary_dim=4)
        assert ExactRotary._heads(layer, x, 2)[0, 0].tolist() == dims
        assert ExactRotary._heads(layer, x[..., :4], 2).shape == (2, 3, 4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"arguments": f"{ROTARY} warp=1"}, "other arguments in this version: warp"),
        (
            {"arguments": ROTARY.replace(" init_cache", "")},
            "other arguments in this version: init_cache",
        ),
        ({"call": "query key"}, "a call takes (query, key)"),
        ({"rotary_dim": 3}, "rotary_dim"),
        ({"base": BASE.replace("_compute_inv_freq", "_frequencies")}, "_compute_inv_freq"),
    ],
)
def test_a_class_that_has_changed_stays(install, caplog, changes, said):
    theirs, _ = install(**changes)
    assert type(theirs).__name__ == "RotaryEmbedding"
    assert tuple(theirs.cos_sin_cache.shape) == (3, 4)
    assert "vLLM's own RotaryEmbedding stays: " in caplog.text
    assert said in caplog.text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"platform": "rocm"}, "no kernels for this platform of vLLM; off"),
        (
            {"custom_op": CUSTOM_OP.replace("register_oot", "register_other")},
            "this version of vLLM has another structure",
        ),
        (
            {"context": CONTEXT.replace("get_forward_context", "context_of_this_run")},
            "this version of vLLM has another structure",
        ),
        ({"taken": True}, "another plugin has replaced vLLM's RotaryEmbedding"),
        ({"off": "POSENC_VLLM=0"}, ""),
    ],
)
def test_another_vllm_stays_as_it_is(install, caplog, changes, said):
    caplog.set_level("INFO")
    assert _kinds(install(**changes)) == KEPT
    assert said in caplog.text


def test_layers_of_a_long_step_share_tables(install, monkeypatch):
    """Never with another step, although all steps have one tensor of positions."""
    import torch

    layer, _ = install()
    from vllm import forward_context

    made, tables = [], pn.Rotary.tables
    monkeypatch.setattr(pn.Rotary, "tables", lambda *a, **o: made.append(a) or tables(*a, **o))
    q, k = torch.randn(2, 200, 16)
    positions = torch.arange(200)
    for tokens, calls in ((200, 1), (100, 0)):
        x = q[:tokens], k[:tokens]
        p = positions[:tokens]
        for step in range(2):
            positions += 7
            monkeypatch.setattr(forward_context, "current", None)
            wanted = layer(p, *(part.clone() for part in x))
            made.clear()
            monkeypatch.setattr(forward_context, "current", types.SimpleNamespace(step=step))
            for _ in range(3):
                got = layer(p, *(part.clone() for part in x))
                assert all(map(torch.equal, got, wanted))
            assert len(made) == calls


def test_tables_of_a_step_are_those_of_a_rotation_and_positions(install, monkeypatch):
    """Models have layers of two bases, and positions of several kinds."""
    import torch

    layer, _ = install()
    from vllm import forward_context

    layers = layer, type(layer)(8, 4, 16, 500.0, True, torch.float32, True)
    q, k = torch.randn(2, 200, 16)
    calls = [(x, p) for p in (torch.arange(200), torch.arange(200) + 7) for x in layers]
    wanted = [x(p, q.clone(), k.clone()) for x, p in calls]
    monkeypatch.setattr(forward_context, "current", types.SimpleNamespace())
    for _ in range(3):
        for (x, p), expected in zip(calls, wanted, strict=True):
            assert all(map(torch.equal, x(p, q.clone(), k.clone()), expected))


def test_without_vllm_it_is_silent():
    """Even where packages that it would need are there: it imports none of them."""
    code = """
        import sys
        from posenc_native import vllm
        vllm.register()
        print("torch" in sys.modules, vllm.state())
    """
    assert output_of(code) == "False off: vLLM is not installed\n"


def test_info_says_whether_it_is_active(monkeypatch, capsys, tmp_path):
    def said():
        return json.loads(printed("info --json", capsys))["plugin for vLLM"]

    monkeypatch.delenv("POSENC_VLLM", raising=False)
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    installed = metadata.distributions(name="vllm")
    if not [*installed]:
        assert said() == "off: vLLM is not installed"
        folder = tmp_path / "vllm-0.32.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Name: vllm\nVersion: 0.32.0\n")
    entry = tmp_path / "of_ours-1.dist-info"
    entry.mkdir()
    (entry / "METADATA").write_text("Name: of_ours\nVersion: 1\n")
    (entry / "entry_points.txt").write_text(f"[{plugin.GROUP}]\n{plugin.NAME} = a:b\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert said() == "active in vLLM 0.32.0"
    monkeypatch.setenv("VLLM_PLUGINS", "a,b")
    assert said() == "off: VLLM_PLUGINS=a,b does not name posenc_native"
    monkeypatch.setenv("VLLM_PLUGINS", "posenc_native_of_another")
    assert "does not name posenc_native" in said()
    monkeypatch.setenv("VLLM_PLUGINS", "a,posenc_native")
    assert said() == "active in vLLM 0.32.0"
    monkeypatch.setenv("POSENC_VLLM", "0")
    assert said() == "off: POSENC_VLLM=0"
    assert plugin.register() is None
    monkeypatch.delenv("POSENC_VLLM")
    monkeypatch.setattr(plugin, "GROUP", "vllm.without_plugins")
    assert said() == "off: this installation has no entry point for vLLM; install it again"


def test_the_package_has_the_entry_point():
    (found,) = metadata.entry_points(group=plugin.GROUP, name=plugin.NAME)
    assert found.load() is plugin.register
