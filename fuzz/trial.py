"""One case on several engines: what they must agree on, and what nobody may touch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from . import compare
from .cases import Case
from .choices import Choices
from .differences import explained
from .engines import (
    CUDA,
    FUSED,
    LINEAR,
    OPERATORS,
    REFERENCE,
    TARGETS,
    Engine,
    Outcome,
    adjoint_fault,
    run,
    tensors_of,
)
from .memory import Arena

SEVERAL_TARGETS_SAME = (
    "toeplitz_bias", "add_toeplitz_bias", "diagonal_sums", "relative_gather", "relative_scatter",
)  # fmt: skip


def _same_bits_promised(case: Case, one: Engine, other: Engine) -> bool:
    if case.function == "rotary_backward":  # sums in an order of their own
        return False
    if case.function == "relative_scatter" and case.arguments.get("index") is not None:
        return "cuda" not in (one.kind, other.kind)  # a GPU sums by column
    return (one.fused and other.fused) or case.function in SEVERAL_TARGETS_SAME


@dataclass
class Finding:
    """Something wrong with a case."""

    engine: Engine
    text: str

    def __str__(self) -> str:
        details = [self.engine.target] if self.engine.target else []
        details += [f"{self.engine.threads} threads"] if self.engine.threads > 1 else []
        details += ["streaming"] if self.engine.streaming else []
        named = f"{self.engine.kind} ({', '.join(details)})" if details else self.engine.kind
        return f"[{named}] {self.text}"


def plan_of(case: Case, choices: Choices) -> list[Engine]:
    """The engines of a case: one whose results are compared, and some that must have its bits."""

    def native() -> Engine:
        return Engine("native", choices.one_of(TARGETS), choices.one_of((1, 3)), choices.chance(40))

    engines = [native()]
    engines.extend(native() for _ in range(choices.integer(1, 3)))
    if CUDA is not None and choices.chance(30):
        engines.append(Engine("cuda"))
    if not OPERATORS or case.function == "rotary_backward":
        return engines
    if choices.chance(40):
        engines.append(Engine("small", choices.one_of(FUSED or TARGETS)))
    if CUDA is not None and choices.chance(40):
        engines.append(Engine("operator"))
    if choices.chance(5):
        engines.append(Engine("plain"))
    return engines


class Trial:
    """Runs cases, one after the other, in one arena."""

    def __init__(self) -> None:
        self.arena = Arena()
        self.executions = 0
        self.refused = 0

    def findings(self, case: Case, engines: list[Engine]) -> Iterator[Finding]:
        """What is wrong."""
        arrays = self.arena.lay(case.layout)
        copies = {key: array.copy() for key, array in arrays.items()}
        first, verdict, tensors = None, None, None
        for i, engine in enumerate(engines):
            if i:
                self.arena.restore()
            operands = arrays
            if engine.of_tensors:
                tensors = tensors or tensors_of(case, self.arena)
                if tensors is None:
                    continue
                operands = tensors
            outcome = run(case, engine, operands)
            self.executions += 1
            for text in self._faults(case, engine, outcome, copies, first):
                if not explained(case, engine, text):
                    yield Finding(engine, text)
            if case.faults and case.function != "rotary_backward":  # its reference checks little
                if verdict is None:
                    verdict = self._reference(case, arrays)
                text = self._disagreement(case, engine, outcome, verdict)
                if text is not None and not explained(case, engine, text):
                    yield Finding(engine, text)
            if first is None and outcome.error is None:
                first = engine, outcome
            if case.twin and outcome.error is None:
                self.arena.restore()
                text = self._differs(outcome, run(case, engine, operands, twin=True))
                self.executions += 1
                if text is not None:
                    yield Finding(engine, text)
            if engine.kind == "operator" and outcome.error is None and case.function in LINEAR:
                self.arena.restore()
                self.executions += 2
                text = adjoint_fault(case, operands) or self.arena.changed([])
                if text is not None:
                    yield Finding(engine, f"gradients: {text}")
        self.refused += first is None

    def _faults(
        self, case: Case, engine: Engine, outcome: Outcome, copies: dict,
        first: tuple[Engine, Outcome] | None,
    ) -> Iterator[str]:  # fmt: skip
        written = [] if outcome.error is not None else case.written
        changed = self.arena.changed(written)
        if changed is not None:
            yield f"wrote where it must not: {changed}"
        if outcome.error is not None:
            text = compare.error_fault(case, outcome.error)
            if text is not None:
                yield text
            if not case.faults:
                yield f"refused a right call: {outcome.error}"
            return
        if not outcome.same_objects:
            yield "returned another object than the one it was to write to"
        if engine.kind == "plain":
            return
        if first is not None and len(first[1].results) != len(outcome.results):
            yield f"{len(outcome.results)} results, not {len(first[1].results)}"
            return
        if first is None:
            text = compare.value_fault(case, copies, engine, outcome)
            if text is not None:
                yield text
        elif _same_bits_promised(case, first[0], engine):
            for i, (mine, other) in enumerate(zip(outcome.results, first[1].results, strict=True)):
                if not compare.same_bits(mine, other):
                    yield f"not the bits of {Finding(first[0], '')}, result {i}"
        else:
            text = compare.value_fault(case, copies, engine, outcome)
            if text is not None:
                yield text

    @staticmethod
    def _differs(outcome: Outcome, twin: Outcome) -> str | None:
        """How another way to write a call differs from it."""
        if twin.error is not None:
            return f"written in another way the call raises {twin.error}"
        for one, other in zip(outcome.results, twin.results, strict=True):
            if not compare.same_bits(one, other):
                return "written in another way the call has other bits"
        return None

    def _reference(self, case: Case, arrays: dict) -> Outcome:
        self.arena.restore()
        return run(case, REFERENCE, arrays)

    @staticmethod
    def _disagreement(
        case: Case, engine: Engine, outcome: Outcome, reference: Outcome
    ) -> str | None:
        if (outcome.error is None) != (reference.error is None):
            ours = "takes it" if outcome.error is None else f"raises {outcome.error}"
            other = "takes it" if reference.error is None else f"raises {reference.error}"
            return f"this engine {ours}, the reference {other}"
        # Of two things that are wrong, engines may find either first.
        alone = len(case.faults) == 1 and not case.faults[0].endswith(("another kind", "dtype"))
        if alone and type(outcome.error) is not type(reference.error):
            return (
                f"{type(outcome.error).__name__}, the reference {type(reference.error).__name__}: "
                f"{outcome.error} / {reference.error}"
            )
        return None
