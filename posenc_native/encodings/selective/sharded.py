"""`selective_rotary_qk` of DTensors: sharded along batch, heads and tokens; pairs are whole.

Each rank rotates its part with the plain function, continuing from where earlier ranks end. Heads
stay sharded if the steps on a rank are for its heads of q and k; otherwise they are gathered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from posenc_native.core.calls.pairs import missing_one, outputs
from posenc_native.encodings.positions.rows import checked_rows
from posenc_native.engines.arrays import Arrays
from posenc_native.engines.following import needs_grad
from posenc_native.engines.torch.results import no_output_for_gradient
from posenc_native.engines.torch.sharded.cut import Cut, Names, mesh_of, overwritten, whole
from posenc_native.engines.torch.sharded.rotary import cut_of, overwrite
from posenc_native.engines.torch.sharded.taken_apart import by_rule

from .across import across_ranks
from .angles import FUNCTION, Angles, Selective
from .gradients import new_where_steps_learn, rotate
from .phases import moved, totals_of

if TYPE_CHECKING:
    from .across import Across

__all__ = ["selective_rotary_qk"]


def selective_rotary_qk(*args: Any) -> tuple[Any, Any, DTensor]:
    """Arguments are q, k, steps, state, starts, order, options, inplace, out; some are DTensors."""
    return by_rule(_of_wholes, _of_parts, args)  # type: ignore[no-any-return]


def _of_wholes(
    q: Any, k: Any, steps: Any, state: Any, starts: Any, _: str, options: Selective, *to: Any
) -> Any:
    """The call for whole tensors, whose errors are raised."""
    inplace, out = to
    keywords = {"inplace": inplace} if out is None else {"out": out, "inplace": inplace}
    return rotate(q, k, Angles(q, k, steps, state, starts, options), starts, keywords)


def _of_parts(
    q: Any, k: Any, steps: Any, state: Any, starts: Any, order: str, options: Selective,
    inplace: bool, out: Any,
) -> tuple[Any, Any, DTensor]:  # fmt: skip
    outs = (q, k) if inplace else (None, None)
    if out is not None:
        outs = outputs(FUNCTION, out, inplace, missing_one(q, k))
    mesh = mesh_of((q, k, steps, state, starts, outs))
    both = [x if x is None else whole(x, mesh) for x in (q, k)]
    tensors = [x for x in both if x is not None]
    arrays = Arrays(FUNCTION, None, None, q=q, k=k, steps=steps, state=state, starts=starts)
    steps = arrays.floats("steps", steps)
    cuts = _cuts(tensors, steps, options.layout)
    alike = cuts[0].lies_as(cuts[-1])
    if not alike:
        cuts = [_cuts([x], steps, options.layout)[0] for x in tensors]
    written = any(x is not None for x in outs)
    followed = torch.is_grad_enabled() and needs_grad(*tensors, steps)
    places: list[Any] = [None, None]
    if written:
        new_where_steps_learn(steps, "inplace" if inplace else "out")
        if followed and (outs[0] is not q or outs[1] is not k):
            no_output_for_gradient(FUNCTION, *tensors)
        places = [
            x if x is None else _place("qk"[i], cuts[-i], both[i], both[i] if inplace else x, i)
            for i, x in enumerate(outs)
        ]
    if not alike:
        rest = steps, state, starts, order, options, inplace
        of_q, of_k = (None, None) if out is None else ((outs[0], None), (None, outs[1]))
        rotated_q, _, after = _of_parts(q, None, *rest, of_q)
        return rotated_q, _of_parts(None, k, *rest, of_k)[1], after
    call = _Call(arrays, both, cuts, steps, state, starts, order, options)
    with torch.set_grad_enabled(followed):
        rotated, after = call.run([None, None] if followed else places)
    if not written:
        return rotated[0], rotated[1], after
    if followed:
        q, k = (x if x is None else overwrite(x, y) for x, y in zip(outs, rotated, strict=True))
        return q, k, after
    overwritten(*(x for x in outs if x is not None))
    return outs[0], outs[1], after


def _place(name: str, cut: Cut, x: Any, out: Any, i: int) -> Tensor:
    """The local part of a tensor that will be written to."""
    return cut.place(FUNCTION, name if out is x else f"out[{i}]", out, name)


def _cuts(tensors: list[DTensor], steps: DTensor, layout: str) -> list[Cut]:
    """The cuts of q and k. The heads of a rank must be those of its steps."""
    names = tuple(layout)
    cuts = [cut_of(x, layout) for x in tensors]
    if "h" not in names:
        return cuts
    heads = steps.shape[names.index("h")]
    equal = all(cut.sizes["h"] == heads for cut in cuts)
    if heads == 1 or equal or not any(heads % cut.ranks("h")[1] for cut in cuts):
        return cuts
    return [cut_of(x, layout, "hd") for x in tensors]


class _Call:
    """The local parts of a call whose q and k are sharded alike."""

    def __init__(
        self, arrays: Arrays, both: list[Any], cuts: list[Cut], steps: DTensor, state: Any,
        starts: Any, order: str, options: Selective,
    ) -> None:  # fmt: skip
        self.both, self.options = both, options
        self.cuts = [cuts[0], cuts[-1]]
        cut, letters = cuts[0], cuts[0].names[:-1]
        tokens = "t" if "t" in letters else "s"
        names: Names = letters
        if "h" in letters:
            heads = steps.shape[letters.index("h")]
            cut = cut.of_sizes(h=heads)
            if heads == 1:  # on every rank, however heads are sharded
                names = tuple("one" if name == "h" else name for name in letters)
        self.cut = cut
        self.steps: Tensor = cut.part(steps, (*names, "P"))
        # The axes of tables and states: [b, h, s, P].
        self.axes = [letters.index(name) for name in "bhst" if name in letters]
        rows = checked_rows(arrays, starts, cut.sizes[tokens])
        inner = (*(names[i] for i in self.axes[:-1]), "P")
        self.of_state: Names = inner if rows is None else ("rows", *inner)
        self.state: Any = None
        if state is not None:
            self.state = cut.part(arrays.integers("state", state, ("int64",)), self.of_state)
        self.packed = rows is not None
        self.starts = None if rows is None else rows.starts
        self.arrays = arrays.of_parts()
        self.across = across_ranks(self.arrays, cut, tokens, order, self.starts)

    def run(self, places: list[Any]) -> tuple[list[Any], DTensor]:
        """q and k rotated, into the places that are not None, and the state."""
        steps, state, starts, after = self.steps, self.state, self.starts, None
        if self.across is not None:
            starts = self.across.starts
            steps, state, after = self._begun(self.across)
        q, k = (
            x if x is None else cut.local(x) for x, cut in zip(self.both, self.cuts, strict=True)
        )
        angles = Angles(q, k, steps, state, starts, self.options, self.across)
        to = {} if places == [None, None] else {"out": tuple(places)}
        *rotated, last = rotate(q, k, angles, starts, to)
        joined = [
            part if part is None else cut.join(part, cut.names)
            for part, cut in zip(rotated, self.cuts, strict=True)
        ]
        return joined, self.cut.join(last if after is None else after, self.of_state)

    def _begun(self, across: Across) -> tuple[Tensor, Tensor, Tensor]:
        """The steps of this rank, where their sums begin, and the state after all ranks."""
        last = self.steps.ndim - 1
        laid = self.steps.detach().permute(*self.axes, last)
        rows = checked_rows(self.arrays, across.starts, laid.shape[-2])
        totals, wrong = totals_of(self.arrays, laid, rows, last - 1)
        state = self.state if self.packed or self.state is None else self.state[None]
        seen = self.arrays.seen(wrong) is not None
        begun = across.begin(totals, wrong, state, seen)
        steps = self.steps
        if not seen:
            # The steps are unchecked: after an invalid step on another rank, no angle is valid.
            bad = begun.wrong[0][..., None, :]
            if rows is not None:
                bad = moved(begun.wrong[rows.of_tokens], 0, -2)
            back = sorted(range(last), key=self.axes.__getitem__)
            steps = steps.masked_fill(bad.permute(*back, last), float("nan"))
        phases = begun.phases[0] if rows is None else begun.phases
        return steps, phases, begun.after if self.packed else begun.after[0]
