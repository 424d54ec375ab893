"""The list of the code of others that is compiled in: what it names, and that it is one."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sbom  # scripts/sbom.py
from places import ROOT

from posenc_native.engines import backend

NOTICE = (ROOT / "NOTICE").read_text(encoding="utf-8")
RUNTIME, COMPILER = "GCC runtime libraries", "12.2.0"
HEADERS = {  # of each option: a file, and the numbers of the version that it says
    "highway": ("hwy/base.h", {"HWY_MAJOR": 1, "HWY_MINOR": 2, "HWY_PATCH": 0}),
    "pybind11": (
        "pybind11/detail/common.h",
        {f"PYBIND11_VERSION_{part}": n for part, n in (("MAJOR", 3), ("MINOR", 1), ("MICRO", 4))},
    ),
    "torch": (
        "torch/headeronly/version.h",
        {f"TORCH_VERSION_{part}": n for part, n in (("MAJOR", 2), ("MINOR", 10), ("PATCH", 1))},
    ),
    "cuda": ("cuda_runtime_api.h", {"CUDART_VERSION": 12090}),
}


@pytest.fixture
def headers(tmp_path: Path) -> dict[str, Path]:
    """Directories of headers that say their versions, by the names of options."""
    for option, (name, numbers) in HEADERS.items():
        path = tmp_path / option / name
        path.parent.mkdir(parents=True)
        path.write_text("".join(f"#define {key}  {n}\n" for key, n in numbers.items()))
    return {option: tmp_path / option for option in HEADERS}


def written(output: Path, **options: object) -> dict:
    typed = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, ROOT / "scripts" / "sbom.py", output, "--version", "0.1.0"]
    settings = ["--runtime", "libstdc++", "--compiler", COMPILER]
    done = subprocess.run(
        [*command, *settings, *typed], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(output.read_text(encoding="utf-8"))


def parts(found: dict) -> dict[tuple[str, str], list[str]]:
    return {
        (each["name"], each["version"]): [
            entry["value"] for entry in each["properties"] if entry["name"] == sbom.LIBRARY
        ]
        for each in found["components"]
    }


def check_form(found: dict) -> None:
    """Of CycloneDX 1.6, as its schema has it where that is installed."""
    assert (found["bomFormat"], found["specVersion"], found["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(
        r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", found["serialNumber"]
    )
    references = [each["bom-ref"] for each in found["components"]]
    assert len(set(references)) == len(references)
    [dependencies] = found["dependencies"]
    assert dependencies["ref"] == found["metadata"]["component"]["bom-ref"]
    assert dependencies["dependsOn"] == references
    for each in found["components"]:
        assert each["type"] == "library"
        assert re.fullmatch(r"pkg:[a-z]+/[\w./-]+@[\d.]+", each["purl"])


def test_names_and_licences_are_those_of_the_notice():
    headings = re.findall(r"^(\S.*?) \((https://[^)]+)\)", NOTICE, re.M)
    assert dict(headings) == {name: part.url for name, part in sbom.PARTS.items()}
    sections = re.split(r"^(?=\S.*? \(https://)", NOTICE, flags=re.M)[1:]
    said = {
        "Apache-2.0": "Apache License 2.0, the text of which is in LICENSE",
        "BSD-3-Clause": "Redistributions in binary form must reproduce the above copyright",
        sbom.CUDA_LICENCE: "CUDA Toolkit End User License Agreement,\n    https://docs.nvidia.com",
        "GPL-3.0-or-later WITH GCC-exception-3.1": "GNU General Public License, version 3 or later",
        "Apache-2.0 WITH LLVM-exception": "Apache License 2.0 with LLVM Exceptions",
    }
    for section in sections:
        part = sbom.PARTS[section.partition(" (https")[0]]
        of_part = part.license.get("expression") or next(iter(part.license["license"].values()))
        assert said[of_part] in section
    assert (ROOT / "LICENSES" / "Apache-2.0.txt").exists()


def test_what_is_compiled_into_which_library(headers, tmp_path):
    everything = written(tmp_path / "all.json", **headers)
    check_form(everything)
    assert parts(everything) == {
        ("Highway", "1.2.0"): ["_core", "_torch_ops"],
        ("pybind11", "3.1.4"): ["_core"],
        ("PyTorch", "2.10.1"): ["_torch_ops"],
        ("CUDA Runtime", "12.9"): ["_torch_ops"],
        (RUNTIME, COMPILER): ["_core", "_torch_ops"],
    }
    assert everything == written(tmp_path / "again.json", **headers)
    without = {name: headers[name] for name in ("highway", "pybind11")}
    module = written(tmp_path / "module.json", **without)
    check_form(module)
    assert set(parts(module)) == {("Highway", "1.2.0"), ("pybind11", "3.1.4"), (RUNTIME, COMPILER)}
    assert module["serialNumber"] != everything["serialNumber"]


def test_a_ready_library_says_itself_what_is_in_it(headers, tmp_path):
    """It was built elsewhere, perhaps with other versions: release_libraries.sh, wheels.sh."""
    ready = tmp_path / "_torch_ops.cdx.json"
    written(ready, **headers)
    base = headers["highway"] / "hwy" / "base.h"
    base.write_text(base.read_text().replace("2", "3"))
    without = {name: headers[name] for name in ("highway", "pybind11")}
    found = written(tmp_path / "wheel.json", operators=ready, **without)
    check_form(found)
    assert parts(found) == {
        ("Highway", "1.3.0"): ["_core"],
        ("Highway", "1.2.0"): ["_torch_ops"],
        ("pybind11", "3.1.4"): ["_core"],
        ("PyTorch", "2.10.1"): ["_torch_ops"],
        ("CUDA Runtime", "12.9"): ["_torch_ops"],
        (RUNTIME, COMPILER): ["_core", "_torch_ops"],
    }


def test_headers_without_a_version_are_an_error(headers, tmp_path):
    (headers["highway"] / "hwy" / "base.h").write_text("", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"none of hwy/base.h, hwy/highway.h says its version"):
        written(tmp_path / "none.json", **headers)


def test_versions_are_those_of_the_headers_here():
    pybind11 = pytest.importorskip("pybind11", reason="needs pybind11")
    include = Path(pybind11.get_include())
    assert sbom.pybind11_version(include) == ".".join(pybind11.__version__.split(".")[:3])
    found = importlib.util.find_spec("torch")
    if found is not None and found.submodule_search_locations:
        include = Path(found.submodule_search_locations[0]) / "include"
        version = re.match(r"\d+\.\d+\.\d+", importlib.metadata.version("torch"))[0]
        assert sbom.torch_version(include) == version


@pytest.mark.skipif(
    not Path("/usr/include/hwy/highway.h").exists() or shutil.which("c++") is None,
    reason="needs a compiler and Highway's headers of the system (libhwy-dev)",
)
def test_the_version_of_highway_is_what_the_compiler_sees():
    code = "#include <hwy/highway.h>\nversion HWY_MAJOR HWY_MINOR HWY_PATCH\n"
    command = ["c++", "-std=c++17", "-E", "-P", "-x", "c++", "-"]
    seen = subprocess.run(command, input=code, capture_output=True, text=True, check=True).stdout
    numbers = re.search(r"^version (\d+) (\d+) (\d+)$", seen, re.M).groups()
    assert sbom.highway_version(Path("/usr/include")) == ".".join(numbers)


def test_the_form_is_that_of_the_schema(headers, tmp_path):
    pytest.importorskip("jsonschema", reason="needs jsonschema")
    validation = pytest.importorskip(
        "cyclonedx.validation.json", reason="needs cyclonedx-python-lib"
    )
    schema = pytest.importorskip("cyclonedx.schema", reason="needs cyclonedx-python-lib")
    validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_6)
    good = written(tmp_path / "all.json", **headers)
    assert validator.validate_str(json.dumps(good)) is None
    assert validator.validate_str(json.dumps({**good, "components": [{"name": "x"}]})) is not None


def test_what_is_installed_has_its_list():
    files = importlib.metadata.files("posenc-native") or []
    lists = [file for file in files if file.parent.name == "sboms"]
    ours = [file for file in lists if file.name == "posenc_native.cdx.json"]
    if not ours:
        pytest.skip("built by CMake alone: the list is a part of wheels and of editable installs")
    found = json.loads(ours[0].read_text(encoding="utf-8"))
    check_form(found)
    assert found["metadata"]["component"]["version"] == importlib.metadata.version("posenc-native")
    libraries = {library for names in parts(found).values() for library in names}
    built = {"_core"} | ({"_torch_ops"} if backend.torch_library() is not None else set())
    assert libraries == built
    names = {name for name, _ in parts(found)}
    assert {"Highway", "pybind11"} < names <= set(sbom.PARTS)
    assert ("PyTorch" in names) == ("_torch_ops" in built)
