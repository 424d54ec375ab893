"""The same training on one process and on four, in three ways: the losses are the same.

    torchrun --nproc-per-node 4 examples/sharded_training             minutes on two cores
    torchrun --nproc-per-node 4 examples/sharded_training --quick     seconds

A small transformer with rotary positions, QK-norm and, in one layer, T5's bias guesses the next
character of a novel: on one process; with weights sharded over two and heads over two (FSDP2,
tensor parallelism); with the tokens of each row on four (context parallelism); with tokens and
heads on two each. Prints the losses, and fails where they are further apart than the bound.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import torch
    import torch.distributed as dist
    from torch import Tensor
    from torch.nn.functional import cross_entropy

    import posenc_native  # noqa: F401  that it is there is known now
except ImportError as error:
    sys.exit(f"sharded_training: {error}: pip install 'posenc-native[demo]'")

from model import Row, Transformer
from plans import PLANS, Placed, Plan

TEXT = Path(__file__).parent.parent / "data" / "northanger_abbey.txt"
RANKS = 4
# Losses of float64: sums over processes have another order, and training carries that on.
BOUND = 1e-12


@dataclass(frozen=True)
class Settings:
    """What is the same for every plan. Lengths are in characters."""

    steps: int
    length: int
    batch: int = 8
    learning_rate: float = 3e-3


def main() -> None:
    """Train in every way and compare."""
    parser = argparse.ArgumentParser(
        "sharded_training", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="a few steps of short rows")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    if os.environ.get("WORLD_SIZE") != str(RANKS):
        sys.exit(
            f"sharded_training: start it with: torchrun --nproc-per-node {RANKS} {sys.argv[0]}"
        )
    settings = Settings(6, 32) if options.quick else Settings(options.steps, 128)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    try:
        losses = train_all(settings)
        if dist.get_rank() == 0:
            report(losses)
    finally:
        dist.destroy_process_group()


def train_all(settings: Settings) -> dict[str, list[float]]:
    """The losses of each way, by step."""
    characters = TEXT.read_text(encoding="utf-8")
    vocabulary = sorted(set(characters))
    number = {character: i for i, character in enumerate(vocabulary)}
    data = torch.tensor([number[character] for character in characters])
    losses = {}
    with progress(settings.steps * (1 + len(PLANS))) as step:
        for plan in (None, *PLANS):
            losses["one process" if plan is None else plan.name] = train(
                plan, len(vocabulary), data, settings, step
            )
    return losses


def train(
    plan: Plan | None,
    vocabulary: int,
    data: Tensor,
    settings: Settings,
    step: Callable[[str, float], None],
) -> list[float]:
    """The loss of each step; with a plan, the mean over all processes."""
    torch.manual_seed(0)
    model = Transformer(vocabulary)
    placed = None if plan is None else Placed(plan, model, settings.length)
    if placed is None and dist.get_rank():
        dist.barrier()  # one process works
        return []
    row = Row(settings.length) if placed is None else placed.row
    # Some parameters are on other meshes than others: no step for all at once.
    optimizer = torch.optim.AdamW(model.parameters(), settings.learning_rate, foreach=False)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(settings.steps):
        last = len(data) - settings.length - 1
        starts = torch.randint(last, (settings.batch, 1), generator=generator)
        rows = data[starts + torch.arange(settings.length + 1)]
        tokens, targets = rows[:, :-1], rows[:, 1:]
        if placed is not None:
            tokens, targets = placed.own(tokens), placed.own(targets)
        loss = cross_entropy(model(tokens, row), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        if placed is not None:
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
        losses.append(float(mean))
        step("one process" if plan is None else plan.name, losses[-1])
    if placed is None:
        dist.barrier()
    return losses


def report(losses: dict[str, list[float]]) -> None:
    """Print a table; exit where a way is not like one process."""
    steps = len(losses["one process"])
    shown = sorted({0, steps // 4, steps // 2, 3 * steps // 4, steps - 1})
    print(f"{'loss at step':40}", *(f"{i + 1:>9}" for i in shown), "   off by at most")
    failed = []
    for name, curve in losses.items():
        apart = torch.tensor([curve, losses["one process"]], dtype=torch.float64).diff(dim=0)
        off = float(apart.abs().max())  # nan if one is
        print(f"{name:40}", *(f"{curve[i]:9.6f}" for i in shown), f"   {off:.1e}")
        if not off <= BOUND:
            failed.append(name)
    if failed:
        sys.exit(f"sharded_training: {', '.join(failed)}: expected losses within {BOUND:.0e}")


@contextmanager
def progress(total: int) -> Iterator[Callable[[str, float], None]]:
    """A bar where somebody watches and rich is installed: of the first process."""
    watched = dist.get_rank() == 0 and sys.stderr.isatty()
    try:
        from rich import console, progress
    except ImportError:
        watched = False
    if not watched:
        yield lambda name, loss: None
        return
    columns: Any = (
        progress.TextColumn("{task.description}"), progress.BarColumn(),
        progress.TaskProgressColumn(), progress.TimeRemainingColumn(),
    )  # fmt: skip
    with progress.Progress(*columns, console=console.Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        yield lambda name, loss: bar.update(task, advance=1, description=f"{name}: {loss:.2f}")


if __name__ == "__main__":
    main()
