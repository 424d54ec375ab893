"""The form of the tables of models: a row a model, so that people can read and compare them.

    python scripts/model_rows.py            says which tables are not in this form; fails if any
    python scripts/model_rows.py --write    puts them into it

Rows stay in the order in which they stand. A value is written on one line if it fits there; a
longer mapping has a line for each key, a longer list as many numbers on a line as fit. What rows
mean is said where they are read, in posenc_native/models/*.py and
posenc_native/checkpoints/formats/binary/gguf.py; tests/models/test_rows.py says what must be in
them.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1] / "posenc_native"
TABLES = [*sorted((PACKAGE / "models").glob("*.json")),
          *sorted((PACKAGE / "checkpoints" / "formats").glob("*/*.json"))]  # fmt: skip
WIDTH = 100
_SPACE = "\0"


def canonical(table: dict[str, dict[str, Any]]) -> str:
    """The text of a table."""
    rows = ",\n".join(f"  {_entry(name, row, 2)}" for name, row in table.items())
    return f"{{\n{rows}\n}}\n"


def _entry(key: str, value: Any, indent: int) -> str:
    """A key and its value, which begin at a column; one more is for the comma."""
    begin = f"{json.dumps(key)}: "
    line = begin + json.dumps(value, ensure_ascii=False)
    if indent + len(line) < WIDTH or not isinstance(value, (dict, list)):
        return line
    inner = " " * (indent + 2)
    if isinstance(value, dict):
        lines = ",\n".join(inner + _entry(k, v, indent + 2) for k, v in value.items())
        return f"{begin}{{\n{lines}\n{inner[2:]}}}"
    # A space inside of an item is none to break a line at.
    items = (json.dumps(item).replace(" ", _SPACE) for item in value)
    filled = textwrap.fill(
        ", ".join(items), WIDTH, initial_indent=inner, subsequent_indent=inner
    ).replace(_SPACE, " ")
    return f"{begin}[\n{filled}\n{inner[2:]}]"


def main() -> int:
    """The command; 1 where a table is in another form and stays so."""
    others = 0
    for path in TABLES:
        text = path.read_text(encoding="utf-8")
        wanted = canonical(json.loads(text))
        if text == wanted:
            continue
        if "--write" in sys.argv[1:]:
            path.write_text(wanted, encoding="utf-8")
        else:
            others += 1
            print(f"{path} is not in its form: python scripts/model_rows.py --write")
    return min(others, 1)


if __name__ == "__main__":
    sys.exit(main())
