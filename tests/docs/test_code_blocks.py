"""The code of README.md and of docs/ runs, block by block; sybil finds the blocks.

- ```` ```python ```` runs, as a doctest where it begins with >>>. The blocks of a page share their
  names, from top to bottom, where it says so (GO_ON); else, as in README.md, they stand alone.
- Code that draws a picture stands alone; where a comment hides it, `make docs` runs it
  (scripts/pages/pictures.py).
- ```` ```console ````: after `$ `, commands of this package run, and print the lines that follow,
  in their order, "..." standing for others; other programs are in NOT_RUN, with the reason. So are
  those in blocks that are shown by their indentation.
- ```` ```json ```` has to be JSON and ```` ```yaml ```` YAML, whose steps are commands as those of
  console; ```` ```text ```` is what something prints; ```` ```diff ```` has a test of
  its own.
- `<!-- skip: next "reason" -->` before a block leaves it out, and pytest says so; with
  `if(condition, reason="reason")`, which sees the names of the page, where the condition holds.

A block of any other language fails; so does code where no block is looked for: in
reStructuredText, in HTML, in a directive with colons, after a prompt in ```` ```text ````. Files
that docs/ shows from elsewhere have none.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib.util
import io
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import SkipTest

import pytest
from places import ROOT

pytest.importorskip("sybil", reason="requirements/test.txt has it")

from gguf_files import write_gguf
from rotating import computing
from sybil import Example, Sybil
from sybil.evaluators.doctest import DocTestEvaluator
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.abstract.doctest import DocTestStringParser
from sybil.parsers.markdown import (
    CodeBlockParser,
    PythonCodeBlockParser,
    SkipParser,
)
from targets import backend_in_use

from posenc_native.cli import main

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
# Their code is commands of a working copy, shown by indentation; no test runs it.
INCLUDED = [
    *(
        ROOT / name
        for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
    ),
    *(ROOT / name / "README.md" for name in ("benchmarks", "examples")),
]

# What a page may tell its reader to run although no test runs it, and why.
NOT_RUN = {
    "apt-get": "installs system packages",
    "make": "sets up the repository; continuous integration runs the targets",
    "pip": "installs packages",
    "vllm": "is another program; make engine-vllm runs it",
}
LANGUAGES = {"python", "console", "json", "yaml", "text", "diff"}
# Directives that hold no code.
DIRECTIVES = {
    *("toctree", "reference"),
}
COLON_DIRECTIVE = re.compile(r"^ *:{3,} *\{([\w:-]+)\}", re.M)
PROMPT = re.compile(r"^(>>>|\$) ", re.M)
REASON = r'("[^"]+"|if\(.+, reason="[^"]+"\))'
# What shows that a block needs a package.
IMPORTS = {
    "torch": r"import torch|from torch\b|from posenc_native import .*(nn|flex|hf)\b",
    "transformers": r"from transformers\b",
    "matplotlib": r"(from|import) matplotlib\b|pn\.plot\b",
    "mpmath": r"import mpmath",
    "ml_dtypes": r"import ml_dtypes",
    "onnx": r"import onnx",
    "rotary_embedding_torch": r"from rotary_embedding_torch\b",
    "x_transformers": r"from x_transformers\b",
    "gguf": r"import gguf",
}
# ... or that a command does.
COMMANDS = {"demo": ("torch", "transformers", "matplotlib"), "plot": ("matplotlib",)}
MISSING = [name for name in IMPORTS if importlib.util.find_spec(name) is None]
# What a page says whose blocks need names of earlier ones.
GO_ON = "*The blocks of this page go on from each other: run them from the top.*"
# What a page calls path/to/model.
MODEL = {
    "model_type": "llama", "head_dim": 64, "rope_theta": 500000.0, "num_hidden_layers": 2,
    "hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2,
    "intermediate_size": 64, "vocab_size": 16,
}  # fmt: skip


# --- What blocks do


def skip_without_packages(example: Example, source: str) -> None:
    """A page is left out from where it first imports a package that is not installed."""
    for name in MISSING:
        if re.search(IMPORTS[name], source):
            example.namespace["missing"] = f"from here on the page needs {name}, not installed here"
            raise SkipTest(example.namespace["missing"])


class Python(PythonEvaluator):
    def __call__(self, example: Example) -> None:
        skip_without_packages(example, example.parsed)
        super().__call__(example)


class PythonAlone(Python):
    def __call__(self, example: Example) -> None:
        names = dict(example.namespace)
        example.namespace.clear()
        try:
            super().__call__(example)
        finally:
            example.namespace.clear()
            example.namespace.update(names)


class PythonDocTest(DocTestEvaluator):
    def __call__(self, example: Example) -> str:
        skip_without_packages(example, example.parsed.source)
        return super().__call__(example)


def python_blocks(evaluator: PythonEvaluator) -> PythonCodeBlockParser:
    parser = PythonCodeBlockParser()
    parser.codeblock_parser = CodeBlockParser("python", evaluator)
    parser.doctest_parser = DocTestStringParser(PythonDocTest())
    return parser


def run_console(example: Example) -> str | None:
    for command, printed in commands(example.parsed).items():
        if program(command) in NOT_RUN:
            continue
        words = shlex.split(command, comments=True)
        if words[0] == "posenc-native":
            words[:1] = ["python", "-m", "posenc_native"]
        if words[:3] != ["python", "-m", "posenc_native"]:
            return f"neither a command of this package nor in NOT_RUN: {command}"
        needed = (*COMMANDS.get(words[3], ()), *(["gguf"] if ".gguf" in command else []))
        for name in needed:
            if name in MISSING:
                raise SkipTest(f"`posenc-native {words[3]}` needs {name}, not installed here")
        said = io.StringIO()  # in this process: tests/cli starts others
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = main(words[3:])
        if status and not (words[3] == "compare" and status == 1):  # they differ
            return f"{command}: exit status {status}\n{said.getvalue()}"
        lines = iter(said.getvalue().splitlines())
        for line in printed:
            if line != "..." and line not in lines:
                return f"{command}: does not print {line!r} (in this order)\n{said.getvalue()}"
    return None


def commands(source: str) -> dict[str, list[str]]:
    """What follows each `$ `, and the lines below it; one that ends in a backslash goes on."""
    found: dict[str, list[str]] = {}
    for line in source.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found[line[2:]] = printed = []
        elif line.strip():
            printed.append(line)
    return found


def program(command: str) -> str:
    """`make` of ``VARIABLE=value make docs``."""
    words = shlex.split(command, comments=True)
    return next(word for word in words if not re.match(r"[A-Z_]+=", word))


def check_json(example: Example) -> None:
    json.loads(example.parsed)


def run_steps(example: Example) -> str | None:
    """The steps of a workflow, each a `run`."""
    yaml = pytest.importorskip("yaml")
    steps = yaml.safe_load(example.parsed)
    example.parsed = "\n".join(f"$ {step['run']}" for step in steps)
    return run_console(example)


# --- The blocks


def goes_on(page: Path) -> bool:
    return GO_ON in page.read_text(encoding="utf-8")


def parse(page: Path) -> list[Example]:
    sybil = Sybil(
        parsers=[
            python_blocks(Python() if goes_on(page) else PythonAlone()),
            CodeBlockParser("console", run_console),
            CodeBlockParser("json", check_json),
            CodeBlockParser("yaml", run_steps),
            SkipParser(),
        ]
    )
    return list(sybil.parse(page).examples())


BLOCKS = [(page, example) for page in PAGES for example in parse(page)]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """A directory for each page, with a model in it: a block may read what one before it wrote."""
    found = {page: tmp_path_factory.mktemp(page.stem) for page in PAGES}
    for page, directory in found.items():
        model = directory / "path" / "to" / "model"
        model.mkdir(parents=True)
        (model / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        if "path/to/hf model.gguf" in page.read_text(encoding="utf-8"):
            write_converted(directory, model)
        if "AutoModelForCausalLM.from_pretrained(" in page.read_text(encoding="utf-8"):
            write_weights(model)
    return found


def write_converted(directory: Path, model: Path) -> None:
    """The same model for llama.cpp: model.gguf; and as path/to/hf."""
    (model.parent / "hf").mkdir()
    shutil.copy(model / "config.json", model.parent / "hf")
    if "gguf" in MISSING:
        return
    settings = {
        "context_length": 2048, "embedding_length": MODEL["hidden_size"],
        "block_count": MODEL["num_hidden_layers"],
        "attention.head_count": MODEL["num_attention_heads"],
        "attention.key_length": MODEL["head_dim"],
        "rope.dimension_count": MODEL["head_dim"], "rope.freq_base": MODEL["rope_theta"],
    }  # fmt: skip
    metadata = {f"llama.{key}": value for key, value in settings.items()}
    write_gguf(directory / "model.gguf", {"general.architecture": "llama", **metadata})


def write_weights(model: Path) -> None:
    if "transformers" in MISSING:
        return
    import transformers

    config = transformers.AutoConfig.from_pretrained(model)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(model)


@pytest.fixture
def no_windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if "matplotlib" in MISSING:
        yield
        return
    monkeypatch.setenv("MPLBACKEND", "Agg")
    from matplotlib import pyplot

    pyplot.switch_backend("Agg")
    yield
    pyplot.close("all")


@pytest.mark.usefixtures("no_windows", "threads")
@pytest.mark.parametrize(
    ("page", "example"),
    BLOCKS,
    ids=[f"{page.relative_to(ROOT)}:{example.line}" for page, example in BLOCKS],
)
def test_block_runs(
    page: Path,
    example: Example,
    directories: dict[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(directories[page])
    if reason := example.namespace.get("missing"):
        pytest.skip(reason)
    with computing(backend_in_use()):  # a block may choose another
        example.evaluate()


def test_readme_has_code() -> None:
    assert sum(page == README for page, _ in BLOCKS) >= 3


def names_from_elsewhere(source: str) -> set[str]:
    defined, used = set(dir(builtins)), set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.alias(name=name, asname=other):
                defined.add((other or name).partition(".")[0])
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                defined.add(name)
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.ExceptHandler(name=str(name)):
                defined.add(name)
    return used - defined


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_whoever_pastes_a_block_knows_what_it_needs(page: Path) -> None:
    """A block stands alone, or its page says that it goes on from those above it."""
    blocks = re.findall(
        r"^```python\n(?!>>>)(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M
    )
    needed = set().union(*map(names_from_elsewhere, blocks))
    assert bool(needed) == goes_on(page), needed


# --- No block that nobody runs


def unknown(page: Path) -> list[str]:
    """What looks like code and is neither run, nor left out with a reason; lines that are cut."""
    from markdown_it import MarkdownIt

    text = page.read_text(encoding="utf-8")
    found = [
        comment
        for comment in re.findall(r"<!--.*?-->", text, re.S)
        if "skip" in comment and not re.fullmatch(rf"<!-- skip: next {REASON} -->", comment)
    ]
    found += [f":::{name}" for name in COLON_DIRECTIVE.findall(text) if name not in DIRECTIVES]
    for token in MarkdownIt().parse(text):
        if token.type == "fence":
            # What fits into the site's pages: docs/_static/posenc.css.
            found += [line for line in token.content.splitlines() if len(line) > 100]
            directive = re.match(r"\{([\w:-]+)\}", token.info)
            name, known = (directive[1], DIRECTIVES) if directive else (token.info, LANGUAGES)
            prompts = PROMPT.search(token.content)
            if name not in known or {"console": not prompts, "text": prompts}.get(name):
                found.append(f"```{token.info}")
        elif token.type == "html_block":
            found += re.findall(r"<(?:pre|code)\b", token.content)
        elif token.type == "code_block":
            lines = [line for line in token.content.splitlines() if line.strip()]
            found += [line for line in lines if program(line) not in NOT_RUN]
    return found


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_block_is_known(page: Path) -> None:
    assert unknown(page) == []


def test_included_pages_are_all_known() -> None:
    links = (re.fullmatch(r"\[.+\]\((.+)\)\n", page.read_text("utf-8")) for page in PAGES)
    named = [
        (page.parent / link[1]).resolve() for page, link in zip(PAGES, links, strict=True) if link
    ]
    assert sorted(named) == sorted(INCLUDED)


@pytest.mark.parametrize("page", INCLUDED, ids=lambda page: str(page.relative_to(ROOT)))
def test_included_pages_have_no_code_to_run(page: Path) -> None:
    assert parse(page) == []


def test_what_is_not_known_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\n1\n```\n<!-- skip: next -->\n```python\n1\n```\n```py\n1\n```\n"
        "```\n1\n```\n```{code-block} python\n1\n```\n\nText:\n\n    make docs\n    rm -r docs\n\n"
        ":::{code-block} python\n1\n:::\n:::{reference}\n:::\n```{eval-rst}\n```\n"
        "```console\nrm -r docs\n```\n```text\n>>> 1\n```\n\n<pre>1</pre>\n"
        f"```text\n{'x' * 101}\n```\n",
        encoding="utf-8",
    )
    assert unknown(page) == [
        *("<!-- skip: next -->", ":::code-block"),
        *("```py", "```", "```{code-block} python"),
        "rm -r docs",
        *("```{eval-rst}", "```console", "```text", "<pre", 101 * "x"),
    ]


@pytest.mark.parametrize(
    "block",
    [
        "```python\nassert False\n```",
        "```python\n>>> 1 + 1\n3\n```",
        "```json\n{1: 2}\n```",
        "```yaml\n- run: rm -r docs\n```",
        "```console\n$ posenc-native no-such-command\n```",
        "```console\n$ rm -r docs\n```",
        "```console\n$ posenc-native compare llama-3 llama-3.1\nno difference\n```",
    ],
    ids=["python", "doctest", "json", "yaml", "command", "program", "output"],
)
def test_a_block_that_fails_is_found(block: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(block + "\n", encoding="utf-8")
    (example,) = parse(page)
    with pytest.raises((AssertionError, ValueError)):
        example.evaluate()
