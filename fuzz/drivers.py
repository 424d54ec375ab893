"""What looks for cases, compared: integers in turn, hypothesis, atheris.

    python -m fuzz.drivers DRIVER FUNCTION SECONDS [SEED]

runs cases of one function in this process until one is wrong, and prints how many there were; a
crash ends it with a signal. README.md has what came of it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

instrumented: Any = nullcontext()
if __name__ == "__main__" and sys.argv[1:2] == ["atheris"]:
    import atheris

    instrumented = atheris.instrument_imports(include=["fuzz", "posenc_native"])
with instrumented:
    from . import compare
    from .cases import NAMES, drawn
    from .choices import Choices
    from .trial import Trial, plan_of


class Found(Exception):
    """A case is wrong."""


class Counted:
    """Runs cases and counts them."""

    def __init__(self, function: str, seconds: float) -> None:
        self.function, self.trial = function, Trial()
        self.began = time.monotonic()
        self.until = self.began + seconds
        self.cases = 0

    def run(self, below: Callable[[int], int]) -> None:
        """One case; raises Found if it is wrong."""
        choices = Choices(below)
        case = drawn(self.function, choices)
        self.cases += 1
        # Where a crash cannot be told, the last line of the output has the number.
        print(f"\r{self.cases} cases, {time.monotonic() - self.began:.1f} s", end="", flush=True)
        for finding in self.trial.findings(case, plan_of(case, choices)):
            raise Found(str(finding))

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self.until


def by_integers(counted: Counted, seed: int) -> None:
    """One integer, one case."""
    while not counted.over:
        counted.run(Choices.of_seed(seed).below)
        seed += 1


def by_hypothesis(counted: Counted, seed: int) -> None:
    """Choices of hypothesis, without shrinking."""
    import hypothesis
    from hypothesis import strategies as st

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=10**9, deadline=None, database=None, phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(st.data())
    def search(data: Any) -> None:
        if counted.over:
            raise KeyboardInterrupt
        counted.run(lambda n: data.draw(st.integers(0, n - 1)))

    search()


def by_atheris(counted: Counted, seed: int) -> None:
    """Choices of libFuzzer, led by the coverage of the Python code alone."""

    def search(data: bytes) -> None:
        provider = atheris.FuzzedDataProvider(data)
        if counted.over:
            raise KeyboardInterrupt
        counted.run(lambda n: provider.ConsumeIntInRange(0, n - 1))

    atheris.Setup(["fuzz", f"-seed={seed + 1}", "-max_len=4096"], search)
    atheris.Fuzz()


DRIVERS = {"integers": by_integers, "hypothesis": by_hypothesis, "atheris": by_atheris}


def main() -> None:
    """The command."""
    driver, function, seconds, *seed = sys.argv[1:]
    assert function in NAMES, f"one of {', '.join(NAMES)}"
    compare.quick_reference()
    counted = Counted(function, float(seconds))
    try:
        DRIVERS[driver](counted, int(seed[0]) if seed else 0)
    except Found as finding:
        print(f"\nfound after {counted.cases} cases: {finding}")
    except KeyboardInterrupt:
        print(f"\nnothing in {counted.cases} cases")


if __name__ == "__main__":
    main()
