"""The table of all suggestions: words of users and of other libraries, with their equivalents here.

`vocabulary.py` reads it, and only after an error. A row is for one kind of mistake:

    keyword   a keyword that the function does not have
    missing   an argument that the call lacks
    surplus   a call with more arguments by position than the function has
    name      a name that the package does not have
    value     a value of an option
    picture   a word for a picture, a command or an option of a command
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

Texts = tuple[tuple[str, str], ...]


class Row(NamedTuple):
    """Words, and what to write instead of them.

    Attributes:
        kind: the kind of mistake; see above.
        words: in lower case; for "missing" and "surplus" the argument that the error names.
        here: the equivalents here; the first equivalent that the function has is suggested.
        texts: suggestions if the function has no equivalent. Each has a condition, and the first
            whose condition holds is taken. A condition has names of arguments that the function
            must have, its own name, or the value of a flag: true or false. In a text, {word} and
            {value} stand for the keyword and its value, {options} for other keywords of the call.
        libraries: the origins of the words; "" if they belong to no library.
    """

    kind: str
    words: str
    here: str = ""
    texts: Texts = ()
    libraries: str = ""


_NO_LENGTH = ("", "omit {word}: nothing is precomputed, and any length works")
_COUNTED = ("positions dim", "write positions={value} for 0 .. {value} - 1")
_FIRST = "write positions={value}, the position of the first token"
_TABLES = "for tables write Tables(cos, sin) for inv_freq, with positions=None"
_OF_ROTARY = 'Rotary(..., pairing="interleaved") takes it'
_USUAL = 'omit {word}: "half" is already the pairing of Rotary(...)'

_KEYWORDS = (
    ("""dim head_dim rotary_dim head_size dim_head d_head rot_dim rotary_embedding_dim d_model
     embed_dim embedding_dim hidden_size num_pos_feats""",
     "head_dim rotary_dim d_model dim",
     (("inv_freq", "write Rotary({value}) for inv_freq"),),
     "flash-attn, vLLM, x-transformers, ONNX Runtime, fairseq, transformers, DETR"),
    ("""theta rope_theta rotary_base rotary_emb_base rope_base freqs_base max_period temperature
     max_timescale max_wavelength""",
     "base",
     (("inv_freq", "write Rotary(head_dim, base={value}) for inv_freq"),
      ("", "Rotary(head_dim, base={value}) takes it")),
     "transformers, Megatron, GPT-NeoX, x-transformers, diffusers, DETR, tensor2tensor"),
    ("""max_position_embeddings max_position max_positions max_seq_len max_seqlen max_length max_len
     max_sequence_length max_seq_length num_positions n_position num_embeddings init_size""",
     "", (_COUNTED, _NO_LENGTH), "transformers, vLLM, torchtune, fairseq, torch's tutorial"),
    ("seq_len seq_length seqlen length", "",
     (("seq_len", "write seq_len={value} for the length of the text, or omit it"), _COUNTED,
      _NO_LENGTH),
     "transformers, flash-attn"),
    ("""position_ids input_pos cache_position position pos token_positions pos_ids timesteps
     timestep position_id""",
     "positions",
     (("", "positions belong to the call that rotates, positions={value}"),),
     "transformers, torchtune, vLLM, diffusers"),
    ("""offset start_pos start seqlen_offset seqlen_offsets start_positions past_key_values_length
     past_length seq_offset offsets""",
     "q_offset",
     (("positions q", _FIRST), ("positions inverse", _FIRST),
      ("positions dim", "write positions=np.arange({value}, {value} + n) for n tokens"),
      ("positions", "write positions=np.arange({value}, {value} + seq) for seq tokens"),
      ("", "positions belong to the call that rotates, positions={value}")),
     "Meta's Llama, flash-attn, transformers, TransformerEngine"),
    ("interleaved rotary_interleaved rope_interleave", "",
     (("pairing true", 'write pairing="interleaved"'), ("pairing false", 'write pairing="half"'),
      ("layout dim true", 'write layout="interleaved"'),
      ("layout dim false", 'write layout="sin_cos"'), ("true", _OF_ROTARY), ("false", _USUAL),
      ("pairing", 'write pairing="interleaved" or pairing="half"')),
     "flash-attn, Megatron, TransformerEngine, transformers"),
    ("is_neox_style is_neox neox_style use_neox", "",
     (("pairing false", 'write pairing="interleaved"'), ("pairing true", 'write pairing="half"'),
      ("false", _OF_ROTARY), ("true", _USUAL),
      ("pairing", 'write pairing="interleaved" or pairing="half"')),
     "vLLM"),
    ("rope_scaling rope_parameters scaling_config rope_type", "",
     (("scaling", 'write scaling={"rope_type": ..., "factor": ...}, as in a config.json'),
      ("inv_freq", "inv_freq includes it: inv_freq, scale = rotary_frequencies(dim, scaling=...)")),
     "transformers"),
    ("scaling_factor seq_len_interpolation_factor interpolation_factor interpolate_factor", "",
     (("scaling", 'write scaling={"rope_type": "linear", "factor": {value}}'),
      ("inv_freq", "inv_freq includes it: rotary_frequencies(dim, scaling=...)")),
     "flash-attn, Megatron, x-transformers"),
    ("partial_rotary_factor rotary_pct rotary_percent", "",
     (("rotary_dim", "write rotary_dim=int({value} * head_dim)"),
      ("inv_freq", "inv_freq includes it: rotary_frequencies(int({value} * head_dim))")),
     "transformers, GPT-NeoX, Megatron"),
    ("attention_factor attention_scaling", "scale", (), "transformers"),
    ("downscale_freq_shift", "shift", (), "diffusers"),
    ("flip_sin_to_cos", "",
     (("layout dim true", 'write layout="cos_sin"'), ("layout dim false", 'write layout="sin_cos"'),
      ("layout dim", 'write layout="cos_sin" or layout="sin_cos"')),
     "diffusers"),
    ("in_place inplace", "inplace", (("out", "write out=x, which rotates x in place"),),
     "flash-attn"),
    ("nope_first", "", (("rotary_start", "write rotary_start=head_dim - rotary_dim"),), "vLLM"),
    ("""cos_sin_cache cos_sin freqs_cis freqs rotary_cos rotary_sin cos_cache sin_cache cos_cached
     sin_cached cos sin""", "",
     (("inv_freq", _TABLES), ("q", _TABLES)),
     "vLLM, Meta's Llama, flash-attn, ONNX Runtime, transformers"),
    ("rows", "", (("inv_freq", "write Tables(cos, sin, rows=...) for inv_freq"),), ""),
    ("compute", "",
     (("inv_freq", "write Tables(cos, sin, compute={value}) for inv_freq, with positions=None"),),
     ""),
    ("cu_seqlens cu_seqlens_q", "",
     (("starts", "write starts={value}"),
      ("positions", 'write positions=packed_positions(...), with layout="thd"')),
     "flash-attn, TransformerEngine"),
    ("tensor_format qkv_format input_layout", "",
     (("layout", 'write layout="bshd", "bhsd", "sbhd" or "thd"'),), "TransformerEngine"),
    ("unsqueeze_dim", "",
     (("layout", 'write layout="bhsd" for unsqueeze_dim=1, layout="bshd" for unsqueeze_dim=2'),),
     "transformers, Liger"),
    ("seq_dim", "", (("layout", 'the layout includes it: layout="bhsd" or "bshd"'),),
     "x-transformers"),
    ("query query_states xq", "q x", (), "transformers, Meta's Llama, vLLM"),
    ("key key_states xk", "k", (), "transformers, Meta's Llama, vLLM"),
    ("k_pe k_rot", "k_rope", (), "vLLM, transformers"),
    ("kv_c kv_c_normed compressed_kv", "latent", (), "vLLM, transformers"),
    ("kv_cache", "cache", (), "vLLM"),
    ("slot_mapping", "slots", (), "vLLM"),
    ("num_heads n_heads num_attention_heads n_head", "num_heads",
     (("", "omit {word}: the shape has the number of heads"),), "transformers, GPT-2"),
    ("relative_attention_num_buckets", "num_buckets", (), "transformers"),
    ("relative_attention_max_distance", "max_distance", (), "transformers"),
)  # fmt: skip

_ONE = "for one tensor write rope.apply(q)"
_PLACE = (
    "write slots=..., the place of each token in the cache: its position, unless the cache has "
    "pages or wraps around"
)
_MISSING = (
    ("k", "",
     (("v", ""),  # an append writes keys: it needs them
      ("BoundRotary", f"{_ONE}, of the Rotary"),
      ("Rotary", _ONE), ("Rotary.bind", _ONE), ("FullWidthRotary", _ONE),
      ("RotaryEmbedding", "for one tensor write module.rope.apply(x, positions)"),
      ("RotaryEmbedding.bind", "for one tensor write module.rope.apply(x, positions)"),
      ("XPos", "the module takes both: write module(q, k, positions)"),
      ("Rotating", "for queries alone write module(q, None)"),
      ("Rotary.norm", "for queries alone write k=None"),
      ("RotatingModule.norm", "for queries alone write k=None"),
      ("norm_first", "for queries alone write k=None"),
      ("inv_freq", "for one tensor write apply_rotary(x, positions, inv_freq)"))),
    ("positions", "",
     (("x", "write positions=None for 0 .. s - 1"),
      ("q", "write positions=None for 0 .. s - 1, or the position of the first token"))),
    ("slots", "",
     (("keys", _PLACE), ("cache", _PLACE))),
)  # fmt: skip

# Heads where positions belong, or more tensors than the function rotates.
_SURPLUS = (
    ("apply_rotary", "for q and k write apply_rotary_qk(q, k, positions, inv_freq{options})"),
    ("Rotary.apply", "for q and k write rope(q, k, positions{options})"),
)

_TURNS = (
    "posenc_native.apply_rotary_qk(q, k, positions, inv_freq) rotates q and k; "
    "posenc_native.Tables(cos, sin) in place of inv_freq rotates them by precomputed tables"
)
_A_PART = "it is part of the rotation: posenc_native.apply_rotary(x, positions, inv_freq"
_MODULE = "posenc_native.nn.RotaryEmbedding(head_dim, base=...{}) is the module"

_NAMES = (
    ("apply_rotary_tables", "write apply_rotary(x, None, Tables(cos, sin))", ""),
    ("apply_rotary_qk_tables", "write apply_rotary_qk(q, k, None, Tables(cos, sin))", ""),
    ("norm_rotary_qk_tables", "write norm_rotary_qk(q, k, None, Tables(cos, sin))", ""),
    ("rotary_append_tables",
     "write rotary_append(q, k, v, None, Tables(cos, sin), keys, values, slots)", ""),
    ("apply_xpos",
     ("write apply_rotary_qk(q, k, None, tables), with "
      "tables = rotary.xpos_tables(positions, inv_freq)"), ""),
    ("sinusoidal_preset",
     "write posenc_native.SinusoidalSpec.preset(name, dim, ...)(positions)", ""),
    ("sinusoidal_presets", "write posenc_native.SinusoidalSpec.presets()", ""),
    ("sinusoidal_grid",
     "write posenc_native.SinusoidalSpec(dim, axis_order=(0, 1), ...)(positions)", ""),
    ("PairingEvidence",
     ("guess_pairing returns it; its class is "
      "posenc_native.checkpoints.weights.PairingEvidence"), ""),
    ("SelectiveState",
     ("SelectiveRotaryEmbedding returns it; its class is "
      "posenc_native.nn.selective.SelectiveState"), ""),
    ("Patch", "patch returns it; its class is posenc_native.hf.patching.Patch", ""),
    ("rotary_presets", "write posenc_native.Rotary.presets()", ""),
    ("context_parallel_positions",
     "write posenc_native.positions.ContextParallel(rank, ranks, order).positions(length)", ""),
    ("""apply_rope apply_rotary_pos_emb apply_rotary_position_embeddings rope liger_rotary_pos_emb
     LigerRopeFunction fused_apply_rotary_pos_emb""",
     _TURNS, "transformers, Liger, Apex, TransformerEngine"),
    ("apply_rotary_emb apply_rotary_emb_torch apply_rotary_embedding",
     f'{_TURNS}; for adjacent dims write pairing="interleaved"', "flash-attn, Meta's Llama"),
    ("rotate_half", f'{_A_PART}), with pairing="half"', "transformers"),
    ("rotate_every_two", f'{_A_PART}, pairing="interleaved")', "transformers, GPT-J"),
    ("LlamaRotaryEmbedding RotaryPositionEmbedding get_rope RoPE", _MODULE.format(""),
     "transformers, vLLM, TransformerEngine"),
    ("RotaryPositionalEmbeddings Llama3ScaledRoPE", _MODULE.format(', pairing="interleaved"'),
     "torchtune"),
    ("precompute_freqs_cis precompute_freqs get_cos_sin",
     "posenc_native.rotary_tables(positions, inv_freq) makes cos and sin", "Meta's Llama"),
    ("ROPE_INIT_FUNCTIONS rope_frequencies",
     "posenc_native.rotary.rotary_frequencies(rotary_dim, base, scaling) makes them",
     "transformers"),
    ("yarn_get_mscale",
     "posenc_native.rotary.softmax_correction(scaling) is its factor for the scores",
     "DeepSeek, vLLM"),
    ("get_timestep_embedding",
     'posenc_native.SinusoidalSpec.preset("diffusers_timestep", dim)(timesteps) is the table',
     "diffusers"),
    ("positional_encoding SinusoidalPositionalEmbedding",
     ("posenc_native.sinusoidal(positions, dim) is the table, "
      "posenc_native.nn.SinusoidalPositionalEncoding the module"), "fairseq"),
    ("get_2d_sincos_pos_embed",
     'posenc_native.SinusoidalSpec.preset("mae", dim)(sizes=(height, width)) is the table', "MAE"),
    ("get_slopes get_alibi_slopes build_alibi_tensor",
     "posenc_native.relative.alibi_slopes(num_heads) has the slopes",
     "ALiBi's code, vLLM, transformers"),
    ("AlibiPositionalBias", "posenc_native.nn.ALiBi(num_heads) is the module", "x-transformers"),
    ("RelativePositionBias", "posenc_native.nn.T5RelativeBias is the module",
     "x-transformers, transformers"),
)  # fmt: skip

_VALUES = (
    ("half neox gpt_neox neox_style rotate_half split llama hf halves", "half",
     "transformers, vLLM, GPT-NeoX"),
    ("interleaved gptj gpt_j gptj_style adjacent pairs meta complex", "interleaved",
     "Meta's Llama, GPT-J, vLLM"),
)  # fmt: skip

# Words for pictures and commands, and the names that these have here.
_PICTURES = (
    ("decay long_term_decay dot product products dot_product inner_product distance", "similarity"),
    ("similarities cosine_similarity", "similarity similarity_matrix"),
    ("matrix", "similarity_matrix heatmap"),
    ("sinusoid sinusoids sinusoidal positional_encoding", "heatmap waves"),
    ("table encoding image colormap", "heatmap"),
    ("wave curves lines sine sines cosine sin cos", "waves"),
    ("hands dial dials circle unit_circle clock_animation", "clock"),
    ("animation gif clock_gif", "clock clock_animation"),
    ("rope rotary rotate rotated arrows vectors turn", "rotation"),
    ("spectrum inv_freq wavelength wavelengths scaling scalings yarn ntk llama3", "frequencies"),
    ("alibi t5 kerple sandwich relative relative_bias position_bias", "bias"),
    ("diff difference differences versus vs", "compare"),
    ("describe show config model", "explain"),
    ("draw picture pictures figure", "plot"),
    ("benchmark benchmarks speed", "bench"),
    ("version versions env environment", "info"),
)


def _rows() -> Iterator[Row]:
    yield from (Row("keyword", *row) for row in _KEYWORDS)
    yield from (Row("missing", *row) for row in _MISSING)
    yield Row("surplus", "arguments", texts=_SURPLUS)
    yield from (Row("name", words, "", (("", text),), there) for words, text, there in _NAMES)
    yield from (Row("value", words, here, (), there) for words, here, there in _VALUES)
    yield from (Row("picture", words, here) for words, here in _PICTURES)


TABLE = (*_rows(),)
