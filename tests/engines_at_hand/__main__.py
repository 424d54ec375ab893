"""Run an engine with its configurations, and renew the record of what it did.

    configurations/ENGINE.py ─► adapters/ENGINE.py, in its environment ─► records/ENGINE.json
                                                                      └─► what changed

An engine without requirements (adapters/ENGINE.txt) runs in this environment. The others have one
each, in .engines/, made on first use and again when their requirements change.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "shared")]

from records import ENGINES, Record, configurations_of, read_record, write_record  # noqa: E402

_ROOT = _HERE.parents[1]
# No GPU, no hub, and sets in error messages in one order.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0"}
_ENVIRONMENTS = Path(os.environ.get("POSENC_ENGINES", _ROOT / ".engines"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="make engines", description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=[*ENGINES, "all"], help="all: one after another")
    parser.add_argument("--only", default="", help="configurations whose name contains this")
    parser.add_argument("--check", action="store_true", help="do not renew the record")
    parser.add_argument(
        "--environment", action="store_true", help="only make its environment; say where"
    )
    arguments = parser.parse_args()
    if arguments.environment:
        print(_environment(arguments.engine))
        return 0
    engines = ENGINES if arguments.engine == "all" else [arguments.engine]
    changed = [
        engine for engine in engines if _renew(engine, arguments.only, check=arguments.check)
    ]
    return 1 if changed and arguments.check else 0


def _renew(engine: str, only: str, *, check: bool) -> bool:
    """Run the engine; whether anything it does has changed."""
    old = read_record(engine)
    everything = configurations_of(engine)
    configurations = {name: entry for name, entry in everything.items() if only in name}
    new = _run(engine, configurations)
    if only:
        new.answers = {**old.answers, **new.answers}
    changes = _changes(old, new)
    print(f"{new.package} {new.version}: {len(configurations)} configurations")
    if old.version not in ("", new.version):
        print(f"  the record was of {old.version}")
    for change in changes:
        print(f"  {change}")
    if not changes:
        print("  as in the record")
    if not check:
        write_record(engine, new)
    return bool(changes)


def _run(engine: str, configurations: dict[str, Any]) -> Record:
    python = _environment(engine)
    command = [str(python), "-P", str(_HERE / "adapters" / f"{engine}.py")]
    done = subprocess.run(
        command,
        input=json.dumps(configurations),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, **_ENVIRONMENT},
    )
    said = json.loads(done.stdout.splitlines()[-1])  # some print before
    answers = {
        name: {"configuration": configuration, **said["answers"][name]}
        for name, configuration in configurations.items()
    }
    return Record(said["package"], said["version"], answers)


def _environment(engine: str) -> Path:
    """The interpreter of the engine's environment."""
    wanted = _HERE / "adapters" / f"{engine}.txt"
    if not wanted.exists():
        return Path(sys.executable)
    alone = wanted.with_suffix(".no_deps.txt")
    requirements = wanted.read_text() + (alone.read_text() if alone.exists() else "")
    folder = _ENVIRONMENTS / engine
    stamp, python = folder / "requirements.txt", folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == requirements:
        return python
    named = re.match(r"# (python3\.\d+)\n", requirements)  # where this Python is too old
    interpreter = shutil.which(named[1]) if named else sys.executable
    if interpreter is None:
        sys.exit(f"{engine} needs {named and named[1]}, which is not on the path")
    subprocess.run([interpreter, "-m", "venv", "--clear", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-r", str(wanted)], check=True)
    if alone.exists():
        subprocess.run([*install, "--no-deps", "-r", str(alone)], check=True)
    stamp.write_text(requirements)
    return python


def _changes(old: Record, new: Record) -> list[str]:
    lines = []
    for name in [*new.answers, *(name for name in old.answers if name not in new.answers)]:
        before, after = (record.answers.get(name) for record in (old, new))
        if before == after:
            continue
        if before is None or after is None:
            lines.append(f"{name}: {'new' if before is None else 'gone'}")
        elif before["configuration"] != after["configuration"]:
            lines.append(f"{name}: another configuration")
        else:
            lines.append(f"{name}: {_said(before)} -> {_said(after)}")
    return lines


def _said(answer: dict[str, Any]) -> str:
    if "refused" in answer:
        return f"refused ({answer['refused']})"
    return "; ".join(
        f"layers {group['layers']} " + json.dumps(group["rotary"])[:200]
        for group in answer["layers"]
    )


if __name__ == "__main__":
    sys.exit(main())
