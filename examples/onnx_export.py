"""Export a model that uses this library to ONNX and run it in ONNX Runtime, at any length.

    python examples/onnx_export.py                       seconds
    python examples/onnx_export.py --folder exported     keep decoder.onnx

A causal attention layer with sinusoidal positions, rotary queries and keys, and a T5 bias (nobody
needs all three; any goes this way) is exported by torch.onnx.export, without any argument of this
library. The file has ONNX's own operators: what runs it needs neither torch nor posenc_native.

The position of the first token is an input of the graph. The results are compared
with the model at other lengths than the one that was exported, and from position 1,000,000 on: the
graph counts angles in 64-bit integers, as the kernels do.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

try:
    import onnx
    import onnxruntime
    import onnxscript  # noqa: F401 - which torch.onnx.export needs
    import torch
    from torch import Tensor, nn

    from posenc_native import nn as pnn
except ModuleNotFoundError as error:
    sys.exit(f"onnx_export: needs {error.name}: pip install onnxscript onnxruntime torch")


class Decoder(nn.Module):
    """Positions and one attention layer, for vectors [b, s, d] from a position on."""

    def __init__(self, d: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.d, self.heads = d, heads
        self.positions = pnn.SinusoidalPositionalEncoding(d, dropout=0.0)
        self.rope = pnn.RotaryEmbedding(d // heads, layout="bshd")
        self.bias = pnn.T5RelativeBias(heads, bidirectional=False, causal=True)
        self.qkv, self.project = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x: Tensor, first: Tensor) -> Tensor:
        """[b, s, d], and the position of the first token, [] -> [b, s, d]."""
        positions = first + torch.arange(x.shape[1], device=x.device)
        x = self.positions(x, positions)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        q, k = self.rope(q, k, positions)
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        scores = self.bias(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5)
        mixed = scores.softmax(-1) @ v
        result: Tensor = x + self.project(mixed.transpose(1, 2).flatten(2))
        return result


def run(folder: Path, opset: int, lengths: tuple[int, ...]) -> None:
    """Export into the folder, run, compare."""
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}")
    torch.manual_seed(0)
    model = Decoder().eval()
    file = folder / "decoder.onnx"
    start = time.perf_counter()
    torch.onnx.export(
        model,
        (torch.randn(2, 50, model.d), torch.tensor(0)),
        str(file),
        # The length has a name, so it stays open; without it the graph would hold for 50 tokens.
        dynamic_shapes=({1: "length"}, None),
        opset_version=opset,
        external_data=False,
        verbose=False,
    )
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    print(f"exported in {time.perf_counter() - start:.0f} s: {file.stat().st_size:,} bytes")
    kinds = Counter(node.op_type for node in onnx.load(str(file)).graph.node)
    print(f"{kinds.total()} operators of ONNX {opset}: {', '.join(sorted(kinds))}")
    for length in lengths:
        for first in (0, 1_000_000):
            x, at = torch.randn(2, length, model.d), torch.tensor(first)
            with torch.no_grad():
                want = model(x, at)
            (got,) = session.run(None, {"x": x.numpy(), "first": at.numpy()})
            torch.testing.assert_close(torch.from_numpy(got), want)
            difference = (torch.from_numpy(got) - want).abs().max().item()
            print(f"{length} tokens from {first} on: largest difference {difference:.1e}")


def main() -> int:
    """The exit status; errors are one line."""
    parser = argparse.ArgumentParser(
        prog="onnx_export", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="where the file goes; default: not kept")
    parser.add_argument("--opset", type=int, default=18, help="ONNX's operators (default: 18)")
    parser.add_argument("--quick", action="store_true", help="short sequences only")
    options = parser.parse_args()
    lengths = (2, 50) if options.quick else (2, 50, 1024)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            run(options.folder or Path(scratch), options.opset, lengths)
        except (OSError, RuntimeError) as error:
            print(f"onnx_export: {str(error).splitlines()[0]}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
