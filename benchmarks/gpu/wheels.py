"""Wheels without pip: whether this Python can take one, and unpacking."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import sysconfig
import zipfile
from pathlib import Path, PurePosixPath

# Names for old versions of glibc.
_ALIASES = {"manylinux1": "manylinux_2_5", "manylinux2010": "manylinux_2_12",
            "manylinux2014": "manylinux_2_17"}  # fmt: skip


def misfit(wheel: Path) -> str:
    """Why this Python cannot take the wheel, by its name; "" if it can."""
    parts = wheel.name.removesuffix(".whl").split("-")
    if wheel.suffix != ".whl" or len(parts) not in (5, 6):
        return "its name is none of a wheel: NAME-VERSION-PYTHON-ABI-PLATFORM.whl"
    pythons, abis, platforms = (part.split(".") for part in parts[-3:])
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if not any(_takes(python, abi) for python in pythons for abi in abis):
        return f"it is for {parts[-3]}-{parts[-2]}, and this Python is {version}"
    if not any(map(_runs, platforms)):
        here = f"{sysconfig.get_platform()}, {' '.join(platform.libc_ver()) or 'no glibc'}"
        return f"it is for {parts[-1]}, and this machine is {here}"
    return ""


def _takes(python: str, abi: str) -> bool:
    major, minor = sys.version_info[:2]
    if abi == "abi3":
        match = re.fullmatch(rf"cp{major}(\d+)", python)
        return match is not None and int(match[1]) <= minor
    threads = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return python in (f"py{major}", f"py{major}{minor}", f"cp{major}{minor}") and abi in (
        "none",
        f"cp{major}{minor}{threads}",
    )


def _runs(tag: str) -> bool:
    here = re.sub(r"[-.]", "_", sysconfig.get_platform())
    if tag in ("any", here):
        return True
    for alias, name in _ALIASES.items():
        tag = re.sub(rf"^{alias}_", f"{name}_", tag)
    match = re.fullmatch(r"manylinux_(\d+)_(\d+)_(\w+)", tag)
    library, _, glibc = platform.libc_ver()[0], "", platform.libc_ver()[1]
    return (
        match is not None
        and here == f"linux_{match[3]}"
        and library == "glibc"
        and (int(match[1]), int(match[2])) <= tuple(map(int, glibc.split(".")[:2]))
    )


def newest(folders: list[Path]) -> Path | None:
    """The wheel of this project that fits, of the first folder that has one; the newest there."""
    for folder in folders:
        fitting = [path for path in folder.glob("posenc_native-*.whl") if not misfit(path)]
        if fitting:
            return max(fitting, key=lambda path: path.stat().st_mtime)
    return None


def unpack(wheel: Path, site: Path) -> None:
    """What can be imported of a wheel into a folder: no scripts, no headers."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            path = PurePosixPath(entry.filename)
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"{wheel.name}: {entry.filename} leads out of the folder")
            if path.parts[0].endswith(".data"):
                if path.parts[1] not in ("purelib", "platlib"):
                    continue
                path = PurePosixPath(*path.parts[2:])
            if entry.is_dir():
                continue
            target = site / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(entry))


def _note(wheel: Path) -> Path:
    return wheel.with_name(f"{wheel.name}.json")


def describe(wheel: Path, sources: str, gpus: str, commit: str | None) -> None:
    """Write down beside a wheel of this project what it was made of, and for what."""
    text = json.dumps({"sources": sources, "gpus": gpus, "commit": commit}, indent=1) + "\n"
    temporary = wheel.with_name(f".{wheel.name}.json")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, _note(wheel))


def description(wheel: Path) -> dict[str, str | None]:
    """What a wheel was made of and for; empty where nobody wrote it down."""
    path = _note(wheel)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
