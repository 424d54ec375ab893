"""explain: describe how a model rotates, in words and as a picture."""

from __future__ import annotations

import contextlib
import json as json_text
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from posenc_native.checkpoints.explanations.comparison import Comparison
from posenc_native.checkpoints.explanations.explain import explain as explanation_of
from posenc_native.checkpoints.explanations.explanation import Explanation
from posenc_native.checkpoints.formats.writing import WRITERS, write
from posenc_native.cli.encodings import reading_config
from posenc_native.cli.kinds import Kind, output
from posenc_native.cli.parser import CommandError, UsageError
from posenc_native.cli.plot import FORMATS, show
from posenc_native.cli.terminal import printable, show_text
from posenc_native.core.calls.errors import names_like
from posenc_native.encodings.rotary.rotary import Rotary
from posenc_native.plot import frequencies

Form = Annotated[str, Kind(choices=tuple(WRITERS))]
Picture = Annotated[Path, replace(output(*FORMATS), short=None, text="")]

_WIDEST = 92  # characters in a line; longer ones are hard to read


def explain(
    path: str | None = None,
    /,
    preset: str | None = None,
    json: bool = False,
    as_: Form | None = None,
    permuted: bool = False,
    plot: Picture | None = None,
) -> int:
    """Say in plain words how a model rotates, from its files or its name.

    Says how a model encodes positions by rotation, layer by layer, and where
    engines are known to disagree about it. Reads a Hugging Face config.json or its
    folder, GGUF and ONNX files, Meta's and Mistral's params.json, Megatron-LM's
    arguments and YAML of NeMo and Megatron-Bridge, settings of torchtitan,
    torchtune, TensorRT-LLM, vLLM and SGLang, and configurations of MLX. Nothing
    is downloaded, no weights are read, and neither torch nor transformers is
    needed. GGUF, YAML and --plot need one package each; an error names it.

    Args:
        path: a file, its folder, or a preset like llama-3.1; megatron:PATH names its format,
            PATH+{...} adds overrides, as vLLM's --hf-overrides does
        preset: the name of a published model instead of a path (`posenc-native table rotary
            --list-presets` prints them)
        json: print one JSON object, for programs; {"error": "..."} if it cannot be read
        as_: print the equivalent entries for another engine; what they cannot express is printed
            on stderr, and the exit status is then 1
        permuted: with --as: the weights of queries and keys are permuted to the other engine's
            pairing, as converters do; the pairing is then not missing (see compare --permuted)
        plot: also draw what the scaling does to each frequency: .png, .svg, .pdf; an existing file
            is replaced

    Examples:
        $ path/to/model/config.json
        $ model.gguf --json
        $ path/to/model --as gguf --permuted
        $ --preset llama-3.1
        $ path/to/model --plot frequencies.png
    """
    if (path is None) == (preset is None):
        got = "neither" if path is None else "both"
        raise UsageError(f"expected a path or --preset, got {got}")
    if permuted and as_ is None:
        raise UsageError("--permuted: requires --as")
    source = preset if path is None else path
    with errors_as_json(json):
        if preset is not None and preset not in Rotary.presets():
            like = names_like(preset, Rotary.presets(), cutoff=0.4)
            expected = f"a preset like {', '.join(like)}" if like else "a preset"
            raise UsageError(f"--preset: expected {expected}, got {preset!r}")
        with reading_config(Path(source or "")):
            explanation = explanation_of(source)
    if as_ is not None:
        return _in_words_of(explanation, as_, permuted)
    report(explanation, json)
    if json or plot is None:
        return 0
    # Layers that rotate alike share one picture, even if they differ otherwise.
    rotating: dict[Rotary, list[str]] = {}
    for group in explanation.layers:
        if group.rotary is not None:
            rotating.setdefault(group.rotary, []).append(group.layer_type or "")
    if not rotating:
        raise CommandError(f"{path}: no layer rotates, so there is nothing to draw")
    show(partial(_draw_frequencies_by_layer, rotating), plot)
    return 0


@contextlib.contextmanager
def errors_as_json(asked: bool) -> Iterator[None]:
    """If a program asked for JSON, print the error as an object too; it still ends the command."""
    try:
        yield
    except CommandError as error:
        if asked:
            print(json_text.dumps({"error": str(error)}))
        raise


def report(result: Explanation | Comparison, json: bool) -> None:
    """Print the result: as JSON, or as text that fits a terminal."""
    if json:
        print(json_text.dumps(result.to_dict(), indent=2))
        return
    wide = min(_WIDEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None
    show_text(printable(str(result) if wide is None else result.text(wide)))


def _in_words_of(explanation: Explanation, form: str, permuted: bool) -> int:
    """Print the equivalent entries, and on stderr what they cannot express."""
    assert explanation.description is not None  # it was read from a file or a preset
    written = write(explanation.description, form, permuted)
    print(json_text.dumps(written.entries, indent=2))
    for lost in written.lost:
        print(printable(f"not expressed: {lost}"), file=sys.stderr)
    return 1 if written.lost else 0


def _draw_frequencies_by_layer(rotating: Mapping[Rotary, list[str]]) -> Any:
    from matplotlib import pyplot

    count = len(rotating)
    _, axes = pyplot.subplots(
        count, figsize=(8.0, 4.4 * count), layout="constrained", squeeze=False
    )
    for (rotary, layers), ax in zip(rotating.items(), axes.flat, strict=True):
        # Given frequencies have no base to scale from.
        frequencies(rotary, rotary if "inv_freq" in rotary._given else None, ax=ax)
        if count > 1:
            title = f"{' and '.join(layers)}: {ax.get_title(loc='left')}"
            ax.set_title(title, loc="left", fontsize="medium")
    return axes
