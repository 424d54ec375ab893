"""Train the same model with each encoding; measure what it makes of longer texts."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from model import Transformer
from torch import Tensor
from torch.nn import functional as F

from posenc_native import nn as pnn


@dataclass(frozen=True)
class Settings:
    """What is the same for every encoding. Lengths are in characters."""

    steps: int = 400
    length: int = 128
    batch: int = 16
    learning_rate: float = 3e-3
    held_out: float = 0.1  # the share of the text, at its end, that is only evaluated on
    factors: tuple[int, ...] = (1, 2, 4)  # of the trained length


@dataclass
class Run:
    """What one model did.

    Losses are cross-entropies in nats for each character. `held_out` and `adapted` are by factor of
    the trained length: (over all positions, over those beyond the trained length). `adapted` is the
    same model after something was done for the longer text, without training; see `adapt`.
    """

    encoding: str
    seed: int
    training: list[float]
    held_out: dict[int, tuple[float, float]]
    adapted: dict[int, tuple[float, float]]


@dataclass
class Figures:
    """All that an experiment gives."""

    settings: Settings
    runs: list[Run]


def save(figures: Figures, file: Path) -> None:
    """Write figures as JSON, a line for each run, with what they were measured on."""
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    runs = ",\n".join(json.dumps(asdict(run)) for run in figures.runs)
    head = (
        f'{{"settings": {json.dumps(asdict(figures.settings))},\n"machine": {json.dumps(machine)},'
    )
    file.write_text(f'{head}\n"runs": [\n{runs}\n]}}\n', encoding="utf-8")


def load(file: Path) -> Figures:
    """Figures that `save` wrote.

    Raises:
        ValueError: a file that it did not write.
    """

    def by_factor(losses: dict[str, list[float]]) -> dict[int, tuple[float, float]]:
        return {int(factor): (every, beyond) for factor, (every, beyond) in losses.items()}

    text = file.read_text(encoding="utf-8")
    try:
        parts = json.loads(text)
        settings = {**parts["settings"], "factors": tuple(parts["settings"]["factors"])}
        losses = ("held_out", "adapted")
        runs = [Run(**{**run, **{k: by_factor(run[k]) for k in losses}}) for run in parts["runs"]]
        return Figures(Settings(**settings), runs)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f"{file}: expected figures that this program wrote") from None


def read(text: Path, settings: Settings) -> tuple[int, Tensor, Tensor]:
    """The number of different characters; those to train on and those held out, as numbers.

    Raises:
        ValueError: a text too short for the longest evaluation.
    """
    characters = text.read_text(encoding="utf-8")
    vocabulary = sorted(set(characters))
    number = {character: i for i, character in enumerate(vocabulary)}
    data = torch.tensor([number[character] for character in characters])
    split = int(len(data) * (1 - settings.held_out))
    needed = max(settings.factors) * settings.length + 1
    if min(split, len(data) - split) < needed:
        least = int(needed / min(settings.held_out, 1 - settings.held_out)) + 1
        raise ValueError(f"{text}: expected at least {least} characters, got {len(data)}")
    return len(vocabulary), data[:split], data[split:]


def run(
    encoding: str,
    seed: int,
    data: tuple[int, Tensor, Tensor],
    settings: Settings,
    report: Callable[[str, float], None],
) -> Run:
    """Train a model, then read at every length. report is told its name and the loss of a step."""
    vocabulary, training, held_out = data
    model, losses = train(encoding, seed, vocabulary, training, settings, report)
    as_trained, adapted = {}, {}
    for factor in settings.factors:
        if model.can_read(factor * settings.length):
            as_trained[factor] = evaluate(model, held_out, factor, settings)
        other = adapt(model, factor, settings.length)
        if other is not None:
            adapted[factor] = evaluate(other, held_out, factor, settings)
    return Run(encoding, seed, losses, as_trained, adapted)


def train(
    encoding: str,
    seed: int,
    vocabulary: int,
    training: Tensor,
    settings: Settings,
    report: Callable[[str, float], None],
) -> tuple[Transformer, list[float]]:
    """A trained model, ready to be read with, and the loss after every step."""
    torch.manual_seed(seed)  # the same weights ...
    batches = torch.Generator().manual_seed(seed)  # ... and the same batches for every encoding
    model = Transformer(vocabulary, settings.length, encoding)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, total_steps=settings.steps, pct_start=0.1
    )
    window = torch.arange(settings.length + 1)
    losses = []
    for _ in range(settings.steps):
        last = len(training) - settings.length
        first = torch.randint(last, (settings.batch, 1), generator=batches)
        loss = cross_entropy(model, training[first + window]).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(round(loss.item(), 4))
        report(f"{encoding}, seed {seed}", losses[-1])
    return model.eval(), losses


def cross_entropy(model: Transformer, windows: Tensor) -> Tensor:
    """For windows [b, s + 1] of text, [b, s]: how badly each character after the first was seen
    coming by a model that knows those before it.
    """
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.mT, windows[:, 1:], reduction="none")


@torch.inference_mode()
def evaluate(
    model: Transformer, text: Tensor, factor: int, settings: Settings
) -> tuple[float, float]:
    """Mean loss at a multiple of the trained length, and that of the positions beyond it.

    Every length is asked for the same characters, so what differs is how many stand before them.
    """
    length, longest = factor * settings.length, max(settings.factors) * settings.length
    rows = (len(text) - 1) // longest * longest // length
    starts = torch.arange(rows)[:, None] * length
    windows = text[starts + torch.arange(length + 1)]
    batches = torch.split(windows, max(1, 4096 // length))
    losses = torch.cat([cross_entropy(model, batch) for batch in batches]).mean(0)
    beyond = losses[settings.length :] if factor > 1 else losses
    return round(losses.mean().item(), 4), round(beyond.mean().item(), 4)


def adapt(model: Transformer, factor: int, length: int) -> Transformer | None:
    """A copy for `factor` times the trained length, without training, where that is usual.

    learned: the table has no more rows than it was trained with; it is resampled to as many as are
    needed, as vision transformers are when images grow. rotary: frequencies are scaled by YaRN.
    """
    if model.rope is None and not isinstance(model.at_input, pnn.LearnedPositionalEncoding):
        return None
    other = copy.deepcopy(model)
    if isinstance(other.at_input, pnn.LearnedPositionalEncoding):
        other.at_input = other.at_input.resampled(factor * length)
    elif factor > 1:
        scaling = {
            "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length
        }  # fmt: skip
        other.rope = pnn.RotaryEmbedding(other.head_dim, scaling=scaling, layout="bshd")
    return other
