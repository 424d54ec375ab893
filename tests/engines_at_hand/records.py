"""Records of what engines did: small facts, in records/ENGINE.json."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
ENGINES = sorted(path.stem for path in (_HERE / "adapters").glob("*.py"))


@dataclass
class Record:
    """What a version of an engine did.

    Attributes:
        package: the distribution of the engine.
        version: its version.
        answers: by the name of a configuration the ``configuration``, and either its ``layers`` (a
            list of groups: ``layers``, ``rotary`` as `probe.read_rotation` returns it, or None) or
            ``refused``, the engine's error.
    """

    package: str = ""
    version: str = ""
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)


def configurations_of(engine: str, which: str = "configurations") -> dict[str, Any]:
    """The configurations that an engine is run with, by name."""
    path = _HERE / "configurations" / f"{engine}.py"
    spec = importlib.util.spec_from_file_location(f"configurations_of_{engine}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, which)()


def read_record(engine: str) -> Record:
    """The record of an engine; an empty one if it was never run."""
    path = _HERE / "records" / f"{engine}.json"
    return Record(**json.loads(path.read_text())) if path.exists() else Record()


def by_model(answers: dict[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Answers by the first words of their names, most of which are a model: "llama, yarn"."""
    models: dict[str, dict[str, dict[str, Any]]] = {}
    for name, answer in answers.items():
        models.setdefault(re.split(r"[,:] ", name)[0], {})[name] = answer
    return models


def write_record(engine: str, record: Record) -> None:
    """One line a configuration, so that a difference of versions is a readable diff."""
    lines = ",\n".join(
        f"    {json.dumps(name)}: {json.dumps(record.answers[name])}"
        for name in sorted(record.answers)
    )
    head = "".join(
        f'  "{key}": {json.dumps(getattr(record, key))},\n' for key in ("package", "version")
    )
    path = _HERE / "records" / f"{engine}.json"
    path.write_text(f'{{\n{head}  "answers": {{\n{lines}\n  }}\n}}\n')
