"""Build everything that a release publishes, try it where nothing can compile, and report it.

    make release                    ARGS='--pythons 3.11 3.12', --try-only, --torch 2.10.0 2.13.0

Builds dist/*.tar.gz, dist/*.whl (with CUDA kernels) and dist/cpu/*.whl (without); then, for every
Python, installs the wheel into fresh environments that have no compiler on their PATH, with the
oldest and the newest NumPy, without torch and with it, and runs README's examples there. Writes
dist/REPORT.md and, from CHANGELOG.md, dist/NOTES.md.
"""

from __future__ import annotations

import argparse
import email
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
CPU = DIST / "cpu"
# Bytes that a wheel may have. Three fifths are CUDA kernels for four kinds of GPU: one that grows
# by a third has a new architecture or a mistake.
LARGEST = {DIST: 17_500_000, CPU: 6_500_000}
OLDEST_NUMPY = {"3.10": "1.26.4", "3.11": "1.26.4", "3.12": "1.26.4", "3.13": "2.1.3"}
OWN = "{}.{}".format(*sys.version_info)  # this Python, for which torch is at hand
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "nvcc", "cmake", "ninja", "make")


class Failed(SystemExit):
    """A release that must not go out, and why."""

    def __init__(self, why: str) -> None:
        super().__init__(f"release: {why}")


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def run(command: Sequence[object], **environment: str) -> None:
    """A step of the build; its output is the reader's."""
    done = subprocess.run(
        [str(word) for word in command], cwd=ROOT, env=os.environ | environment, check=False
    )
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))}: exit status {done.returncode}")


# --- building


def build(pythons: Sequence[str]) -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    say("Building the source distribution")
    run([sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", DIST])
    # The kernels of the CPU are the same objects in both: the second build compiles operators only.
    for folder, cuda in ((CPU, "OFF"), (DIST, "ON")):
        say(f"Building wheels {'with' if cuda == 'ON' else 'without'} CUDA kernels")
        chosen = {"PYTHONS": " ".join(pythons)} if pythons else {}
        run(["scripts/wheels.sh"], WHEEL_TESTS="none", POSENC_CUDA=cuda, DIST=str(folder), **chosen)


# --- inspecting


def version() -> str:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^version = "(.+)"$', text, re.MULTILINE)
    assert found
    return found[1]


def notes(changelog: str, of: str) -> str:
    """The part of the changelog about this version, or about what is not released yet."""
    for name in (of, "Unreleased"):
        found = re.search(
            rf"^## \[{re.escape(name)}\][^\n]*\n(.*?)(?=^## \[|\Z)", changelog, re.M | re.S
        )
        if found and found[1].strip():
            return f"# posenc_native {of}\n\n{found[1].strip()}\n"
    raise Failed(f"CHANGELOG.md has no entry for {of}")


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_string(archive.read(name).decode())


def faults(wheel: Path) -> list[str]:
    """Every way in which a wheel is not fit to be published, in words."""
    found = []
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        libraries = [name for name in names if ".so" in Path(name).suffixes]
        boms = [name for name in names if name.endswith("/sboms/posenc_native.cdx.json")]
        parts = [json.loads(archive.read(name)) for name in boms]
    metadata = metadata_of(wheel)
    if metadata["Version"] != version():
        found.append(f"is of version {metadata['Version']}, expected {version()}")
    if metadata["License-Expression"] != "Apache-2.0":
        found.append(f"License-Expression: {metadata['License-Expression']}")
    found += [
        f"has no {name}"
        for name in ("LICENSE", "NOTICE")
        if not any(each.endswith(f".dist-info/licenses/{name}") for each in names)
    ]
    requires = [each for each in metadata.get_all("Requires-Dist") or () if "extra" not in each]
    found += [f"requires {each}" for each in requires if not each.startswith("numpy")]
    if metadata["Description-Content-Type"] != "text/markdown":
        found.append("its long description is not Markdown")
    if len(parts) != 1:
        found.append(f"has {len(parts)} bills of materials, expected one")
    else:
        named = {part["name"] for part in parts[0]["components"]}
        cuda = wheel.parent == DIST
        if ("CUDA Runtime" in named) != cuda:
            found.append(f"its bill of materials names {sorted(named)}")
    if len(libraries) != 2:
        found.append(f"has the libraries {libraries}")
    if wheel.stat().st_size > LARGEST[wheel.parent]:
        found.append(f"has {wheel.stat().st_size} bytes, more than {LARGEST[wheel.parent]}")
    return found


def inspect(files: Sequence[Path]) -> None:
    say("Checking metadata, long description, licenses, bill of materials, size")
    run([sys.executable, "-m", "twine", "check", "--strict", *files])
    wrong = [
        f"{file.relative_to(ROOT)} {fault}"
        for file in files
        if file.suffix == ".whl"
        for fault in faults(file)
    ]
    if wrong:
        raise Failed("\n  ".join(["", *wrong]))


# --- trying


@dataclass(frozen=True)
class Environment:
    """What is installed beside the wheel. None: not installed."""

    python: str
    numpy: str | None
    torch: str | None

    def __str__(self) -> str:
        numpy = f"NumPy {self.numpy or 'newest'}"
        return (
            f"Python {self.python}, {numpy}, {f'torch {self.torch}' if self.torch else 'no torch'}"
        )


def readme_blocks() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


# Runs in the environment: README's blocks, those first whose packages are there; says how many.
TRY = """
import importlib.util, json, os, shutil, sys
found = [tool for tool in json.loads(sys.argv[2]) if shutil.which(tool)]
assert not found, f"compilers on PATH: {found}"
import posenc_native as pn
from posenc_native.engines import configuration
assert pn.__file__.startswith(sys.prefix), pn.__file__
config = configuration.configuration()
assert config["backend"] == "native", config
has = {name: importlib.util.find_spec(name) is not None for name in ("torch", "transformers")}
os.makedirs("path/to/model", exist_ok=True)
with open("path/to/model/config.json", "w") as file:
    json.dump({"model_type": "llama", "head_dim": 64, "rope_theta": 500000.0,
               "hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2,
               "intermediate_size": 64, "vocab_size": 16, "num_hidden_layers": 2}, file)
if has["torch"] and has["transformers"]:
    import transformers
    made = transformers.AutoConfig.from_pretrained("path/to/model")
    transformers.AutoModelForCausalLM.from_config(made).save_pretrained("path/to/model")
ran = 0
for block in json.loads(sys.argv[1]):
    needs = {"torch": "torch" in block or "nn as pnn" in block or "import hf" in block,
             "transformers": "transformers" in block}
    if all(has[name] or not needed for name, needed in needs.items()):
        exec(compile(block, "README.md", "exec"), {})
        ran += 1
print(f"{ran} examples of README; NumPy {config['numpy']}; "
      f"torch operators: {config['torch operators']}; CUDA kernels: {config['CUDA kernels']}")
"""


def try_in(environment: Environment, python: Path, wheel: Path, folder: Path) -> str:
    """Installs the wheel into a fresh environment and runs README's examples; what they printed."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    inside = folder / "bin" / "python"
    # Pins are those of the working copy, but for what is being varied.
    pins = [
        line
        for line in (ROOT / "requirements" / "constraints.txt").read_text().splitlines()
        if not re.match(r"(numpy|torch)\b(?!-)", line)
    ]
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(pins) + "\n")
    wanted = [str(wheel)]
    wanted += [f"numpy=={environment.numpy}"] if environment.numpy else ["numpy"]
    if environment.torch:
        wanted += [f"torch=={environment.torch}", "transformers"]
    # No PATH but this environment's own; nothing may be compiled while installing.
    variables = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_", "LANG"))}
    variables |= {"PATH": str(folder / "bin"), "HOME": str(folder), "PIP_ONLY_BINARY": ":all:"}
    _inside([inside, "-m", "pip", "install", "-q", "-c", constraints, *wanted], folder, variables)
    arguments = [json.dumps(readme_blocks()), json.dumps(COMPILERS)]
    said = _inside([inside, "-c", TRY, *arguments], folder, variables).strip().splitlines()[-1]
    posenc = folder / "bin" / "posenc-native"
    _inside([posenc, "compare", "llama-3", "llama-3"], folder, variables)
    return said


def _inside(command: Sequence[object], folder: Path, variables: Mapping[str, str]) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=dict(variables),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failed(f"{folder}: {str(command[1])[:60]}\n{done.stdout}{done.stderr}")
    return done.stdout


def environments(wheels: Mapping[str, Path], torches: Sequence[str]) -> Iterator[Environment]:
    for python in wheels:
        yield Environment(python, OLDEST_NUMPY.get(python), None)
        if python in OLDEST_NUMPY:
            yield Environment(python, None, None)
        # Of another Python torch may be a CUDA build of gigabytes.
        if python == OWN:
            yield from (Environment(python, None, torch) for torch in torches)


def interpreter(python: str) -> Path:
    """Of this version: this one, or the one that scripts/wheels.sh built with."""
    if python == OWN:
        return Path(sys.executable)
    return ROOT / "build" / "wheels" / f"python{python}" / "bin" / "python"


def wheels_in(folder: Path) -> dict[str, Path]:
    """By version of Python."""
    found = {}
    for wheel in sorted(folder.glob("*.whl"), key=lambda path: path.name):
        tag = re.search(r"-cp3(\d+)-cp3\d+-", wheel.name)
        assert tag
        found[f"3.{tag[1]}"] = wheel
    return dict(sorted(found.items(), key=lambda item: int(item[0].split(".")[1])))


def try_everywhere(torches: Sequence[str]) -> list[str]:
    lines = []
    for folder in (DIST, CPU):
        wheels = wheels_in(folder)
        for environment in environments(wheels, torches):
            # Without CUDA kernels, what differs is the operators: once with torch is enough.
            if folder == CPU and not environment.torch:
                continue
            with tempfile.TemporaryDirectory(prefix="posenc-release-") as scratch:
                say(f"{wheels[environment.python].relative_to(DIST)}: {environment}")
                said = try_in(
                    environment,
                    interpreter(environment.python),
                    wheels[environment.python],
                    Path(scratch) / "environment",
                )
            lines.append(f"| {folder.name} | {environment} | {said} |")
            print(f"    {said}", flush=True)
    say("Building from the source distribution, for this processor, without torch")
    (sdist,) = DIST.glob("*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="posenc-release-") as scratch:
        run(
            [
                *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
                *("--no-build-isolation", "--wheel-dir", scratch, sdist),
            ],
            POSENC_TARGETS="native",
            POSENC_TORCH="OFF",
        )
        (wheel,) = Path(scratch).glob("*.whl")
        own = Environment(OWN, None, None)
        said = try_in(own, Path(sys.executable), wheel, Path(scratch) / "environment")
    lines.append(f"| built from {sdist.name} | {own} | {said} |")
    return lines


# --- report


def report(tried: Sequence[str]) -> str:
    with_cuda, without = wheels_in(DIST), wheels_in(CPU)
    sizes = [
        f"| {python} | {with_cuda[python].stat().st_size / 1e6:.1f} | "
        f"{without[python].stat().st_size / 1e6:.1f} |"
        for python in with_cuda
        if python in without
    ]
    (sdist,) = DIST.glob("*.tar.gz")
    return "\n".join(
        [
            f"# posenc_native {version()}: what was built and tried\n",
            f"{sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB\n",
            "| Python | wheel with CUDA kernels, MB | without, MB |",
            "|---|--:|--:|",
            *sizes,
            "\n| wheel | environment, with no compiler on PATH | result |",
            "|---|---|---|",
            *tried,
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pythons", nargs="*", default=[], help="default: those at hand")
    parser.add_argument("--torch", nargs="*", help="versions to try (default: the pinned one)")
    parser.add_argument("--try-only", action="store_true", help="take what lies in dist/")
    options = parser.parse_args(arguments)
    pinned = re.search(
        r"^torch==(\S+)", (ROOT / "requirements" / "constraints.txt").read_text(), re.MULTILINE
    )
    assert pinned
    changes = notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version())
    if not options.try_only:
        build(options.pythons)
    inspect(sorted([*DIST.glob("*.tar.gz"), *DIST.glob("*.whl"), *CPU.glob("*.whl")]))
    tried = try_everywhere([pinned[1]] if options.torch is None else options.torch)
    (DIST / "NOTES.md").write_text(changes, encoding="utf-8")
    (DIST / "REPORT.md").write_text(report(tried), encoding="utf-8")
    say(f"In {DIST}: fit to be published. REPORT.md:")
    print((DIST / "REPORT.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
