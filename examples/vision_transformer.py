"""A vision transformer with 2-D rotary learns where something is, and keeps it at other sizes.

    python examples/vision_transformer.py

Images are made here: noise, and somewhere a bright blob. The class token has to say where, as two
numbers from 0 to 1. Nothing but rotary tells a patch's place, so the same model without it cannot
do better than to guess the middle, 0.25 off in each direction on average.

The class token is at position 0 on both axes (add_unrotated_tokens), which leaves it unrotated: to
it, the angle of a key is the place of a patch. Images of 48 x 48 are read by a model that was
trained on 32 x 32 with the same patches: their grid of 12 x 12 is stretched onto the trained one of
8 x 8, at fractional positions (image_coordinates), or goes on counting beyond it (grid_positions).
"""

from __future__ import annotations

import argparse
import sys

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional as F

    import posenc_native as pn
except ImportError as error:
    sys.exit(f"vision_transformer: {error}: pip install 'posenc-native[torch]'")

PATCH, TRAINED = 4, 8  # pixels of a patch along each side, patches of a training image


class Block(nn.Module):
    """Attention over a class token and patches, then a feed-forward network."""

    def __init__(self, d: int, heads: int, rotary: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.project = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.feed = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        # Half of the pairs turn by the row, half by the column. Base 100, as grids are small.
        self.rope = pn.rotary.axial_rotary(d // heads, base=100.0) if rotary else None

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [b, 1 + n, d], positions [2, 1 + n] -> [b, 1 + n, d]."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        if self.rope is not None:
            q, k = self.rope(q, k, positions, layout="bshd")
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.project(mixed)
        result: Tensor = x + self.feed(self.norm2(x))
        return result


class VisionTransformer(nn.Module):
    """Images [b, height, width] -> places [b, 2]."""

    def __init__(self, rotary: bool, d: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, d)
        self.class_token = nn.Parameter(torch.zeros(1, 1, d))
        self.blocks = nn.ModuleList(Block(d, heads, rotary) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2))

    def forward(self, images: Tensor, stretch: bool = True) -> Tensor:
        """stretch: whether a larger grid is laid over the trained one, or goes beyond it."""
        patches = images.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH)  # [b, rows, columns, 4, 4]
        sizes = patches.shape[1:3]
        if stretch:  # the centers of patches, counted in patches of the trained grid
            positions = pn.positions.image_coordinates(
                sizes, grid="index", offset=0.5, reference=(TRAINED, TRAINED), device=images.device
            )
        else:
            positions = pn.positions.grid_positions(sizes, device=images.device) + 0.5
        positions = pn.positions.add_unrotated_tokens(positions, before=1)
        x = self.embed(patches.flatten(3).flatten(1, 2))
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x, positions)
        places: Tensor = self.head(x[:, 0])
        return places


def blobs(count: int, side: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images [count, side, side] and where their blobs are, [count, 2] from 0 to 1."""
    places = torch.rand(count, 2, generator=generator)
    pixel = torch.arange(side) + 0.5
    rows, columns = ((pixel - side * places[:, axis, None]) ** 2 for axis in (0, 1))
    images = 3 * torch.exp(-(rows[:, :, None] + columns[:, None, :]) / (2 * 2.5**2))
    return images + torch.randn(count, side, side, generator=generator), places


def train(rotary: bool, steps: int) -> VisionTransformer:
    """A model that has seen `steps` batches of 32 x 32 images."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = VisionTransformer(rotary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    name = "2-D rotary" if rotary else "no positions"
    for step in range(1, steps + 1):
        images, places = blobs(64, PATCH * TRAINED, generator)
        loss = F.mse_loss(model(images), places)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 100 == 0 or step == steps:
            print(f"{name}: step {step} of {steps}, loss {loss.item():.4f}", flush=True)
    return model.eval()


@torch.inference_mode()
def mean_error(model: VisionTransformer, side: int, stretch: bool = True) -> float:
    """How far off it is on average, in each direction, as a share of the side of the image."""
    images, places = blobs(256, side, torch.Generator().manual_seed(1))
    off: Tensor = model(images, stretch) - places
    return off.abs().mean().item()


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        prog="vision_transformer",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=400, help="batches; default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="seconds, to see it run")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps is at least 1")
    models = {
        rotary: train(rotary, 3 if options.quick else options.steps) for rotary in (False, True)
    }
    print("\nmean error of a coordinate, as a share of the side of the image")
    for name, rotary, side, stretch in (
        ("no positions, 32 x 32 as trained", False, 32, True),
        ("2-D rotary, 32 x 32 as trained", True, 32, True),
        ("2-D rotary, 48 x 48, stretched onto the trained grid", True, 48, True),
        ("2-D rotary, 48 x 48, going on beyond it", True, 48, False),
    ):
        print(f"  {name:54} {mean_error(models[rotary], side, stretch):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
