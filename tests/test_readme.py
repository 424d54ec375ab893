"""The Python code in README.md runs as it stands, block by block."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)


def test_readme_has_code() -> None:
    assert len(BLOCKS) >= 3


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_block_runs(block: str) -> None:
    for module in ("torch", "transformers"):
        if re.search(rf"^(import|from) {module}\b", block, re.M):
            pytest.importorskip(
                module, reason=f"the block imports {module}, which is not installed"
            )
    exec(compile(block, str(README), "exec"), {})
