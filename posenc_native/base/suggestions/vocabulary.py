"""Words of other libraries and of users: the equivalents of keywords and names here.

A function that takes such words ends its arguments with ``**unknown: NoReturn`` and begins so:

    @takes_words
    def rotary_frequencies(rotary_dim: int, base: float = 10000.0, **unknown: NoReturn) -> ...:
        if unknown or rotary_dim is MISSING:
            unknown_keywords("rotary_frequencies", unknown, rotary_frequencies)

NoReturn lets type checkers refuse every such keyword. The decorator returns the same function, so a
call costs only an empty dict and a comparison. (Python counts the arguments before the body runs.
Without defaults for the required arguments, ``dim=64`` would raise "missing 1 required positional
argument".)

A method may use the decorator without ``**unknown``. Python's error for a missing argument names
the class that defines the method, which may be private; `check_given` names the class of the object
and says what to write.
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

from posenc_native.base.arguments import INTEGER_DTYPES, dtype_name, plain, wrong_type

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class _Missing:
    """The default of a required argument."""


# The class, not an instance: torch.compile compares symbolic lengths with no instance (torch 2.11).
MISSING: Any = _Missing
_OWNERS = ("self", "cls")  # the first arguments of methods, which callers do not write


def takes_words(function: AnyFunction) -> AnyFunction:
    """Let a function answer unknown keywords; see the docstring of this module.

    Sets attributes only. Required arguments get the default MISSING. The signature that help() and
    inspect show does not have it, nor ``**unknown``.
    """
    signature = inspect.signature(function)
    shown = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD or parameter.name != "unknown"
    ]
    positional = [
        parameter.default
        for parameter in shown
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.name not in _OWNERS
    ]
    itself: Any = function
    itself.__defaults__ = tuple(
        MISSING if default is inspect.Parameter.empty else default for default in positional
    )
    itself.__signature__ = signature.replace(parameters=shown)
    itself.__annotations__.pop("unknown", None)
    return function


def check_given(of: Callable[..., Any], *required: Any, owner: object = None, **hints: str) -> None:
    """TypeError for a call without a required argument.

    Args:
        of: the function or method that was called.
        required: the values of its required arguments, in order.
        owner: the object, or the class, whose method was called; the error names its class.
        hints: hints by the name of the missing argument, if they depend on the method; `_MISSED`
            has the other hints.
    """
    if not any(one is MISSING for one in required):
        return
    known = _names(of)
    absent = [name for name, one in zip(known, required, strict=False) if one is MISSING]
    said = [hints.get(name) or missing_hint(name, known) for name in absent]
    if absent == [known[len(required) - 1]]:
        said = [_left_out(dict(zip(known, required, strict=False))), *said]
    if len(absent) == len(required):
        said = []  # a call without arguments does not tell what was meant
    wrong_type(
        _function(of, owner),
        "arguments",
        ", ".join(known[: len(required)]),
        f"no {', '.join(absent)}",
        next(filter(None, said), ""),
    )


def _left_out(given: Mapping[str, Any]) -> str:
    """A hint for an argument whose place in a call by position has the next one's value."""
    axes = {name: len(getattr(value, "shape", ())) for name, value in given.items()}
    if {"k", "v"} <= {*given} and axes["v"] != axes["k"]:
        return "did you leave out v?"
    positions = given.get("positions")
    described = hasattr(type(positions), "__rotary__")
    cache = axes.get("positions", 0) > 2 and not _whole(positions)
    return "did you leave out positions?" if described or cache else ""


def _whole(array: Any) -> bool:
    """Whether an array or a tensor has an integer dtype, as positions with several axes have."""
    return dtype_name(getattr(array, "dtype", "")) in INTEGER_DTYPES


def check_words(of: Callable[..., Any], words: Mapping[str, object], owner: object = None) -> None:
    """TypeError for the unknown keywords of a method; owner as in `check_given`."""
    if words:
        unknown_keywords(_function(of, owner), words, of)


def _function(of: Callable[..., Any], owner: object) -> str:
    """The name of a function for errors; of a method, with the class of its object."""
    if owner is None:
        return of.__name__
    kind = owner if isinstance(owner, type) else type(owner)
    calls_it = of.__name__ in ("__call__", "forward")  # errors name the class alone
    return kind.__name__ if calls_it else f"{kind.__name__}.{of.__name__}"


def _names(of: Callable[..., Any]) -> list[str]:
    """The arguments of a function or a method."""
    return [name for name in inspect.signature(of).parameters if name not in _OWNERS]


def unknown_keywords(
    function: str, words: Mapping[str, object], of: Callable[..., Any]
) -> NoReturn:
    """Raise the TypeError for unknown keywords, or for too few arguments.

    Args:
        function: the name that the error shows.
        words: the unknown keywords, with their values.
        of: the function or class whose signature lists the known keywords.
    """
    parameters = inspect.signature(of).parameters
    known = _names(of)
    if not words:
        required = [name for name in known if parameters[name].default is inspect.Parameter.empty]
        wrong_type(function, "arguments", ", ".join(required), "fewer")
    hints = [keyword_hint(word, value, known) for word, value in words.items()]
    wrong_type(
        function,
        ", ".join(words),
        f"a keyword of {', '.join(known)}",
        ", ".join(f"{word}={_written(value)}" for word, value in words.items()),
        "; ".join(dict.fromkeys(filter(None, hints))),
    )


def keyword_hint(word: str, value: object, known: list[str]) -> str:
    """A hint for an unknown keyword of a function with these known ones; "" if there is none."""
    text: Any = _answer(KEYWORDS.get(word.lower(), ()), known)
    if isinstance(text, Mapping):
        text = text.get(value) if isinstance(value, bool) else " or ".join(text.values())
    if text is not None:
        return str(text).replace("{value}", _written(value)).replace("{word}", word)
    import difflib

    near = difflib.get_close_matches(word.lower(), known, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else ""


def missing_hint(name: str, known: list[str]) -> str:
    """A hint for a missing argument of a function with these arguments; "" if there is none."""
    return str(_answer(_MISSED.get(name, ()), known) or "")


def _answer(answers: tuple[Answer, ...], known: list[str]) -> Any:
    """The text of the first answer for a function with these arguments; None if there is none."""
    return next((answer.text for answer in answers if {*answer.beside} <= {*known}), None)


def _written(value: object) -> str:
    """A value as code, if it is short."""
    if value is None or isinstance(value, (numbers.Number, str)):
        text = repr(plain(value))
        return text if len(text) <= 40 else "..."
    return "..."


class Answer(NamedTuple):
    """A hint for functions that have all of the arguments `beside`.

    text: {value} stands for the value, {word} for the word. For flags, a text for each value.
    """

    beside: tuple[str, ...]
    text: str | Mapping[bool, str]


def _answers(*answers: tuple[str, str | Mapping[bool, str]]) -> tuple[Answer, ...]:
    return tuple(Answer(tuple(beside.split()), text) for beside, text in answers)


_HEAD_DIM = _answers(
    ("head_dim", "write head_dim={value}"),
    ("rotary_dim", "write rotary_dim={value}"),
    ("d_model", "write d_model={value}"),
    ("dim", "write dim={value}"),
    ("inv_freq", "write Rotary({value}) for inv_freq"),
)
_BASE = _answers(
    ("base", "write base={value}"),
    ("inv_freq", "write Rotary(head_dim, base={value}) for inv_freq"),
    ("", "Rotary(head_dim, base={value}) takes it"),
)
_TABLES = "for tables write apply_rotary_tables or apply_rotary_qk_tables, with cos and sin"
_CACHED_TABLES = _answers(
    ("cos sin", "write cos=..., sin=..., each with one column per pair"),
    ("inv_freq x", _TABLES),
    ("inv_freq q", _TABLES),
    ("q", _TABLES),
)
_NO_LENGTH = "omit {word}: nothing is precomputed, and any length works"
_LONGEST = _answers(
    ("positions dim", "write positions={value} for 0 .. {value} - 1"),
    ("", _NO_LENGTH),
)
_LENGTH = _answers(
    ("seq_len", "write seq_len={value} for the length of the text, or omit it"),
    ("positions dim", "write positions={value} for 0 .. {value} - 1"),
    ("", _NO_LENGTH),
)
_POSITIONS = _answers(
    ("positions", "write positions=..."),
    ("rows", "write rows=..., which indexes cos and sin"),
    ("", "positions belong to the call that rotates, positions=..."),
)
_OFFSET = _answers(
    ("positions q", "write positions={value}, the position of the first token"),
    ("positions inverse", "write positions={value}, the position of the first token"),
    ("positions dim", "write positions=np.arange({value}, {value} + n) for n tokens"),
    ("positions", "write positions=np.arange({value}, {value} + seq) for seq tokens"),
    ("rows", "write rows=..., which indexes cos and sin"),
    ("", "positions belong to the call that rotates, positions={value}"),
)
_INTERLEAVED = _answers(
    ("pairing", {True: 'write pairing="interleaved"', False: 'write pairing="half"'}),
    ("layout dim", {True: 'write layout="interleaved"', False: 'write layout="sin_cos"'}),
    ("", {True: 'Rotary(..., pairing="interleaved") takes it', False: 'omit {word}: "half" is '
          'already the pairing of Rotary(...)'}),
)  # fmt: skip
_NEOX = _answers(
    ("pairing", {False: 'write pairing="interleaved"', True: 'write pairing="half"'}),
    ("", {False: 'Rotary(..., pairing="interleaved") takes it', True: 'omit {word}: "half" is '
          'already the pairing of Rotary(...)'}),
)  # fmt: skip
_SCALING = _answers(
    ("scaling", 'write scaling={"rope_type": ..., "factor": ...}, as in a config.json'),
    ("inv_freq", "inv_freq includes it: inv_freq, scale = rotary_frequencies(dim, scaling=...)"),
)
_FACTOR = _answers(
    ("scaling", 'write scaling={"rope_type": "linear", "factor": {value}}'),
    ("inv_freq", "inv_freq includes it: rotary_frequencies(dim, scaling=...)"),
)
_SHARE = _answers(
    ("rotary_dim", "write rotary_dim=int({value} * head_dim)"),
    ("inv_freq", "inv_freq includes it: rotary_frequencies(int({value} * head_dim))"),
)
_INPLACE = _answers(
    ("inplace", "write inplace={value}"),
    ("out", "write out=x, which rotates x in place"),
)
_HEADS = _answers(
    ("num_heads", "write num_heads={value}"),
    ("", "omit {word}: the shape has the number of heads"),
)

# Words of transformers, flash-attn, vLLM, Liger, TransformerEngine, ONNX Runtime, torchtune,
# x-transformers, diffusers, fairseq, Megatron and Meta's code.
_WORDS: tuple[tuple[str, tuple[Answer, ...]], ...] = (
    ("""dim head_dim rotary_dim head_size dim_head d_head rot_dim rotary_embedding_dim d_model
     embed_dim embedding_dim hidden_size num_pos_feats""", _HEAD_DIM),
    ("""theta rope_theta rotary_base rotary_emb_base rope_base freqs_base max_period temperature
     max_timescale max_wavelength""", _BASE),
    ("""max_position_embeddings max_position max_positions max_seq_len max_seqlen max_length max_len
     max_sequence_length max_seq_length num_positions n_position num_embeddings init_size""",
     _LONGEST),
    ("seq_len seq_length seqlen length", _LENGTH),
    ("""position_ids input_pos cache_position position pos token_positions pos_ids timesteps
     timestep position_id""", _POSITIONS),
    ("""offset start_pos start seqlen_offset seqlen_offsets start_positions past_key_values_length
     past_length seq_offset offsets""", _OFFSET),
    ("interleaved rotary_interleaved rope_interleave", _INTERLEAVED),
    ("is_neox_style is_neox neox_style use_neox", _NEOX),
    ("rope_scaling rope_parameters scaling_config rope_type", _SCALING),
    ("scaling_factor seq_len_interpolation_factor interpolation_factor interpolate_factor",
     _FACTOR),
    ("partial_rotary_factor rotary_pct rotary_percent", _SHARE),
    ("attention_factor attention_scaling", _answers(("scale", "write scale={value}"))),
    ("downscale_freq_shift", _answers(("shift", "write shift={value}"))),
    ("flip_sin_to_cos", _answers(
        ("layout dim", {True: 'write layout="cos_sin"', False: 'write layout="sin_cos"'}))),
    ("in_place inplace", _INPLACE),
    ("nope_first", _answers(("rotary_start", "write rotary_start=head_dim - rotary_dim"))),
    ("""cos_sin_cache cos_sin freqs_cis freqs rotary_cos rotary_sin cos_cache sin_cache cos_cached
     sin_cached cos sin""", _CACHED_TABLES),
    ("cu_seqlens cu_seqlens_q", _answers(
        ("positions", 'write positions=packed_positions(...), with layout="thd"'))),
    ("tensor_format qkv_format input_layout", _answers(
        ("layout", 'write layout="bshd", "bhsd", "sbhd" or "thd"'))),
    ("unsqueeze_dim", _answers(
        ("layout", 'write layout="bhsd" for unsqueeze_dim=1, layout="bshd" for unsqueeze_dim=2'))),
    ("seq_dim", _answers(("layout", 'the layout includes it: layout="bhsd" or "bshd"'))),
    ("query query_states xq", _answers(("q", "write q=..."), ("x", "write x=..."))),
    ("key key_states xk", _answers(("k", "write k=..."))),
    ("num_heads n_heads num_attention_heads", _HEADS),
)  # fmt: skip
KEYWORDS = {word: answers for words, answers in _WORDS for word in words.split()}

# For arguments that a call lacks.
_MISSED = {
    "k": _answers(
        ("v", ""),  # an append writes keys: it needs them
        ("norm_first", "for queries alone write k=None"),
        ("cos", "for one tensor write apply_rotary_tables(x, cos, sin)"),
        ("inv_freq", "for one tensor write apply_rotary(x, positions, inv_freq)"),
    ),
    "positions": _answers(
        ("x", "write positions=None for 0 .. s - 1"),
        ("q", "write positions=None for 0 .. s - 1, or the position of the first token"),
    ),
    "slots": _answers(
        ("keys", ("write slots=..., the place of each token in the cache: its position, unless "
                  "the cache has pages or wraps around")),
    ),
}  # fmt: skip


# Words for pictures and commands, and the names that these have here.
_MEANT = (
    ("similarity", "decay long_term_decay dot product products dot_product inner_product distance"),
    ("similarity similarity_matrix", "similarities cosine_similarity"),
    ("similarity_matrix heatmap", "matrix"),
    ("heatmap waves", "sinusoid sinusoids sinusoidal positional_encoding"),
    ("heatmap", "table encoding image colormap"),
    ("waves", "wave curves lines sine sines cosine sin cos"),
    ("clock", "hands dial dials circle unit_circle clock_animation"),
    ("clock clock_animation", "animation gif clock_gif"),
    ("rotation", "rope rotary rotate rotated arrows vectors turn"),
    ("frequencies", "spectrum inv_freq wavelength wavelengths scaling scalings yarn ntk llama3"),
    ("bias", "alibi t5 kerple sandwich relative relative_bias position_bias"),
    ("compare", "diff difference differences versus vs"),
    ("explain", "describe show config model"),
    ("plot", "draw picture pictures figure"),
    ("bench", "benchmark benchmarks speed"),
    ("info", "version versions env environment"),
)  # fmt: skip


def meant(word: str, names: Sequence[str]) -> list[str]:
    """At most two names of pictures, commands or options that the word may stand for.

    "-" in names counts as "_".
    """
    known = {name.replace("-", "_"): name for name in names}
    text = word.lower().replace("-", "_")
    for here, words in _MEANT:
        like = [known[name] for name in here.split() if name in known]
        if like and text in words.split():
            return like
    import difflib

    return [known[name] for name in difflib.get_close_matches(text, known, n=2, cutoff=0.75)]


def name_hint(name: str) -> str:
    """A hint with the equivalent of another library's function or module; "" if there is none."""
    return NAMES.get(name, "")


_TURNS = (
    "posenc_native.apply_rotary_qk(q, k, positions, inv_freq) rotates q and k; "
    "posenc_native.apply_rotary_qk_tables(q, k, cos, sin) rotates them by precomputed tables"
)
_A_PART = "it is part of the rotation: posenc_native.apply_rotary(x, positions, inv_freq"
_MODULE = "posenc_native.nn.RotaryEmbedding(head_dim, base=...{}) is the module"

_NAMES = (
    ("""apply_rope apply_rotary_pos_emb apply_rotary_position_embeddings rope liger_rotary_pos_emb
     LigerRopeFunction fused_apply_rotary_pos_emb""", _TURNS),
    ("apply_rotary_emb apply_rotary_emb_torch apply_rotary_embedding",
     f'{_TURNS}; for adjacent dims write pairing="interleaved"'),
    ("rotate_half", f'{_A_PART}), with pairing="half"'),
    ("rotate_every_two", f'{_A_PART}, pairing="interleaved")'),
    ("LlamaRotaryEmbedding RotaryPositionEmbedding get_rope RoPE", _MODULE.format("")),
    ("RotaryPositionalEmbeddings Llama3ScaledRoPE", _MODULE.format(', pairing="interleaved"')),
    ("precompute_freqs_cis precompute_freqs get_cos_sin",
     "posenc_native.rotary_tables(positions, inv_freq) makes cos and sin"),
    ("ROPE_INIT_FUNCTIONS rope_frequencies",
     "posenc_native.rotary_frequencies(rotary_dim, base, scaling) makes them"),
    ("yarn_get_mscale",
     "posenc_native.softmax_correction(scaling) is its factor for the scores"),
    ("get_timestep_embedding",
     'posenc_native.sinusoidal_preset("diffusers_timestep", timesteps, dim) is the table'),
    ("positional_encoding SinusoidalPositionalEmbedding",
     ("posenc_native.sinusoidal(positions, dim) is the table, "
      "posenc_native.nn.SinusoidalPositionalEncoding the module")),
    ("get_2d_sincos_pos_embed",
     'posenc_native.sinusoidal_preset("mae", (height, width), dim) is the table'),
    ("get_slopes get_alibi_slopes build_alibi_tensor",
     "posenc_native.alibi_slopes(num_heads) has the slopes"),
    ("AlibiPositionalBias", "posenc_native.nn.ALiBi(num_heads) is the module"),
    ("RelativePositionBias", "posenc_native.nn.T5RelativeBias is the module"),
)  # fmt: skip
NAMES = {name: text for names, text in _NAMES for name in names.split()}
