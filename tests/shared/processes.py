"""Functions of tests on several processes, which a process group of gloo joins.

    results = run(4, function, argument)      what function(argument) returned on each rank

Processes start once for each number of them, and stay for the tests that come after: importing
torch takes longer than most calls do. A function lies at the top of a module, of which each process
imports its own. Where it raises on a rank, `run` raises what came first.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

# A collective that one rank does not join would wait for ever.
_SECONDS = 240.0


class _Processes:
    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.place = tempfile.TemporaryDirectory()
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            store = os.path.join(self.place.name, "store")
            process = context.Process(target=_serve, args=(theirs, rank, count, store), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
        for pipe in self.pipes:
            pipe.send((function.__code__.co_filename, function.__name__, args))
        results: dict[int, Any] = {}
        while len(results) < len(self.pipes):
            waiting = [pipe for i, pipe in enumerate(self.pipes) if i not in results]
            ready = wait(waiting, _SECONDS)
            if not ready:
                self.failed(f"no answer from ranks {[self.pipes.index(p) for p in waiting]}")
            for pipe in ready:
                rank = self.pipes.index(pipe)  # type: ignore[arg-type]
                try:
                    fine, result = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    self.failed(f"rank {rank} ended")
                if not fine:
                    self.failed(f"rank {rank}: {result}")
                results[rank] = result
        return [results[rank] for rank in sorted(results)]

    def failed(self, why: str) -> None:
        """The others may wait in a collective: all of them end."""
        self.end()
        pytest.fail(why, pytrace=False)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        self.place.cleanup()
        _RUNNING.pop(len(self.processes), None)


_RUNNING: dict[int, _Processes] = {}


@atexit.register
def _end() -> None:
    for processes in list(_RUNNING.values()):
        processes.end()


def run(count: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """What function(*args) returns on each of `count` ranks; failing where it raises on one."""
    if count not in _RUNNING:
        _RUNNING[count] = _Processes(count)
    return _RUNNING[count].run(function, args)


@functools.cache
def _module(path: str) -> ModuleType:
    """By its file: whoever runs the tests may have other folders to import from."""
    spec = importlib.util.spec_from_file_location(os.path.basename(path).removesuffix(".py"), path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _serve(pipe: Connection, rank: int, count: int, store: str) -> None:
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=count
    )
    while True:
        try:
            path, name, args = pipe.recv()
        except EOFError:
            return
        try:
            torch.manual_seed(0)
            answer = True, getattr(_module(path), name)(*args)
        except BaseException:
            answer = False, traceback.format_exc()
        pipe.send(answer)
