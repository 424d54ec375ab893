"""Write which code of others the libraries have in them: CycloneDX, for the wheel (PEP 770).

    python scripts/sbom.py OUTPUT --version 0.1.0 --highway DIRECTORY --pybind11 DIRECTORY ...

cmake/Sbom.cmake runs it with the directories of the headers that the build uses; versions are what
these headers say. NOTICE has the licenses of all that can be named here.
"""

from __future__ import annotations

import argparse
import json
import re
import uuid
from pathlib import Path
from typing import Any, NamedTuple


class Part(NamedTuple):
    """Code of somebody else: under which license, and where it comes from."""

    license: dict[str, Any]
    url: str
    purl: str


def _spdx(expression: str) -> dict[str, Any]:
    """A license, or a license and its exception, by the names of https://spdx.org/licenses."""
    if " " in expression:
        return {"expression": expression}
    return {"license": {"id": expression}}


CUDA_LICENCE = "CUDA Toolkit End User License Agreement"
PARTS = {
    "Highway": Part(
        _spdx("Apache-2.0"), "https://github.com/google/highway", "pkg:github/google/highway"
    ),
    "pybind11": Part(
        _spdx("BSD-3-Clause"), "https://github.com/pybind/pybind11", "pkg:github/pybind/pybind11"
    ),
    "PyTorch": Part(
        _spdx("BSD-3-Clause"), "https://github.com/pytorch/pytorch", "pkg:github/pytorch/pytorch"
    ),
    "CUDA Runtime": Part(
        {"license": {"name": CUDA_LICENCE, "url": "https://docs.nvidia.com/cuda/eula/"}},
        "https://developer.nvidia.com/cuda-toolkit",
        "pkg:generic/cuda-runtime",
    ),
    "GCC runtime libraries": Part(
        _spdx("GPL-3.0-or-later WITH GCC-exception-3.1"),
        "https://gcc.gnu.org",
        "pkg:generic/gcc",
    ),
    "libc++": Part(
        _spdx("Apache-2.0 WITH LLVM-exception"),
        "https://libcxx.llvm.org",
        "pkg:generic/libcxx",
    ),
}
RUNTIMES = {"libstdc++": "GCC runtime libraries", "libc++": "libc++"}
LIBRARY = "posenc_native:library"  # a property: into which of ours it is compiled


def version_in(directory: Path, files: tuple[str, ...], names: tuple[str, ...]) -> str:
    """The version that numbers in one of these headers make."""
    for name in files:
        path = directory / name
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        found = [re.search(rf"^# *define {each} +(\d+)", text, re.M) for each in names]
        numbers = [each[1] for each in found if each is not None]
        if len(numbers) == len(names):
            return ".".join(numbers)
    raise SystemExit(f"sbom: {directory}: none of {', '.join(files)} says its version")


def highway_version(directory: Path) -> str:
    """Highway's; the header that has it moved in 1.1."""
    names = ("HWY_MAJOR", "HWY_MINOR", "HWY_PATCH")
    return version_in(directory, ("hwy/base.h", "hwy/highway.h"), names)


def pybind11_version(directory: Path) -> str:
    """The version of pybind11's headers."""
    names = tuple(f"PYBIND11_VERSION_{each}" for each in ("MAJOR", "MINOR", "MICRO"))
    return version_in(directory, ("pybind11/detail/common.h",), names)


def torch_version(directory: Path) -> str:
    """The version of torch's headers."""
    names = tuple(f"TORCH_VERSION_{each}" for each in ("MAJOR", "MINOR", "PATCH"))
    files = ("torch/headeronly/version.h", "torch/csrc/api/include/torch/version.h")
    return version_in(directory, files, names)


def cuda_version(directory: Path) -> str:
    """The version of the CUDA runtime, which one number has: 12090 is 12.9."""
    number = int(version_in(directory, ("cuda_runtime_api.h",), ("CUDART_VERSION",)))
    return f"{number // 1000}.{number % 1000 // 10}"


def component(name: str, version: str, libraries: list[str]) -> dict[str, Any]:
    """An entry of the list."""
    part = PARTS[name]
    purl = f"{part.purl}@{version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "licenses": [part.license],
        "purl": purl,
        "externalReferences": [{"type": "website", "url": part.url}],
        "properties": [{"name": LIBRARY, "value": each} for each in libraries],
    }


def document(version: str, parts: dict[tuple[str, str], list[str]]) -> dict[str, Any]:
    """The whole file: the same for the same parts, with no time and no chance in it."""
    components = [component(*part, sorted(parts[part])) for part in sorted(parts)]
    own = f"pkg:pypi/posenc-native@{version}"
    content = json.dumps([own, components])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": "posenc-native",
                "version": version,
                "licenses": [_spdx("Apache-2.0")],
                "purl": own,
            }
        },
        "components": components,
        "dependencies": [{"ref": own, "dependsOn": [each["bom-ref"] for each in components]}],
    }


def parts_of(options: argparse.Namespace) -> dict[tuple[str, str], list[str]]:
    """What is compiled into which library: names and versions."""
    highway = ("Highway", highway_version(options.highway))
    runtime = (RUNTIMES[options.runtime], options.compiler)
    module = [highway, runtime, ("pybind11", pybind11_version(options.pybind11))]
    found = {part: ["_core"] for part in module}
    operators: list[tuple[str, str]] = []
    if options.torch:
        operators = [highway, runtime, ("PyTorch", torch_version(options.torch))]
        if options.cuda:
            operators.append(("CUDA Runtime", cuda_version(options.cuda)))
    elif options.operators:  # built before, elsewhere
        ready = json.loads(options.operators.read_text(encoding="utf-8"))
        operators = [
            (each["name"], each["version"])
            for each in ready["components"]
            if {"name": LIBRARY, "value": "_torch_ops"} in each["properties"]
        ]
        if not operators:
            raise SystemExit(f"sbom: {options.operators}: has nothing of _torch_ops")
    for part in operators:
        found.setdefault(part, []).append("_torch_ops")
    return found


def main() -> None:
    """Read the options, write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--version", required=True, help="of posenc_native")
    parser.add_argument("--highway", type=Path, required=True, help="directory of its headers")
    parser.add_argument("--pybind11", type=Path, required=True, help="directory of its headers")
    parser.add_argument("--runtime", choices=RUNTIMES, required=True, help="of C++")
    parser.add_argument("--compiler", required=True, help="version of the compiler of the runtime")
    parser.add_argument("--torch", type=Path, help="directory of its headers, if it is built for")
    parser.add_argument("--cuda", type=Path, help="directory of its headers, if kernels are built")
    parser.add_argument("--operators", type=Path, help="this file of the build of a ready library")
    options = parser.parse_args()
    text = json.dumps(document(options.version, parts_of(options)), indent=2)
    options.output.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
