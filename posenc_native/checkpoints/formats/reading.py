"""Read a description from any source: files of all formats, mappings, objects.

    path ─► its file ─► GGUF, ONNX ──────────────────────────────► description
                    └─► JSON, YAML ─► mapping ─► its format ─► reader ─┘
    configuration object, namespace ──┘      preset, Rotary ───────────┘

A new format is a module with a `Format`, and a row in `FORMATS`.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posenc_native.core.calls import arguments
from posenc_native.encodings.rotary.rotary import Rotary
from posenc_native.models.files import read_configuration
from posenc_native.models.presets import rotary_presets

from .binary import gguf, onnx
from .description import Description
from .form import Format
from .known import from_preset, from_rotary
from .published import hugging_face, meta, mistral, mlx
from .serving import served, tensorrt_llm
from .serving.overrides import merged
from .training import megatron, torchtitan, torchtune
from .yaml_files import read_yaml

# In this order they are asked whether a mapping has their format; the last accepts all.
FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        gguf.FORMAT,
        onnx.FORMAT,
        served.VLLM,
        served.SGLANG,
        tensorrt_llm.FORMAT,
        torchtune.FORMAT,
        torchtitan.FORMAT,
        mistral.FORMAT,
        meta.FORMAT,
        megatron.FORMAT,
        mlx.FORMAT,
        hugging_face.FORMAT,
    )
}

# Files of a folder that describe the rotation of its model; the first that exists is read.
_FILES = ("config.json", "params.json", "run_config.yaml", "model_config.yaml", "model.yaml")


def read(source: Any, function: str) -> Description:
    """The description of a file, mapping, object or name.

    Args:
        source: the path of a file or of its folder; a mapping with the content of such a file; a
            configuration object of transformers; Megatron-LM's namespace of arguments; the name of
            a preset; a `Rotary`; a description. A text may begin with a format, ``megatron:path``,
            and end with overrides of a Hugging Face configuration, ``path+{"rope_theta": 5e5}``.
        function: the name that begins error messages.

    Raises:
        ValueError, TypeError: it does not describe a rotation, or has invalid values.
        OSError: a file that cannot be read.
        ImportError: a package that the format needs is not installed.
    """
    if isinstance(source, Description):
        return source
    if isinstance(source, Rotary):
        return from_rotary(source)
    if isinstance(source, (str, os.PathLike)):
        return _read_text(os.fspath(source), function)
    if isinstance(source, argparse.Namespace):
        source = vars(source)
    if isinstance(source, Mapping):
        return _read_mapping(source, _name_of(source), function)
    return hugging_face.read(source, type(source).__name__, function)


def _read_text(text: str, function: str) -> Description:
    path, overrides = served.split_overrides(text, function)
    name, colon, rest = path.partition(":")
    form = FORMATS.get(name) if colon and not os.path.exists(path) else None
    if form is not None:
        path = rest
    if form is None and path in rotary_presets() and not os.path.exists(path):
        description = from_preset(path)
    else:
        description = _read_path(_path(path, function), path, form, function, overrides)
        overrides = {}
    if overrides:
        got = f"the preset {path}"
        arguments.wrong_value(function, "overrides", "a configuration to apply them to", got)
    return dataclasses.replace(description, source=text)


def _read_path(
    path: Path,
    source: str,
    form: Format | None,
    function: str,
    overrides: Mapping[str, Any],
) -> Description:
    file = _file_in(path, form)
    if form is None:
        form = next((known for known in FORMATS.values() if known.is_file(file)), None)
    if form is not None and form.read_file is not None:
        if overrides:
            served.refuse_overrides(function, form.title)
        _refuse_endless(file, function)
        return form.read_file(file, source, function)
    if file.suffix in (".yaml", ".yml"):
        _refuse_endless(file, function)
        entries = read_yaml(file, function)
    else:
        entries = read_configuration(file, function)
    return _read_mapping(entries, source, function, form, overrides, file)


def _read_mapping(
    entries: Mapping[str, Any],
    source: str,
    function: str,
    form: Format | None = None,
    overrides: Mapping[str, Any] | None = None,
    file: Path | None = None,
) -> Description:
    form = form or next(known for known in FORMATS.values() if known.claims(entries))
    if overrides:
        if not form.takes_overrides:
            served.refuse_overrides(function, form.title)
        entries = merged(entries, overrides)
    if form.read_launch is not None:  # names another file, with overrides for it
        launch = form.read_launch(entries, function)
        inner, model = _read_model(launch, function, file)
        return dataclasses.replace(served.as_served(inner, launch, model), source=source)
    description = form.read(entries, source, function)
    if overrides:
        names = ", ".join(overrides)
        description = dataclasses.replace(
            description, format=f"{description.format} with overrides of {names}"
        )
    return description


def _read_model(
    launch: served.Launch, function: str, file: Path | None
) -> tuple[Description, Mapping[str, Any]]:
    """The model in a server's settings: a configuration, or a path from their folder or ours.

    Also returns the configuration before it is overridden.
    """
    entries, name = launch.model, ""
    if not isinstance(entries, Mapping):
        path, name = _path(entries, function), entries
        if file is not None and (file.parent / path).exists():
            path = file.parent / path
        path = _file_in(path, hugging_face.FORMAT)
        _refuse_endless(path, function)
        entries = read_configuration(path, function)
    overridden = launch.overridden(entries, function)
    name = name or _name_of(entries)
    return _read_mapping(overridden, name, function, hugging_face.FORMAT), entries


def _path(text: str, function: str) -> Path:
    """ValueError for a text that cannot be a path."""
    try:
        possible = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        arguments.wrong_value(function, "config", "a path", f"{text[:64]!r}, which cannot be one")
    return Path(text)


def _refuse_endless(file: Path, function: str) -> None:
    """ValueError for a pipe, which would block the process that opens it, or a device."""
    if file.exists() and not (file.is_file() or file.is_dir()):
        arguments.wrong_value(function, "config", "a file", "a pipe or a device")


def _file_in(path: Path, form: Format | None) -> Path:
    """The file of a folder that describes the rotation of its model; other paths unchanged."""
    if not path.is_dir():
        return path
    if form is not None and form.suffixes:
        wanted = [file for file in sorted(path.iterdir()) if file.suffix in form.suffixes]
        if len(wanted) == 1:
            return wanted[0]
    for name in _FILES:
        if (path / name).exists():
            # For config.json the folder is returned: its reader's errors name the folder.
            return path if name == "config.json" else path / name
    for suffix in (".gguf", ".onnx"):
        files = [file for file in sorted(path.iterdir()) if file.suffix == suffix]
        if len(files) == 1:
            return files[0]
    return path


def _name_of(entries: Mapping[str, Any]) -> str:
    names = (entries.get(key) for key in ("model_type", "architecture"))
    name = next((entry for entry in names if isinstance(entry, str) and entry), "")
    return name if name.isprintable() and 0 < len(name) < 64 else "a mapping"
