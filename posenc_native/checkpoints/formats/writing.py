"""Write a description in the words of an engine, and list what these cannot express.

The reader of the same format reads the written entries: tests/checkpoints/formats/test_writing.py.
"""

from __future__ import annotations

from posenc_native.encodings.rotary.rotary import Rotary

from .description import Description
from .reading import FORMATS
from .written import Written, rotations

WRITERS = {name: form.write for name, form in sorted(FORMATS.items()) if form.write is not None}


def write(description: Description, form: str, permuted: bool = False) -> Written:
    """A description in the words of "gguf", "hf", "megatron" or "mistral".

    permuted: the weights of queries and keys are permuted as the format needs, as in `compare`.
    """
    written = Written(permuted=permuted)
    first = rotations(description)
    if not first:
        written.lose("A model without rotary encoding.")
        return written
    WRITERS[form](description, written)
    written.lose(
        "Layers of one type that rotate differently: the first layers' rotation is written.",
        when=any(
            Rotary(**group.arguments) != first[group.layer_type]
            for group in description.groups
            if group.arguments is not None
        ),
    )
    return written
