"""For vLLM's own tests (-p plugged_in): the plugin is on, and cases for a GPU run on the CPU.

vLLM's tests compare `forward` with `forward_native` of the same layer. Both are ours, so here
`forward_native` is vLLM's formula, computed in float32 with the exact table. vLLM's own table is
too coarse for vLLM's tolerance of 1e-5: at position 8192 its angles are off by up to 5e-4.
"""

from __future__ import annotations

import pytest
import torch
import vllm.model_executor.layers.rotary_embedding as package
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.plugins import load_general_plugins

from posenc_native.vllm.layer import ExactRotary

load_general_plugins()  # what vLLM calls in each of its processes


def _vllms(self, positions, query, key=None):
    """vLLM's formula in float32, rounded once."""
    heads = [None if x is None else x.float() for x in (query, key)]
    results = self.theirs.forward_native(self, positions, *heads)
    return tuple(None if x is None else x.to(query.dtype) for x in results)


ExactRotary.forward_native = _vllms


def pytest_collection_modifyitems(config, items):
    """Cases for a GPU run on the CPU; some stay out."""
    left_out = [item for item in items if _left_out(item.name, _parameters(item))]
    for item in left_out:
        items.remove(item)
    config.hook.pytest_deselected(items=left_out)
    for item in items:
        if "device" in _parameters(item):
            _parameters(item)["device"] = "cpu"


def _parameters(item):
    return item.callspec.params if hasattr(item, "callspec") else {}


def _left_out(name, parameters):
    """The reason why a case stays out; "" if it runs."""
    if parameters.get("device") == "cuda:1":
        return "on the CPU it is the case of the first GPU again"
    if parameters.get("seq_len") == 8192 and parameters["head_size"] > 64:
        return "minutes, for sizes of heads that short sequences have too"
    if name.startswith("test_rotary_embedding_opcheck") and parameters["dtype"] == torch.bfloat16:
        return "vLLM 0.32.0's own operator for CPUs crashes, also without the plugin"
    return ""


@pytest.fixture
def default_vllm_config():
    """As vLLM's; and every layer that a test makes is ours."""
    package._ROPE_DICT.clear()
    made = []
    real = package.base.RotaryEmbeddingBase.__init__

    def noted(layer, *args, **kwargs):
        made.append(layer)
        real(layer, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, set_current_vllm_config(VllmConfig()):
        patch.setattr(package.base.RotaryEmbeddingBase, "__init__", noted)
        yield
    assert made
    assert all(isinstance(layer, ExactRotary) for layer in made)


@pytest.fixture
def dist_init():
    """Nothing: the layers of these tests are on one device."""


@pytest.fixture(autouse=True)
def _the_default_device():
    """As vLLM's: some tests set it."""
    yield
    torch.set_default_device(None)
