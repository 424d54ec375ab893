"""Large results of torch operators ask for huge pages, where the system gives them on request."""

import mmap
import re
from pathlib import Path

import pytest

import posenc_native as pn
from posenc_native.engines import backend, configuration

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(backend.torch_library() is None, reason="without torch operators"),
    pytest.mark.skipif(
        "asked for" not in configuration.configuration()["huge pages"],
        reason="the system gives huge pages to nobody, or to everybody",
    ),
]

MAPPING = re.compile(r"^(?=[0-9a-f]+-[0-9a-f]+ )", re.MULTILINE)
X = torch.randn(1, 4, 16384, 256)  # 64 MiB: memory of its own, which goes back when it is freed
DIAGONALS = torch.randn(4, 2 * 2048 - 1)
FRESH = {
    "rotary": lambda: pn.apply_rotary(X, None, torch.ones(128)),
    "rotary, strides kept": lambda: pn.apply_rotary(
        X.transpose(1, 2), None, torch.ones(128), layout="bshd"
    ),
    "rotary of q and k": lambda: pn.apply_rotary_qk(X, X, None, torch.ones(128))[1],
    "sinusoidal": lambda: pn.sinusoidal(65536, 256, dtype=torch.float32),
    "sinusoidal at positions": lambda: pn.sinusoidal(torch.arange(65536), 256),
    "add_sinusoidal": lambda: pn.add_sinusoidal(X),
    "tables": lambda: pn.rotary_tables(torch.arange(65536), torch.ones(256))[0],
    "bias": lambda: pn.toeplitz_bias(DIAGONALS, 2048, 2048),
    "gather": lambda: pn.relative_gather(X, None, k_len=256, origin=0),
}


def huge_pages_asked_for(tensor):
    """Whether the mapping of a tensor carries the advice.

    Whether it gets huge pages depends on other users of memory.
    """
    for entry in MAPPING.split(Path("/proc/self/smaps").read_text()):
        begin, _, end = entry.partition(" ")[0].partition("-")
        if end and int(begin, 16) <= tensor.data_ptr() < int(end, 16):
            return "hg" in re.search(r"VmFlags:(.*)", entry)[1].split()
    raise AssertionError("no mapping")


@pytest.mark.parametrize("name", FRESH)
def test_large_results_ask_for_huge_pages(name):
    assert huge_pages_asked_for(FRESH[name]())


def test_memory_that_is_not_ours_is_left_alone():
    # Of the system: malloc may give memory again for which a result has asked.
    memory = mmap.mmap(-1, X.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    ordinary = torch.frombuffer(memory, dtype=X.dtype).view(X.shape)
    pn.apply_rotary(X, None, torch.ones(128), out=ordinary)
    assert not huge_pages_asked_for(ordinary)
