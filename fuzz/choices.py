"""Where the choices of a case come from: one integer, or a tool that looks for better ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")


class Choices:
    """Draws by `below`, the one source: a number in 0 .. n - 1."""

    def __init__(self, below: Callable[[int], int]) -> None:
        self.below = below

    @classmethod
    def of_seed(cls, seed: int) -> Choices:
        """Those of one integer."""
        real = random.Random(seed).random
        return cls(lambda n: int(real() * n))

    def chance(self, percent: float) -> bool:
        """True so often."""
        return self.below(1000) < percent * 10

    def integer(self, low: int, high: int) -> int:
        """A number in low .. high."""
        return low + self.below(high - low + 1)

    def one_of(self, items: Sequence[Item]) -> Item:
        """One of these."""
        return items[self.below(len(items))]

    def weighted(self, **weights: int) -> str:
        """A name, as often as its weight says."""
        at = self.below(sum(weights.values()))
        for name, weight in weights.items():
            at -= weight
            if at < 0:
                return name
        raise AssertionError

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        """The items in another order."""
        left, result = list(items), []
        while left:
            result.append(left.pop(self.below(len(left))))
        return result

    def wrong(self, *items: Any) -> Any:
        """One of some arguments that nothing takes, or of those that are wrong here."""
        return self.one_of([None, "x", 1.5, -1, True, 2**63, float("nan"), b"", *items])
