"""compare: whether checkpoints rotate alike, and where they differ."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated

from posenc_native.checkpoints.explanations.compare import compare as comparison_of
from posenc_native.checkpoints.formats.reading import read
from posenc_native.cli.kinds import Ints, Kind
from posenc_native.cli.parser import CommandError, UsageError, without_function

from .explain import errors_as_json, report

Files = Annotated[str, Kind(metavar="FILE,FILE")]

_STATUS = {"alike": 0, "different": 1, "alike if permuted": 3, "unknown": 3}  # by the verdict


class UnreadableError(CommandError):
    """A source that cannot be read or compared."""

    status = 2


def compare(
    first: str,
    second: str,
    /,
    *others: str,
    at: Ints | None = None,
    permuted: bool = False,
    weights: Files | None = None,
    assume: bool = False,
    json: bool = False,
) -> int:
    """Say whether checkpoints rotate alike, and where they differ.

    Reads how each checkpoint encodes positions by rotation and compares the
    others with the first: pairing, base, scaling, rotated dims, attention factor,
    softmax correction, position axes, layers without rotary encoding. The first
    line is the verdict. If rotations differ, says how far apart cosines, sines
    and scores are, and from which position on bfloat16 shows the difference.

    Each checkpoint is a path, as `explain` takes it: a Hugging Face config.json or
    its folder, a GGUF or ONNX file, Meta's or Mistral's params.json, Megatron-LM's
    arguments or a NeMo or Megatron-Bridge YAML, settings of torchtitan,
    torchtune, TensorRT-LLM, vLLM or SGLang; or the name of a preset. Weights are
    read only with --weights.

    Converters to some formats, as llama.cpp's for Llama, change the pairing and
    permute the weights of queries and keys to match. If nothing else differs, the
    verdict is that only the expected permutation differs, with a status of its
    own, because the descriptions do not show whether the weights were permuted:
    say so with --permuted, or check them with --weights if they are in
    .safetensors files. Weights in a GGUF file cannot be checked.

    The rotation of an engine is known if it was run, or if the file's format
    specifies it. Where it is unknown, the verdict says so, unless --assume takes
    the description as right.

    Exit status: 0 they rotate alike, 1 they differ, 2 one cannot be read, 3 only
    the expected permutation differs, or what an engine does is unknown.

    Args:
        first: the checkpoint that the others are compared with
        second: compared with it
        others: more checkpoints to compare with the first
        at: positions at which to say how far apart they are (default: some, up to the longest
            sequence)
        permuted: the weights of queries and keys were permuted to match the pairing, as
            converters do; nothing checks it
        weights: a .safetensors file for each of them, separated by commas in the same order
            (empty for none); says which pairing the weights of queries and keys look like
        assume: take a description as right where nobody ran the engine with such a file
        json: print one JSON object, for programs; {"error": "..."} if one cannot be read

    Examples:
        $ path/to/model model.gguf --permuted
        $ llama-3.1 path/to/model --at 4096,131072
        $ path/to/model 'path/to/model+{"rope_theta": 1000000}'
        $ megatron:args.json path/to/model --json
    """
    sources = (first, second, *others)
    described = []
    with errors_as_json(json):
        for source in sources:
            with _reading(source):
                described.append(read(source, "compare"))
        files = None if weights is None else [file or None for file in weights.split(",")]
        if files is not None and len(files) != len(sources):
            expected = f"{len(sources)} files, one for each checkpoint (empty for none)"
            raise UsageError(f"--weights: expected {expected}, got {len(files)}")
        with _reading("--weights"):
            comparison = comparison_of(
                *described, at=at, permuted=permuted, weights=files, assume=assume
            )
    report(comparison, json)
    return _STATUS[comparison.verdict]


@contextlib.contextmanager
def _reading(source: str) -> Iterator[None]:
    """One line and status 2 for a source that cannot be read."""
    try:
        yield
    except OSError as error:
        file = error.filename or source
        raise UnreadableError(f"cannot read {file}: {error.strerror or error}") from error
    except (ValueError, TypeError, ImportError) as error:
        raise UnreadableError(f"{source}: {without_function(error)}") from None
