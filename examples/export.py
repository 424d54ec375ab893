"""Export a model that uses this library with torch.export, compile it ahead of time, run it.

    python examples/export.py                        minutes at most; takes a C++ compiler
    python examples/export.py --folder exported      keep the two files

A causal attention layer with sinusoidal positions, rotary queries and keys, and a T5 bias (nobody
needs all three; any goes this way) goes two ways:

- decoder.pt2, the exported program: a graph of operators, for torch.export.load;
- decoder_aoti.pt2, the same compiled by AOTInductor to machine code.

Each is run by a process of its own that does not have the model, at other lengths than the one it
was exported with, and compared with the model in this process. Both call torch.ops.posenc_native.*,
but what such a process has to load differs:

- compiled code wants the operators and nothing else: torch.ops.load_library(FILE), where FILE is
  str(posenc_native.engines.backend.torch_library()), a file that depends on libtorch alone. No
  Python of this library is imported; a program in C++ that runs the package loads the same file.
- torch.export.load also wants to know shapes, which Python registers: import posenc_native.nn.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

try:
    import torch
    from torch import Tensor, nn

    from posenc_native import nn as pnn
    from posenc_native.engines import backend
except ModuleNotFoundError as error:
    sys.exit(f"export: needs {error.name}: pip install 'posenc-native[torch]'")

# What the other processes run: (a package, the library of operators, inputs, results).
RUN_EXPORTED = """
import sys, torch
import posenc_native.nn
package, operators, inputs, results = sys.argv[1:]
model = torch.export.load(package).module()
torch.save([model(x) for x in torch.load(inputs)], results)
"""
RUN_COMPILED = """
import sys, torch
package, operators, inputs, results = sys.argv[1:]
torch.ops.load_library(operators)
model = torch._inductor.aoti_load_package(package)
torch.save([model(x) for x in torch.load(inputs)], results)
assert "posenc_native" not in sys.modules
"""


class Decoder(nn.Module):
    """Positions and one attention layer, for vectors [b, s, d]."""

    def __init__(self, d: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.d, self.heads = d, heads
        self.positions = pnn.SinusoidalPositionalEncoding(d, dropout=0.0)
        self.rope = pnn.RotaryEmbedding(d // heads, layout="bshd")
        self.bias = pnn.T5RelativeBias(heads, bidirectional=False, causal=True)
        self.qkv, self.project = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        """[b, s, d] -> [b, s, d]."""
        x = self.positions(x)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        q, k = self.rope(q, k)
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        scores = self.bias(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5)
        mixed = scores.softmax(-1) @ v
        result: Tensor = x + self.project(mixed.transpose(1, 2).flatten(2))
        return result


def run(folder: Path, compiled: bool) -> None:
    """Export into the folder, run elsewhere, compare."""
    operators = backend.torch_library()
    if operators is None:
        raise RuntimeError("this build of posenc_native has no torch operators; see show_config()")
    torch.manual_seed(0)
    model = Decoder().eval()
    example = torch.randn(2, 50, model.d)
    # The length has a name, so it stays open; without it the graph would hold for 50 tokens only.
    length = torch.export.Dim("length", min=2, max=1 << 20)
    start = time.perf_counter()
    with torch.no_grad():
        program = torch.export.export(model, (example,), dynamic_shapes=({1: length},))
    ours = [str(node.target) for node in program.graph.nodes if "posenc" in str(node.target)]
    print(f"exported in {time.perf_counter() - start:.0f} s; calls {', '.join(ours)}")
    ways = {"decoder.pt2": RUN_EXPORTED}
    torch.export.save(program, folder / "decoder.pt2")
    if compiled:
        start = time.perf_counter()
        package = str(folder / "decoder_aoti.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=package)
        print(f"compiled in {time.perf_counter() - start:.0f} s")
        ways["decoder_aoti.pt2"] = RUN_COMPILED

    inputs = [torch.randn(2, s, model.d) for s in (2, 50, 333)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
    with tempfile.TemporaryDirectory() as scratch:
        torch.save(inputs, f"{scratch}/inputs")
        for name, program_text in ways.items():
            files = [folder / name, operators, f"{scratch}/inputs", f"{scratch}/results"]
            subprocess.run([sys.executable, "-c", program_text, *map(str, files)], check=True)
            results = torch.load(f"{scratch}/results")
            for x, want, got in zip(inputs, expected, results, strict=True):
                torch.testing.assert_close(got, want)  # as close as float32 lets compiled code be
                difference = (got - want).abs().max().item()
                print(f"{name}: {x.shape[1]} tokens, largest difference {difference:.1e}")


def main() -> int:
    """The exit status; errors are one line."""
    parser = argparse.ArgumentParser(
        prog="export", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="where the files go; default: not kept")
    parser.add_argument("--quick", action="store_true", help="the exported program only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            run(options.folder or Path(scratch), compiled=not options.quick)
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
            print(f"export: {str(error).splitlines()[0]}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
