"""The rules of English (scripts/prose) find what they are about; `make check` runs them."""

import subprocess
import sys

import pytest
from places import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
pytest.importorskip("proselint", reason="requirements/lint.txt has it; `make check` installs it")
pytest.importorskip("mdit_py_plugins", reason="requirements/lint.txt has it, as `make check`")

from prose import __main__ as prose
from prose import extract, facts, rules


def found(text):
    return {finding.rule for finding in prose.findings([extract.Passage(1, text)])}


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.name)
def test_a_rule_finds_what_breaks_it_and_nothing_else(rule):
    assert all(f"posenc.{rule.name}" in found(text) for text in rule.breaks)
    assert not any(f"posenc.{rule.name}" in found(text) for text in rule.keeps)
    assert rule.breaks


def test_findings_stand_in_their_lines(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\nOne line.\nWhat is left is\nthis. Fine.\n\n| a | b |\n|---|---|\n"
        "| x | It is for whoever asks |\n\n```python\nwhoever = 1\n```\n\n"
        "Inline `whoever` and [a link](whoever.md).\n\n<!-- prose: off -->\n\nWhoever asks.\n\n"
        "<!-- prose: on -->\n\n- Whoever asks.\n"
    )
    lines = [(one.line, one.rule) for one in prose.findings(extract.passages(page))]
    assert lines == [
        (4, "posenc.clause_as_noun"),
        (9, "posenc.whoever"),
        (23, "posenc.clause_as_noun"),
        (23, "posenc.whoever"),
    ]


def test_docstrings_are_read_without_their_code(tmp_path):
    module = tmp_path / "module.py"
    module.write_text(
        '"""Head.\n\nWhoever asks\n"""\n\n\ndef f(whoever):\n    """Head.\n\n    Args:\n'
        "        whoever: for whoever asks\n\n    >>> whoever\n    whoever\n\n    Such as::\n\n"
        "        whoever\n\n    a column    for whoever\n    another     one\n\n    - One.\n"
        "    - Whoever asks.\n\n    ::\n\n"
        '        whoever\n    """\n    return "whoever"  # whoever\n'
    )
    lines = [one.line for one in prose.findings(extract.passages(module)) if "whoever" in one.rule]
    assert lines == [3, 11, 24]


def test_facts_of_markdown_and_python_are_compared():
    before = "Takes 3 ms, `f(x)`.\n\n```python\nf(1)\n```\n\n[How](a.md)\n"
    assert facts.differences("a.md", before, before.replace("Takes", "It takes")) == []
    for old, new in {"3 ms": "4 ms", "f(x)": "f(y)", "f(1)": "f(2)", "a.md": "b.md"}.items():
        assert len(facts.differences("a.md", before, before.replace(old, new))) == 2, old
    code = '"""Two words."""\n\nx = 1  # 3 times\n'
    assert facts.differences("a.py", code, code.replace("Two words", "Other words")) == []
    assert len(facts.differences("a.py", code, code.replace("x = 1", "x = 2"))) == 2
    assert len(facts.differences("a.py", code, code.replace("3 times", "4 times"))) == 2


def test_the_command_fails_where_there_is_a_finding(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text("Whoever asks is told.\n")
    assert prose.main([str(tmp_path / "page.md")]) == 1
    assert "page.md:1: posenc.whoever" in capsys.readouterr().out
    (tmp_path / "page.md").write_text("We tell you.\n")
    assert prose.main([str(tmp_path / "page.md")]) == 0
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert prose.files() == [tmp_path / "page.md"]
