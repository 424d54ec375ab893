"""explain against every causal model of transformers, with every change of its configuration.

test_records.py has a cover of it. This runs the models, for two minutes, once a week.
"""

import importlib.util
from pathlib import Path

import pytest
from probe import answer
from records import configurations_of
from verdicts import assert_same

import posenc_native as pn

pytestmark = pytest.mark.slow


def test_explain_says_what_transformers_does():
    pytest.importorskip("transformers", reason="runs its models")
    path = Path(__file__).parent / "adapters" / "transformers.py"
    spec = importlib.util.spec_from_file_location("adapter_of_transformers", path)
    adapter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(adapter)
    wrong, agreed = [], 0
    for name, configuration in configurations_of("transformers", "everything").items():
        did = answer(adapter.rotations, configuration)
        try:
            explanation = pn.explain(configuration)
        except (ValueError, TypeError):
            if any(group["rotary"] for group in did.get("layers", [])):
                wrong.append(f"{name}: refused, but the model rotates")
            continue
        if "refused" in did or explanation.description.ground.kind == "unknown":
            continue  # most refuse sizes that do not fit
        try:
            assert_same(explanation, {"configuration": configuration, **did})
            agreed += 1
        except AssertionError as error:
            wrong.append(f"{name}: {' '.join(str(error).split())[:160]}")
    assert not wrong, "\n".join(wrong)
    assert agreed > 1500
