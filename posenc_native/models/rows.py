"""The tables of models: JSON files of the package, one row per model, read at first use.

scripts/model_rows.py defines their form, tests/models/test_rows.py the content of a row.
"""

from __future__ import annotations

import os
from typing import Any


def rows(table: str, beside: str = __file__) -> dict[str, dict[str, Any]]:
    """The rows of a table, by model; the JSON file is in the folder of the file `beside`.

    Lists become tuples, so that callers cannot change them.
    """
    import json  # here, because `import posenc_native` does not need it

    path = os.path.join(os.path.dirname(beside), f"{table}.json")
    with open(path, encoding="utf-8") as file:
        return {name: _with_tuples(row) for name, row in json.load(file).items()}


def _with_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_tuples(item) for key, item in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value
