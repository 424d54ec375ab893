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
class RotaryEmbeddingBase(CustomOp):
    pass
class RotaryEmbedding(RotaryEmbeddingBase):
    def __init__(self, {arguments}):
        super().__init__()
        self.head_size, self.rotary_dim, self.base = head_size, rotary_dim, base
        self.register_buffer("cos_sin_cache", self._compute_cos_sin_cache(), persistent=False)
    def _compute_cos_sin_cache(self):
        import torch
        return torch.ones(3, 4)
    def _compute_inv_freq(self, base):
        import torch
        return base ** -(torch.arange(0, self.rotary_dim, 2) / self.rotary_dim)
    def forward_native(self, {call}):
        return "vLLM's"
class NewRotaryEmbedding(RotaryEmbedding):
    pass
"""
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
        base=BASE, context=CONTEXT, taken=False, rotary_dim=4,
    ):  # fmt: skip
        package = "model_executor/layers/rotary_embedding"
        platforms = f"class current_platform:\n    is_cpu = is_cuda = lambda: {platform == 'cpu'}\n"
        base = base.replace("{arguments}", ", ".join(arguments.split()))
        for name, text in {
            "__init__": "",
            "envs": "environment_variables = {}",
            "forward_context": context,
            "platforms": platforms,
            "model_executor/__init__": "",
            "model_executor/custom_op": custom_op,
            "model_executor/layers/__init__": "",
            f"{package}/__init__": "from .base import RotaryEmbedding",
            f"{package}/base": base.replace("{call}", ", ".join(call.split())),
        }.items():
            file = tmp_path / "vllm" / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(plugin, "_switched_off", lambda: "")
        import torch
        from vllm.model_executor.layers.rotary_embedding import base as module

        if taken:
            from vllm.model_executor.custom_op import op_registry_oot

            op_registry_oot["RotaryEmbedding"] = module.RotaryEmbedding
        plugin.register()
        values = (8, rotary_dim, 16, 10000.0, True, torch.float32, True)
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
    monkeypatch.setenv("VLLM_PLUGINS", "a,posenc_native")
    assert said() == "active in vLLM 0.32.0"
    monkeypatch.setenv("POSENC_VLLM", "0")
    assert said() == "off: POSENC_VLLM=0"
    assert plugin.register() is None


def test_the_package_has_the_entry_point():
    (found,) = metadata.entry_points(group=plugin.GROUP, name=plugin.NAME)
    assert found.load() is plugin.register
