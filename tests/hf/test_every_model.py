"""`posenc_native.hf.patch` on every model of the installed transformers that has rotary encoding.

Takes minutes: `make test PYTEST_ARGS='-m slow'`. Configurations are shrunk by the names of their
entries; a model whose configuration does not take that is passed over and counted.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hf_every import hidden_states, modeling_files, small_models  # noqa: E402

from posenc_native import hf  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


# Rotary embeddings that are not served, and why.
LEFT_ALONE = {
    "ClvpRotaryPositionalEmbedding": "takes no position_ids",
    "MistralLarge4TextRotaryEmbedding": "parameters or other buffers",
}
# A relative encoding, which has sines, too, and no rotary function.
NOT_ROTARY = re.compile(r"RelPositionalEncoding$")


def rotary_parts(model: Any) -> dict[str, str]:
    """Modules that look like a rotary embedding, by their class."""
    return {
        name: type(module).__name__
        for name, module in model.named_modules()
        if re.search(r"Ro(tary|pe|PE)\w*Embedding$", type(module).__name__)
    }


def test_every_model() -> None:
    served: set[str] = set()
    compared: set[str] = set()
    wrong: list[str] = []
    for name in modeling_files():
        for model in small_models(name):
            embeddings = rotary_parts(model)
            if not embeddings:
                continue
            before = hidden_states(model)
            try:
                handle = hf.patch(model)
                patched, skipped = handle.patched, handle.skipped
            except ValueError as error:
                patched, skipped = (), dict.fromkeys(embeddings, str(error))
            for part, kind in embeddings.items():
                if part in patched:
                    served.add(f"{name}.{kind}")
                    continue
                reason = skipped.get(part, "not mentioned")
                # Layers of other kinds than attention, or a configuration that is not small enough.
                harmless = re.search("no attention|got none|split_sizes|'NoneType'", reason)
                if LEFT_ALONE.get(kind, "?") not in reason and not harmless:
                    wrong.append(f"{name}: {part}: {kind}: {reason}")
            if before is not None and patched:
                # Positions below 12: hardly any phase error.
                after = hidden_states(model)
                difference = (after - before).abs().max()
                if difference > 1e-4 * before.std():
                    wrong.append(f"{name}: {type(model).__name__}: off by {difference}")
                hf.unpatch(model)
                with hf.patch(model, inplace=False):
                    if not torch.equal(hidden_states(model), after):
                        wrong.append(f"{name}: {type(model).__name__}: in place differs from fresh")
                compared.add(name)
            hf.unpatch(model)
            assert not any("_posenc_native" in m.__dict__ for m in model.modules())
    assert not wrong, "\n".join(wrong)
    assert len(served) > 150, len(served)
    assert len(compared) > 80, len(compared)
