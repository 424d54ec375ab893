"""What the compiled libraries need from the system and export to it, and what of it is wrong.

    python scripts/libraries.py build/.../_torch_ops.so WHEEL...    says it; fails if not

The tests ask the same of the libraries that are installed (tests/packaging/test_libraries.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import re
import sys
import zipfile
from pathlib import Path, PurePath

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

# All that the libraries may need at run time. CUDA's are found when a tensor is there, Highway is
# headers, and a library that only one machine has makes a wheel for that machine.
SYSTEM = re.compile(r"lib(c|m|stdc\+\+|gcc_s|pthread|dl|rt)\.so\.\d+|ld-linux-[\w-]+\.so\.\d+")
TORCH = "libtorch_cpu.so"
# The oldest torch whose stable ABI we use; TORCH_TARGET_VERSION in cmake/.
MINIMUM_TORCH = "2.10.0"


@dataclasses.dataclass(frozen=True)
class Library:
    """What an ELF file says about itself.

    The names of the libraries that it needs, where it looks for them, the symbols that it exports
    and those that it needs from others.
    """

    name: str
    needed: tuple[str, ...]
    search_paths: tuple[str, ...]
    exported: frozenset[str]
    imported: frozenset[str]


def read(name: str, content: bytes) -> Library:
    """Read a shared library."""
    elf = ELFFile(io.BytesIO(content))
    needed, search_paths = [], []
    exported, imported = set(), set()
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                if tag.entry.d_tag == "DT_NEEDED":
                    needed.append(tag.needed)
                elif tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                    search_paths.append(getattr(tag, tag.entry.d_tag[3:].lower()))
        elif isinstance(section, SymbolTableSection) and section.name == ".dynsym":
            for symbol in section.iter_symbols():
                if not symbol.name or symbol["st_info"]["bind"] == "STB_LOCAL":
                    continue
                is_defined = symbol["st_shndx"] != "SHN_UNDEF"
                (exported if is_defined else imported).add(symbol.name)
    return Library(
        name, tuple(needed), tuple(search_paths), frozenset(exported), frozenset(imported)
    )


def is_torch_library(name: str) -> bool:
    """Whether this is the operators' library, and not the module for one Python."""
    return PurePath(name).name == "_torch_ops.so"


def faults(library: Library) -> list[str]:
    """Every way in which a library is not as it should be, in words."""
    of_torch = is_torch_library(library.name)
    known = {TORCH} if of_torch else set()
    found = [
        f"needs {each}"
        for each in library.needed
        if each not in known and not SYSTEM.fullmatch(each)
    ]
    if of_torch and TORCH not in library.needed:
        found.append(f"does not need {TORCH}")
    wanted = frozenset() if of_torch else frozenset({"PyInit__core"})
    if library.exported != wanted:
        found.append(f"exports {sorted(library.exported)}, expected {sorted(wanted)}")
    python = sorted(each for each in library.imported if re.match(r"_?Py[A-Z_]", each))
    if of_torch and python:
        found.append(f"is for one Python: {python}")
    found += [f"looks for libraries in {each}" for each in library.search_paths]
    return found


def torch_faults(path: str) -> list[str]:
    """Every way in which the operators leave torch's stable ABI; asks torch-abi-audit."""
    from torch_abi_audit import inspect_extension

    verdict = inspect_extension(Path(path)).torch
    found = []
    if not verdict.stable:
        found.append(f"is not of the stable ABI: {verdict.unstable_symbols}")
    if verdict.min_torch_version != MINIMUM_TORCH:
        found.append(f"needs torch {verdict.min_torch_version}, expected {MINIMUM_TORCH}")
    return found


def main(operators: str, *wheels: str) -> int:
    """Report on wheels and on the library of operators that each of them should hold."""
    content = Path(operators).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    print(f"{operators}: sha256 {digest}")
    wrong = faults(read(operators, content)) + torch_faults(operators)
    for wheel in wheels:
        print(f"{Path(wheel).name}: {Path(wheel).stat().st_size} bytes")
        with zipfile.ZipFile(wheel) as archive:
            names = sorted(name for name in archive.namelist() if ".so" in PurePath(name).suffixes)
            contents = [archive.read(name) for name in names]
        for name, content in zip(names, contents, strict=True):
            library = read(name, content)
            print(f"  {name}: {len(content)} bytes")
            print(f"    needs    {' '.join(library.needed)}")
            print(f"    exports  {' '.join(library.exported) or 'nothing'}")
            wrong += [f"{wheel}: {name}: {fault}" for fault in faults(library)]
            if is_torch_library(name):
                same = hashlib.sha256(content).hexdigest()
                print(f"    sha256   {same}")
                if same != digest:
                    wrong.append(f"{wheel}: {name} is not {operators}")
        if len(names) != 2 or not any(map(is_torch_library, names)):
            wrong.append(f"{wheel}: expected _core and _torch_ops.so, found {names}")
    print("\n".join(f"WRONG: {each}" for each in wrong) or "All as it should be.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
