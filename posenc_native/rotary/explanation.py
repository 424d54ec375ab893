"""What `explain` returns."""

from __future__ import annotations

from dataclasses import dataclass

from posenc_native.models.unread import UnreadEntry

from .rotary import Rotary
from .words import WIDTH, layer_numbers, wrapped

_INTRODUCTION = (
    "Each pair of numbers in a query or key is turned by an angle that grows with the position of "
    "its token, so that the product of the two depends on how far apart they are."
)

NOPE = "No rotary encoding (NoPE): queries and keys are used as they are, whatever their position."


@dataclass(frozen=True)
class LayerExplanation:
    """Layers that rotate alike.

    Attributes:
        layer_type: as in the configuration, None where layers do not differ by type.
        layers: their numbers, from 0; empty where the configuration does not tell them.
        rotary: what they do; None if they have no rotary encoding.
        softmax_correction: factor of the softmax scale that the model applies beside it.
        facts: sentences.
    """

    layer_type: str | None
    layers: tuple[int, ...]
    rotary: Rotary | None
    softmax_correction: float
    facts: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """What `explain` has found; ``str()`` of it is its `text`.

    Attributes:
        model_type: of the language model, as in the configuration; "" if it has none.
        layers: one entry for each group of layers that rotate alike.
        nope_layers: numbers of the attention layers without rotary encoding. Where there are such
            layers, but the configuration does not tell their numbers, it is empty and a warning
            says so.
        warnings: where engines are known to differ on such a configuration, and what to look at.
        unread: entries that look as if they spoke of the rotation, and are not read; each has its
            ``place``, the entry ``near`` that may be meant, and ``why``.
    """

    model_type: str
    layers: tuple[LayerExplanation, ...]
    nope_layers: tuple[int, ...]
    warnings: tuple[str, ...]
    unread: tuple[UnreadEntry, ...] = ()

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = WIDTH) -> str:
        """All of it, in lines of at most `width` characters; headings alone are not indented."""
        lines = [f"Rotary encoding of {self.model_type or 'an unnamed model'}"]
        lines += [*wrapped(_INTRODUCTION, width, "", ""), ""]
        for group in self.layers:
            lines.append(_heading(group, len(self.layers) == 1))
            lines += [line for fact in group.facts for line in wrapped(fact, width, "  ", "  ")]
            lines.append("")
        if self.warnings:
            lines.append("Worth knowing")
            for warning in self.warnings:
                lines += wrapped(warning, width, "  - ", "    ")
            lines.append("")
        if self.unread:
            lines.append("Not read")
            for entry in self.unread:
                lines += wrapped(str(entry), width, "  - ", "    ")
        return "\n".join(lines).rstrip()


# Words


def _heading(group: LayerExplanation, alone: bool) -> str:
    name = f"Layers of type {group.layer_type}" if group.layer_type else "Layers"
    if not group.layers and group.layer_type is None:
        apart = "Layers without rotary encoding" if group.rotary is None else "Layers that rotate"
        return "All layers" if alone else apart
    if not group.layers:
        return name
    return f"{name}: {layer_numbers(group.layers)}"
