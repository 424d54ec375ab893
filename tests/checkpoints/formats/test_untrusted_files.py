"""Files that nobody means: an answer or an error in one line, in a second and little memory."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from config_entries import places, with_entry
from published import PUBLISHED

import posenc_native as pn
from posenc_native import cli
from posenc_native.checkpoints.formats.reading import FORMATS
from posenc_native.core.calls.errors import fault_of

SECONDS = 2.0  # of the processor, on a machine that others use: a second where it is quiet
MEMORY = 1 << 30
LARGE = 10 << 30  # of sparse files, which take no room on the disk


@pytest.fixture(autouse=True)
def limits():
    """Memory of its own: what is mapped to be read does not count."""
    resource = pytest.importorskip("resource", reason="limits of memory are those of POSIX")
    used = Path("/proc/self/statm")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if used.exists():
        now = int(used.read_text(encoding="ascii").split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (now + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.fixture(autouse=True)
def no_rounds_through_older_objects():
    """A round of the collector takes seconds where other tests have left models behind."""
    gc.freeze()
    yield
    gc.unfreeze()


@contextlib.contextmanager
def within(seconds):
    """Time of this thread: those of torch and OpenMP may still turn after an older test."""
    start = time.thread_time()
    yield
    assert time.thread_time() - start < seconds


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
    """No program is started, and nobody is called."""

    def fail(*arguments, **named):
        raise AssertionError("a file is data")

    monkeypatch.setattr(os, "system", fail)
    monkeypatch.setattr(subprocess, "Popen", fail)
    monkeypatch.setattr(socket, "socket", fail)


def told(source):
    """What is said of a source: an answer, or what is wrong with it."""
    refusal = None
    with within(SECONDS):
        try:
            said = str(pn.explain(source))
        except OSError as error:
            said = str(error.strerror)
        except (ValueError, TypeError) as error:
            said, refusal = str(error), error
    if refusal is not None:
        assert fault_of(refusal) is not None, said
        assert "\n" not in said
        assert len(said) < 3000
    return said


def refused(path, capsys):
    """The one line of the command line."""
    assert told(path)
    assert cli.main(["explain", str(path)]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1, err
    assert err.startswith("posenc-native explain: ")
    return err


def each_told(path, contents):
    """Whether there is an answer to each of these files; at least one is an error."""
    said = []
    for content in contents:
        path.write_bytes(content)
        said.append(told(path).startswith("Rotary encoding"))
    assert not all(said)
    return said


def flipped(content, count):
    """The same with some bytes changed."""
    for seed in range(count):
        chosen = random.Random(seed)
        changed = bytearray(content)
        for _ in range(chosen.choice([1, 1, 2, 8])):
            changed[chosen.randrange(len(changed))] = chosen.choice([0, 1, 127, 128, 255])
        yield bytes(changed)


# GGUF


@pytest.fixture
def gguf(tmp_path):
    """A file as a converter writes it."""
    pytest.importorskip("gguf")
    from gguf_files import write_gguf

    metadata = {
        "general.architecture": "llama", "general.name": "a model", "llama.block_count": 2,
        "llama.context_length": 131072, "llama.embedding_length": 512,
        "llama.attention.head_count": 8, "llama.rope.dimension_count": 64,
        "llama.rope.freq_base": 5e5, "tokenizer.ggml.tokens": ["a", "bc", "def"],
        "tokenizer.ggml.scores": [0.5, 1.5],
    }  # fmt: skip
    path = tmp_path / "model.gguf"
    write_gguf(path, metadata, {"rope_freqs.weight": [1.0] * 16 + [8.0] * 16})
    assert told(path).startswith("Rotary encoding of llama")
    return path


def text(value):
    return struct.pack("<Q", len(value)) + value


def head(tensors, entries):
    return struct.pack("<4sIQQ", b"GGUF", 3, tensors, entries)


U32, STRING, ARRAY = 4, 8, 9
ENTRY = text(b"general.architecture") + struct.pack("<I", STRING) + text(b"llama")
NESTED = b"".join(struct.pack("<IQ", ARRAY, 1) for _ in range(10**5))
GGUF = {
    "nothing": b"",
    "its mark": b"GGUF",
    "a mark of others": b"GGML" + bytes(100),
    "zeros": bytes(1000),
    "another version": struct.pack("<4sIQQ", b"GGUF", 77, 0, 0),
    "the other byte order": struct.pack(">4sIQQ", b"GGUF", 3, 0, 1),
    "a name of 2^63 bytes": head(0, 1) + struct.pack("<Q", 1 << 63),
    "lists in lists": head(0, 1) + text(b"a") + struct.pack("<I", ARRAY) + NESTED,
    "a kind that is none": head(0, 1) + text(b"a") + struct.pack("<I", 77) + bytes(64),
    "the same name twice": head(0, 2) + ENTRY + ENTRY,
    "no UTF-8": head(0, 1) + text(b"general.architecture") + struct.pack("<I", 8) + text(b"\xff"),
    "a name that is no UTF-8": head(0, 1) + text(b"\xff\xfe") + struct.pack("<II", U32, 1),
    "no entries": head(0, 0),
    "an architecture that nobody knows": head(0, 1) + ENTRY.replace(b"llama", b"\x1b[2Jm"),
    "a tensor of many dims": head(1, 1) + ENTRY + text(b"w") + struct.pack("<I", 1 << 31),
    "a tensor beyond the end": (
        head(1, 1) + ENTRY + text(b"rope_freqs.weight") + struct.pack("<IQIQ", 1, 32, 0, 1 << 40)
    ),
    "a tensor of 2^126 numbers": (
        head(1, 1) + ENTRY + text(b"rope_freqs.weight")
        + struct.pack("<IQQIQ", 2, 1 << 63, 1 << 63, 0, 0)
    ),
    "2^63 tensors": head(1 << 63, 1) + ENTRY,
    "2^63 entries": head(0, 1 << 63) + ENTRY,
}  # fmt: skip


@pytest.mark.parametrize("name", GGUF)
def test_gguf_that_is_none(name, tmp_path, capsys):
    pytest.importorskip("gguf")
    path = tmp_path / "m.gguf"
    path.write_bytes(GGUF[name])
    refused(path, capsys)


def test_gguf_that_is_cut(gguf):
    content = gguf.read_bytes()
    said = each_told(gguf, (content[:end] for end in range(0, len(content), 7)))
    assert not any(said[:-8])  # what is after the tensors fills up the last block


def test_gguf_of_other_counts(gguf):
    content = gguf.read_bytes()
    counts = [at for at in range(8, len(content) - 8)
              if 0 < struct.unpack_from("<Q", content, at)[0] < 1 << 12]  # fmt: skip
    assert len(counts) > 20
    values = [0, 1 << 31, 1 << 40, 1 << 63, (1 << 64) - 1]
    each_told(
        gguf,
        (content[:at] + struct.pack("<Q", value) + content[at + 8 :]
         for i, at in enumerate(counts) for value in (values[i % 5], values[(i + 2) % 5])),
    )  # fmt: skip


def test_gguf_with_other_bytes(gguf):
    each_told(gguf, flipped(gguf.read_bytes(), 200))


@pytest.mark.parametrize("what", ["texts", "numbers"])
def test_gguf_with_a_huge_list(what, tmp_path, capsys):
    """A list that claims as much as a sparse file has."""
    pytest.importorskip("gguf")
    path = tmp_path / "m.gguf"
    kind, count = {"texts": (STRING, 1 << 30), "numbers": (U32, 1 << 31)}[what]
    with path.open("wb") as file:
        file.write(head(0, 2) + ENTRY + text(b"tokens"))
        file.write(struct.pack("<IIQ", ARRAY, kind, count))
        file.truncate(LARGE)
    assert "at most" in refused(path, capsys)


def test_gguf_with_as_many_texts_as_are_allowed(tmp_path, capsys):
    pytest.importorskip("gguf")
    path = tmp_path / "m.gguf"
    with path.open("wb") as file:
        file.write(head(0, 3) + ENTRY + text(b"tokens"))
        file.write(struct.pack("<IIQ", ARRAY, STRING, 1 << 21))
        file.truncate(LARGE)
    refused(path, capsys)


def test_gguf_weights_are_not_read(gguf):
    """Gigabytes behind the metadata change nothing."""
    said = told(gguf)
    with gguf.open("r+b") as file:
        file.truncate(LARGE)
    with within(SECONDS / 4):
        assert told(gguf) == said


# ONNX


@pytest.fixture
def graphs():
    """Functions that build graphs; skipped where nothing can write them."""
    pytest.importorskip("onnx")
    import onnx_graphs

    return onnx_graphs


@pytest.fixture
def onnx(graphs, tmp_path):
    caches = graphs.tensors(graphs.cosines(16, 1e4, 16))
    nodes = [graphs.rotary(0), graphs.rotary(1), graphs.attention(2)]
    path = tmp_path / "m.onnx"
    graphs.save(path, nodes, caches)
    assert told(path).startswith("Rotary encoding")
    return path


def test_onnx_that_is_cut(onnx):
    content = onnx.read_bytes()
    each_told(onnx, (content[:end] for end in range(0, len(content), 11)))


def test_onnx_with_other_bytes(onnx):
    each_told(onnx, flipped(onnx.read_bytes(), 300))


def varint(value):
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def message(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def deep(levels):
    """Graphs in graphs."""
    found = b""
    for _ in range(levels):
        found = message(1, message(4, b"Loop") + message(5, message(6, found)))
    return message(7, found)


ROTARY = message(1, b"".join(message(1, each) for each in (b"q", b"p", b"c", b"s"))
                 + message(4, b"RotaryEmbedding") + message(7, b"com.microsoft"))  # fmt: skip


def graph(*nodes):
    return message(7, ROTARY + b"".join(message(1, node) for node in nodes))


def node(operator, inputs, outputs, *graphs):
    return (
        b"".join(message(1, each) for each in inputs)
        + b"".join(message(2, each) for each in outputs)
        + message(4, operator)
        + b"".join(message(5, message(6, each)) for each in graphs)
    )


def tensor(name, dims, kind=1, number=9, content=b"", others=b""):
    sizes = b"".join(varint(1 << 3) + varint(dim) for dim in dims)
    return sizes + varint(2 << 3) + varint(kind) + message(8, name) + message(
        number, content
    ) + others  # fmt: skip


def with_tensors(*others, **settings):
    caches = (tensor(name, *others, **settings) for name in (b"c", b"s"))
    return message(7, ROTARY + b"".join(message(5, each) for each in caches))


ITSELF = message(12, message(1, b"c"))
ONNX = {
    "nothing": b"",
    "zeros": bytes(1000),
    "a field of 2^63 bytes": varint(7 << 3 | 2) + varint(1 << 63),
    "a number without end": b"\x80" * 1000,
    "a length without end": varint(7 << 3 | 2) + b"\xff" * 64,
    "a group": b"\x3b" * 100,
    "no graph": message(8, b"x"),
    "two graphs": graph() + graph(),
    "graphs in graphs": deep(1000),
    "empty fields": message(7, b"\x0a\x00" * (1 << 20)),
    "empty fields in a graph in a node": message(
        7, message(1, message(4, b"Loop") + message(5, message(6, b"\x0a\x00" * (1 << 23))))
    ),
    "empty inputs": graph(b"\x0a\x00" * (1 << 20)),
    "a long name": graph(message(4, b"x" * 10**6)),
    "a name that is no UTF-8": graph(node(b"Identity", [b"\xff\xfe"], [b"c"])),
    "control characters": graph(node(b"Identity", [b"\x1b[2J"], [b"c"])).replace(b"c", b"\x1b"),
    "a value that is itself": graph(node(b"Identity", [b"c"], [b"c"])),
    "values in a cycle": graph(node(b"Identity", [b"a"], [b"c"]), node(b"Cast", [b"c"], [b"a"])),
    "a chain": graph(*(node(b"Identity", [b"%d" % (i + 1)], [b"%d" % i]) for i in range(10**4)),
                     node(b"Identity", [b"0"], [b"c"])),
    "an If of itself": graph(node(b"If", [b"t"], [b"c"], *[ITSELF] * 1000)),
    "an If without graphs": graph(node(b"If", [b"t"], [b"c"])),
    "no numbers": with_tensors([8, 8], number=1),
    "fewer numbers": with_tensors([8, 8], content=bytes(255)),
    "no sizes": with_tensors([], content=bytes(4)),
    "a size of 0": with_tensors([0, 8]),
    "sizes of 2^63": with_tensors([1 << 63, 1 << 63], content=bytes(8)),
    "many sizes": with_tensors([1] * 1000, content=bytes(4)),
    "a type that is none": with_tensors([8, 8], 77, content=bytes(256)),
    "texts": with_tensors([8, 8], 8, 6, content=b"x" * 64),
    "ints of more than 16 bits": with_tensors([1, 8], 10, 5, content=b"\xff" * 40),
    "numbers that are none": with_tensors([8, 8], content=b"\xff" * 256),
    "infinite numbers": with_tensors([8, 8], content=struct.pack("<f", np.inf) * 64),
    "huge numbers": with_tensors([8, 8], 11, content=struct.pack("<d", 1e308) * 64),
    "tiny numbers": with_tensors([8, 8], 11, content=struct.pack("<d", 5e-324) * 64),
    "zeros for numbers": with_tensors([8, 8], content=bytes(256)),
    "a wide head": with_tensors([2, 1 << 16], content=bytes(1 << 19)),
}  # fmt: skip


@pytest.mark.parametrize("name", ONNX)
def test_onnx_that_is_none(name, tmp_path, capsys):
    path = tmp_path / "m.onnx"
    path.write_bytes(ONNX[name])
    refused(path, capsys)


EXTERNAL = {
    "a path that leaves the folder": "../../etc/passwd",
    "a path within that leaves it": "a/../../data",
    "a path from the root": "/etc/passwd",
    "a path of Windows": "C:\\data",
    "a path of Windows that leaves the folder": "..\\data",
    "a device": "zero",
    "a pipe": "pipe",
    "a folder": ".",
    "no path": "",
    "a NUL": "a\0b",
    "a surrogate": "\udcff",
    "a long path": "x" * 500,
    "a link to elsewhere": "link",
    "a link to itself": "loop",
}  # fmt: skip


@pytest.mark.parametrize("name", EXTERNAL)
def test_onnx_with_data_elsewhere(name, tmp_path, capsys):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "data").write_bytes(bytes(256))
    os.mkfifo(folder / "pipe")
    for link, to in (("link", "../data"), ("loop", "loop"), ("zero", "/dev/zero")):
        (folder / link).symlink_to(to)
    location = EXTERNAL[name].encode("utf-8", "surrogateescape")
    others = message(13, message(1, b"location") + message(2, location)) + varint(14 << 3) + b"\x01"
    path = folder / "m.onnx"
    path.write_bytes(with_tensors([8, 8], others=others))
    assert "a tensor of floats, got data in a file" in refused(path, capsys)


@pytest.mark.parametrize(
    ("offset", "length"),
    [("-1", "256"), ("0", "-1"), ("x", "256"), ("256", "1"), ("9" * 400, "1"), ("0", "1" * 19),
     ("1", "0"), ("²", "1")],
)  # fmt: skip
def test_onnx_with_data_at_no_place(offset, length, tmp_path, capsys):
    (tmp_path / "data").write_bytes(bytes(256))
    given = {"location": "data", "offset": offset, "length": length}
    others = b"".join(message(13, message(1, key.encode()) + message(2, value.encode()))
                      for key, value in given.items()) + varint(14 << 3) + b"\x01"  # fmt: skip
    path = tmp_path / "m.onnx"
    path.write_bytes(with_tensors([8, 8], others=others))
    assert "expected a tensor of floats, got" in refused(path, capsys)


def test_onnx_of_zeros(tmp_path, capsys):
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.truncate(LARGE)
    refused(path, capsys)


@pytest.mark.parametrize("inner", [True, False], ids=["in it", "beside it"])
def test_onnx_with_huge_caches(inner, tmp_path, capsys):
    """Of a cache of 4 GiB, which is sparse, some rows are looked at."""
    path, size, rows = tmp_path / "m.onnx", 4 << 30, 1 << 27
    if inner:
        fields = [(8, varint(rows)), (8, varint(8)), (16, b"\x01")]
        sizes = b"".join(varint(key) + value for key, value in fields)
        caches = b""
        for name in (b"c", b"s"):
            caches = sizes + message(8, name) + varint(9 << 3 | 2) + varint(size)
            before = message(7, ROTARY)
            whole = len(caches) + size
            begin = varint(7 << 3 | 2) + varint(len(ROTARY) + 1 + len(varint(whole)) + whole)
            before = begin + ROTARY + varint(5 << 3 | 2) + varint(whole) + caches
        before = before.replace(message(1, b"c"), message(1, b"s"))  # one for both
        with path.open("wb") as file:
            file.write(before)
            file.truncate(len(before) + size)
    else:
        with (tmp_path / "data").open("wb") as file:
            file.truncate(LARGE)
        others = message(13, message(1, b"location") + message(2, b"data"))
        path.write_bytes(with_tensors([rows, 8], others=others + varint(14 << 3) + b"\x01"))
    assert "got other caches" in refused(path, capsys)


def test_onnx_weights_are_not_read(onnx):
    said, content = told(onnx), onnx.read_bytes()
    weights = varint(LARGE)
    with onnx.open("wb") as file:  # a field that nobody knows, behind the graph
        file.write(content + varint(99 << 3 | 2) + weights)
        file.truncate(len(content) + 2 + len(weights) + LARGE)
    with within(SECONDS / 4):
        assert told(onnx) == said


def test_onnx_with_as_many_caches_as_are_allowed(graphs, tmp_path):
    """Every layer may have caches of its own; the widest of them are looked at in time."""
    caches, nodes = [], []
    for i in range(16):
        names = [f"cos_{i}", f"sin_{i}"]
        inv_freq = np.linspace(1, 1e-4 * (i + 1), 4096)
        angles = np.arange(2)[:, None] * inv_freq
        caches += graphs.tensors([np.cos(angles), np.sin(angles)], names)
        nodes += [graphs.rotary(8 * i + j, caches=names) for j in range(8)]
    path = graphs.save(tmp_path / "m.onnx", nodes, caches)
    assert told(path).startswith("Rotary encoding")


# YAML


def laughs(levels, merge=False):
    """Ten of the line before in each line."""
    lines = ["l0: &l0 {a: 1}"]
    for i in range(levels):
        others = ", ".join([f"*l{i}"] * 10)
        value = f"{{<<: [{others}]}}" if merge else f"[{others}]"
        lines.append(f"l{i + 1}: &l{i + 1} {value}")
    return "\n".join([*lines, f"rotary_base: *l{levels}", MEGATRON_YAML])


MEGATRON_YAML = "num_layers: 2\nhidden_size: 64\nnum_attention_heads: 4\nrotary_percent: 1.0"
YAML = {
    "nothing": "",
    "a list": "[1, 2]",
    "a number": "7",
    "a text": "rope",
    "two documents": "a: 1\n---\na: 2",
    "a command": '!!python/object/apply:os.system ["touch executed"]',
    "a command within": f"a: !!python/object/apply:os.system ['touch x']\n{MEGATRON_YAML}",
    "a module": f"rotary_base: !!python/module:os\n{MEGATRON_YAML}",
    "an object": f"rotary_base: !!python/object/new:posixpath.join [a]\n{MEGATRON_YAML}",
    "a tag": f"rotary_base: !x 1\n{MEGATRON_YAML}",
    "laughs": laughs(9),
    "laughs that are merged": laughs(9, True),
    "a list of itself": f"rotary_base: &a [*a]\n{MEGATRON_YAML}",
    "a mapping of itself": f"model: &a\n  model: *a\n{MEGATRON_YAML}",
    "a mapping that it merges": f"model: &a\n  <<: *a\n{MEGATRON_YAML}",
    "brackets": "[" * 10**5,
    "braces": "{a: " * 10**5,
    "dashes": "- " * 10**5,
    "question marks": "? " * 10**5,
    "lists in aliases": "\n".join(
        ["a0: &a0 1", *(f"a{i + 1}: &a{i + 1} [*a{i}]" for i in range(2000)), "rotary_base: *a2000"]
    ),
    "2 MiB": f"{MEGATRON_YAML}\ntext: {'x' * (2 << 20)}",
    "2 MiB of lines": "\n".join(["a:", *["- 1"] * (1 << 19)]),
    "as many lines as are read": "\n".join(["a:", *["- 1"] * 65000]),
    "as many names as are read": "\n".join(f"a{i}: 1" for i in range(30000)),
    "numbers of base 60": f"rotary_base: 1{':0' * 10**5}\n{MEGATRON_YAML}",
    "a number of 16^9999": f"rotary_base: 0x{'f' * 10000}\n{MEGATRON_YAML}",
    "a number of 16^9999 within": f"rotary_base: [0x{'f' * 10000}]\n{MEGATRON_YAML}",
    "a number of 10^9999": f"rotary_base: {'9' * 10000}\n{MEGATRON_YAML}",
    "a date": f"rotary_base: 2001-01-01\n{MEGATRON_YAML}",
    "a date that is none": f"rotary_base: 2001-99-99\n{MEGATRON_YAML}",
    "bytes": f"rotary_base: !!binary aGVsbG8=\n{MEGATRON_YAML}",
    "bytes that are none": f"rotary_base: !!binary '*'\n{MEGATRON_YAML}",
    "a set": f"rotary_base: !!set {{a, b}}\n{MEGATRON_YAML}",
    "a float that is none": f"rotary_base: .nan\n{MEGATRON_YAML}",
    "an infinite one": f"rotary_base: -.inf\n{MEGATRON_YAML}",
    "a name that is a list": f"? [1, 2]\n: 3\n{MEGATRON_YAML}",
    "a name that is a number": "model-path: x\n5: 6",
    "names of no model": "5: 6\n1.5: 2\nnull: 3\ntrue: 4",
    "control characters": f"rotary_base: \"\\e[2J\\a\"\n{MEGATRON_YAML}",
}  # fmt: skip


@pytest.mark.parametrize("name", YAML)
def test_yaml_that_nobody_means(name, tmp_path, capsys, monkeypatch):
    pytest.importorskip("yaml")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "m.yaml"
    path.write_text(YAML[name], encoding="utf-8")
    refused(path, capsys)
    assert os.listdir() == ["m.yaml"]


@pytest.mark.parametrize("content", [bytes(range(256)), b"\xff\xfe\x00", b"\x00" * 100, b"a: \x1b"])
def test_yaml_of_bytes(content, tmp_path, capsys):
    pytest.importorskip("yaml")
    (tmp_path / "m.yaml").write_bytes(content)
    refused(tmp_path / "m.yaml", capsys)


def test_yaml_with_aliases_is_read(tmp_path):
    """Programs that write YAML name what stands in it twice."""
    pytest.importorskip("yaml")
    path = tmp_path / "m.yaml"
    path.write_text(f"a: &id001 {{b: [1, 2]}}\nc: *id001\n{MEGATRON_YAML}\nposition_embedding_type:"
                    " rope", encoding="utf-8")  # fmt: skip
    assert told(path).startswith("Rotary encoding")


# Mappings, of each format


def nested(depth, key=None):
    value = {} if key else []
    for _ in range(depth):
        value = {key: value} if key else [value]
    return value


SELF = {}
SELF.update(model=SELF, config=SELF, rope_type=SELF)
HOSTILE = [
    2**24, 10**11, 2**63, -3, 0, 10**400, float("nan"), float("inf"), 1e308, -1e308,
    5e-324, 1e-300, True, "", "x" * 10**6, "a\nb", "\x1b[2J\u202e\ud800", [], [7], [[]], [1, "x"],
    [1] * 10**5, [1e308] * 3, [2**40] * 3, [-8, 20, 20], nested(10**5), {}, {5: 6},
    nested(10**5, "model"), SELF, None, 3j, np.zeros(3), b"x",
]  # fmt: skip

FACTORS = [1.0] * 32
MEGATRON = {"num_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "kv_channels": 64,
            "rotary_base": 1e4, "rotary_percent": 0.5, "rotary_interleaved": False,
            "position_embedding_type": "rope", "max_position_embeddings": 4096}  # fmt: skip
MEGATRON_YARN = {"rotary_scaling_factor": 4.0, "original_max_position_embeddings": 4096,
                 "mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 32, "beta_slow": 1}  # fmt: skip
TITAN = {"dim": 512, "n_layers": 4, "n_heads": 8, "rope_theta": 5e5, "max_seq_len": 32768}
TITAN_YARN = {"rope_factor": 8.0, "original_seq_len": 4096, "beta_fast": 32, "beta_slow": 1}
TITAN_ROPE = {"dim": 64, "max_context_length": 4096, "theta": 1e4, "original_seq_len": 4096}
TRT = {"architecture": "LlamaForCausalLM", "num_hidden_layers": 2, "hidden_size": 512,
       "num_attention_heads": 8, "head_size": 64, "position_embedding_type": "rope_gpt_neox",
       "rotary_base": 5e5, "max_position_embeddings": 8192}  # fmt: skip
LLAMA3 = PUBLISHED["llama-3.1"]["rope_scaling"]
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096,
        "mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 32, "beta_slow": 1}  # fmt: skip
META = {"dim": 512, "n_layers": 4, "n_heads": 8, "rope_theta": 5e5, "use_scaled_rope": True}
MISTRAL = {"dim": 512, "n_layers": 2, "n_heads": 8, "head_dim": 64, "hidden_dim": 1024,
           "rope_theta": 1e6, "max_seq_len": 4096}  # fmt: skip
HF = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "rope_theta": 1e4}

CONFIGURATIONS = {
    "meta": {"model": META},
    "meta, llama 4": {**META, "nope_layer_interval": 4, "attention_chunk_size": 8192,
                      "rope_scaling_factor": 16.0, "rope_high_freq_factor": 1.0},
    "mistral": {**MISTRAL,
                "llama_4_scaling": {"beta": 0.1, "original_max_position_embeddings": 4096},
                "yarn": {"factor": 8.0, "original_max_position_embeddings": 4096, "alpha": 1,
                         "beta": 32, "apply_scale": True}},
    "mistral, latent": {**MISTRAL, "qk_rope_head_dim": 64, "q_lora_rank": 4,
                        "yarn": {"factor": 8.0, "original_max_position_embeddings": 4096}},
    "megatron": {"args": {**MEGATRON, "no_rope_freq": [0, 0, 0, 1], "use_rope_scaling": True,
                          "rope_scaling_factor": 8.0}},
    "megatron, linear": {**MEGATRON, "rotary_seq_len_interpolation_factor": 2, "no_rope_freq": 4},
    "megatron, yarn": {**MEGATRON, **{f"yarn_{key}": each for key, each in MEGATRON_YARN.items()},
                       "position_embedding_type": "yarn"},
    "megatron, latent": {**MEGATRON, **MEGATRON_YARN, "multi_latent_attention": True,
                         "qk_pos_emb_head_dim": 64, "rope_type": "yarn"},
    "megatron, axes": {"model": {**MEGATRON, "_target_": "x", "mrope_section": [4, 6, 6],
                                 "position_embedding_type": "mrope"}},
    "torchtitan": {**TITAN, "rope_scaling_args": {"scaling_factor": 8.0, "low_freq_factor": 1.0,
                                                  "high_freq_factor": 4.0}},
    "torchtitan, llama 4": {**TITAN, "every_n_layers_nope": 4, "rope_scaling_args": {}},
    "torchtitan, latent": {**TITAN, **TITAN_YARN, "qk_rope_head_dim": 64, "mscale": 1.0},
    "torchtitan, gpt-oss": {**TITAN, **TITAN_YARN, "head_dim": 64, "ntk_alpha": 1.0,
                            "ntk_beta": 32.0},
    "torchtitan, trainer": {"model_spec": {"name": "deepseek_v3", "model": {"layers": [
        {"attention": {"mscale": 1.0, "rope": {**TITAN_ROPE, "scaling": "yarn",
                                               "rope_factor": 40.0}}},
    ]}}},
    "torchtitan, axes": {"model_spec": {"name": "qwen3_vl", "model": {"layers": [
        {"attention": {"rope": {**TITAN_ROPE, "scaling": "llama", "mrope_section": [12, 10, 10]}}},
    ]}}},
    "torchtune": {"model": {"_component_": "torchtune.models.llama3_1.llama3_1", "num_layers": 2,
                            "num_heads": 8, "embed_dim": 512, "max_seq_len": 8192,
                            "rope_base": 5e5, "scale_factor": 8}},
    "tensorrt-llm": {"pretrained_config": {**TRT, "rotary_scaling": LLAMA3, "rotary_pct": 0.5}},
    "tensorrt-llm, yarn": {**TRT, "rotary_scaling": YARN, "rotary_dim": 32},
    "tensorrt-llm, dynamic": {**TRT, "rotary_scaling": {"type": "dynamic", "factor": 2.0}},
    "tensorrt-llm, axes": {**TRT, "position_embedding_type": "mrope",
                           "rotary_scaling": {"type": "mrope", "mrope_section": [16, 8, 8]}},
    "tensorrt-llm, longrope": {**TRT, "position_embedding_type": "long_rope",
                               "original_max_position_embeddings": 4096,
                               "longrope_scaling_short_factors": FACTORS,
                               "longrope_scaling_long_factors": FACTORS,
                               "longrope_short_mscale": 1.0, "longrope_long_mscale": 1.1},
    "tensorrt-llm, latent": {**TRT, "qk_rope_head_dim": 64, "rotary_scaling": YARN},
    "mlx": {**HF, "rope_traditional": True, "rope_scaling": {**LLAMA3, "type": "llama3"},
            "quantization": {"bits": 4, "group_size": 64}},
    "mlx, yarn": {**HF, "rope_scaling": {**YARN, "rope_type": "yarn"},
                  "quantization": {"bits": 4, "group_size": 64}},
    "mlx, longrope": {**PUBLISHED["phi-3.5-mini"], "rope_traditional": False},
    "vllm": {"model": HF, "max-model-len": 8192, "hf-overrides": {"rope_scaling": YARN},
             "rope-theta": 1e4},
    "vllm, by length": {"model": {**PUBLISHED["phi-3.5-mini"], "num_hidden_layers": 2},
                        "max_model_len": 8192},
    "vllm, texts": {"model": HF, "hf_overrides": json.dumps({"rope_scaling": YARN}),
                    "rope_scaling": json.dumps(YARN)},
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_entry_may_be_anything(name):
    config = CONFIGURATIONS[name]
    assert told(config).startswith("Rotary encoding")
    for place in places(config):
        for value in HOSTILE:
            told(with_entry(config, place, value))


NUMBERS = {
    "sums that are 0": {**CONFIGURATIONS["tensorrt-llm, yarn"],
                        "rotary_scaling": {**YARN, "factor": np.e, "mscale_all_dim": -10.0}},
    "in Megatron": {**CONFIGURATIONS["megatron, yarn"], "yarn_rotary_scaling_factor": float(np.e),
                    "yarn_mscale_all_dim": -10.0},
    "squares": {**CONFIGURATIONS["megatron, latent"], "mscale_all_dim": 1e200},
    "names": {**CONFIGURATIONS["vllm"], 5: 6},
    "a namespace": argparse.Namespace(**MEGATRON, no_rope_freq="[1]*10**9"),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_do_not_go_together(name):
    told(NUMBERS[name])


PATTERNS = {
    "a list of 10^9": "[1]*10**9",
    "a list of 10^9, without a power": "[1]*1000000000",
    "products": "[0]*99*99*99*99*99*99",
    "products of numbers": "9" + "*9" * 500,
    "a sum that is long": "[0]" + "+[0]*4000" * 10,
    "a call": "__import__('os').system('touch x')",
    "a name": "__builtins__",
    "an attribute": "().__class__",
    "a lambda": "(lambda: 1)()",
    "parentheses": "(" * 500 + "1" + ")" * 500,
    "brackets": "[" * 500 + "]" * 500,
    "minus signs": "-" * 1000 + "1",
    "much": "[0]*4" + " " * 10**6,
    "negative": "[0]*-4",
    "below zero": "-4",
    "zero": "0",
    "digits": "9" * 1000,
    "a digit group": "1_0",
    "no expression": "[0]*",
    "two lines": "1\n2",
    "a NUL": "1\0",
    "a surrogate": "\ud800",
    "lists in a list": "[[0]]*4",
    "a text": "'a'*4",
    "none": "",
}  # fmt: skip


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_of_layers_are_not_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = told({**MEGATRON, "no_rope_freq": PATTERNS[name]})
    assert "no_rope_freq" in said or name in ("a digit group", "lists in a list")
    assert not os.listdir()


# Files that name others, overrides, and what is no file


FORM_KEYS = (
    "model",
    "model_path",
    "args",
    "config",
    "model_spec",
    "pretrained_config",
    "transformer",
)


def written(path, config):
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize("form", FORMATS)
def test_every_file_may_be_said_to_be_of_another_form(form, tmp_path):
    for i, config in enumerate(CONFIGURATIONS.values()):
        told(f"{form}:{written(tmp_path / f'{i}.json', config)}")
    told(f"{form}:{written(tmp_path / 'empty.json', {})}")
    told(f"{form}:{written(tmp_path / 'numbers.json', dict.fromkeys(FORM_KEYS, 5))}")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_settings_of_a_server_may_be_anything(engine, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "config.json", HF)
    given = {
        "vllm": {"model": "config.json", "max_model_len": 8192, "hf_overrides": {}},
        "sglang": {"model_path": "config.json", "context_length": 8192,
                   "json_model_override_args": json.dumps({"rope_theta": 5e5})},
    }[engine]  # fmt: skip
    key = next(iter(given))
    assert told(written(tmp_path / "run.json", given)).startswith("Rotary encoding")
    for place in given:
        for value in HOSTILE:
            told({**given, place: value})
    for model in ("run.json", "other.json", "..", "pipe", "a\0b", "\ud800", "x" * 10**6, "/",
                  "/dev/zero", "/etc/passwd", "https://example.com/config.json"):  # fmt: skip
        if not os.path.lexists("pipe"):
            os.mkfifo("pipe")
            written(tmp_path / "other.json", {**given, key: "run.json"})
        refused(written(tmp_path / "run.json", {**given, key: model}), capsys)


OVERRIDES = {
    "cut": "{", "a list": "{[]}", "text": "{x}", "twice": '{"a": 1, "a": 2}',
    "levels": '{"a":' * 10**5, "closed levels": '{"a":' * 900 + "1" + "}" * 900,
    "brackets": '{"rope_scaling": ' + "[" * 900 + "]" * 900 + "}",
    "digits": '{"rope_theta": ' + "9" * 10**5 + "}",
    "NaN": '{"rope_theta": NaN}', "infinite": '{"rope_theta": 1e999}',
    "a type": '{"rope_scaling": {"rope_type": "\\u001b[2J"}}',
    "parts": '{"text_config": {"text_config": {"text_config": {}}}}',
    "no scaling": '{"rope_scaling": 7}',
    "long": '{"' + "x" * 10**6 + '": 1}',
    "a surrogate": '{"rope_scaling": {"\\ud800": 1}}',
}  # fmt: skip


@pytest.mark.parametrize("name", OVERRIDES)
def test_overrides_may_be_anything(name, tmp_path, capsys):
    path = written(tmp_path / "config.json", {**HF, "rope_scaling": LLAMA3, "text_config": HF})
    if name in ("long", "twice", "a surrogate"):
        told(f"{path}+{OVERRIDES[name]}")
    else:
        refused(f"{path}+{OVERRIDES[name]}", capsys)


PATHS = ["a\0b.json", "a\0b.gguf", "\ud800.yaml", "\ud800", "x" * 5000, "x" * 300 + ".onnx", "",
         ".", "..", "pipe.yaml", "pipe.gguf", "pipe.onnx", "pipe", "megatron:pipe",
         "gguf:pipe.yaml",
         "onnx:empty", "onnx:folder.onnx", "folder.onnx", "folder.gguf", "folder.yaml", "loop.yaml",
         "megatron:", "hf:no.json", "zero.onnx", "zero.yaml", "zero.gguf", "no.onnx", "no.yaml",
         "no+{}", "+{}", "llama-3.1+{}", 'llama-3.1+{"rope_theta": 1}', "socket.onnx"]  # fmt: skip


@pytest.fixture(scope="module")
def places_of_no_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    for name in ("pipe", "pipe.yaml", "pipe.gguf", "pipe.onnx"):
        os.mkfifo(folder / name)
    for suffix in ("onnx", "gguf", "yaml"):
        (folder / f"folder.{suffix}").mkdir()
        (folder / f"zero.{suffix}").symlink_to("/dev/zero")
    (folder / "loop.yaml").symlink_to("loop.yaml")
    (folder / "empty").write_bytes(b"")
    server = socket.socket(socket.AF_UNIX)
    before = os.getcwd()
    os.chdir(folder)
    server.bind("socket.onnx")
    os.chdir(before)
    yield folder
    server.close()
    shutil.rmtree(folder)


@pytest.mark.parametrize("path", PATHS)
def test_what_is_no_file(places_of_no_model, path, monkeypatch, capsys):
    monkeypatch.chdir(places_of_no_model)
    said = told(path)
    if not said.startswith("Rotary encoding"):
        refused(path, capsys)
    else:
        assert path == "llama-3.1+{}"
