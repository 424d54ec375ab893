"""What errors say about what was meant: the same from arrays and tensors, native and reference."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bad_calls import x

import posenc_native as pn
from posenc_native.core.calls.errors import fault_of

FREQ = pn.rotary.rotary_frequencies(8)[0]  # 4 frequencies, for heads of 8
AT = np.arange(5)
MASK = np.ones((2, 5), bool)
ROPE = pn.Rotary(8)
FULL = pn.rotary.FullWidthRotary.of_dims(8, np.ones(8))
SWAPPED = (2, 5, 3, 8)  # bshd


def append(of: Any, shape: tuple[int, ...], slots: Any = AT) -> Any:
    """An append to caches of this shape, with or without slots."""
    places = () if slots is None else (slots if isinstance(slots, list) else of(slots),)
    return ROPE.append(*(of(x()) for _ in "qkv"), None, of(x(*shape)), of(x(*shape)), *places)


def append_one(of: Any, positions: Any, slots: Any) -> Any:
    """An append of one token in each of two rows."""
    token, cache = x(2, 3, 1, 8), x(2, 3, 9, 8)
    return ROPE.append(*(of(token) for _ in "qkv"), positions, of(cache), of(cache), slots)


# name: (a call of arrays made by `of`, what its message has, what it has not)
CALLS: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    # --- tables of full width
    "cos of full width": (
        lambda of: pn.apply_rotary(of(x()), None, pn.Tables(of(x(5, 8)), of(x(5, 8)))),
        "head_dim 8, got 8, which turn 16 dims; tables of full width? write cos[..., :4]", "",
    ),
    "cos of full width, interleaved": (
        lambda of: pn.apply_rotary_qk(
            of(x()), of(x()), None, pn.Tables(of(x(2, 5, 8)), of(x(2, 5, 8))), pairing="interleaved"
        ),
        "write cos[..., ::2], sin[..., ::2]", "",
    ),
    "cos too wide": (
        lambda of: pn.apply_rotary(of(x()), None, pn.Tables(of(x(5, 6)), of(x(5, 6)))),
        "at most 4 columns", "full width",
    ),
    # --- a head smaller than the frequencies
    "more frequencies": (
        lambda of: pn.apply_rotary(of(x()), None, np.ones(8)),
        "inv_freq: expected at most 4 frequencies, 2 dims each, for head_dim 8, got 8, which turn",
        "rotary_start",
    ),
    "a slice past the head": (
        lambda of: pn.apply_rotary(of(x()), None, FREQ, rotary_start=2), "rotary_start: ", "turn",
    ),
    # --- another layout
    "positions of axis 1": (
        lambda of: pn.apply_rotary(of(x(*SWAPPED)), of(AT), FREQ), 'got [5]; layout="bshd"?', "",
    ),
    "positions of axis 2": (
        lambda of: pn.apply_rotary(of(x()), of(AT), FREQ, layout="bshd"), '; layout="bhsd"?', "",
    ),
    "tables of axis 1": (
        lambda of: pn.apply_rotary(of(x(*SWAPPED)), None, pn.Tables(of(x(5, 4)), of(x(5, 4)))),
        '; layout="bshd"?', "",
    ),
    "heads of k on axis 2": (
        lambda of: pn.apply_rotary_qk(of(x(*SWAPPED)), of(x(2, 5, 1, 8)), of(AT), FREQ),
        '; layout="bshd"?', "",
    ),
    "packed tokens": (
        lambda of: pn.apply_rotary(of(x(5, 3, 8)), of(AT), FREQ), '; layout="thd"?', "",
    ),
    "a Rotary": (
        lambda of: ROPE(of(x(*SWAPPED)), of(x(*SWAPPED)), of(AT)), '; layout="bshd"?', "",
    ),
    "frequencies of each head": (
        lambda of: pn.apply_rotary(of(x(*SWAPPED)), None, np.ones((3, 4))), '; layout="bshd"?', "",
    ),
    "keys of another length": (
        lambda of: pn.apply_rotary_qk(of(x()), of(x(2, 3, 6, 8)), None, FREQ),
        "; for different lengths write positions=(q_positions, k_positions)", "layout",
    ),
    "keys of another length, by tables": (
        lambda of: pn.apply_rotary_qk(
            of(x()), of(x(2, 3, 6, 8)), None, pn.Tables(of(x(5, 4)), of(x(5, 4)))
        ),
        "; for different lengths write Tables((cos_q, cos_k), (sin_q, sin_k))", "layout",
    ),
    "keys of another width": (
        lambda of: pn.apply_rotary_qk(of(x()), of(x(2, 3, 5, 6)), None, FREQ[:2]),
        "; for heads of different widths write rotary_start=(q_start, k_start)", "layout",
    ),
    "keys of another width, with starts": (
        lambda of: pn.apply_rotary_qk(
            of(x()), of(x(2, 3, 5, 6)), None, FREQ[:2], rotary_start=(0, 3)
        ),
        "rotary_start[1]: ", "different",
    ),
    "positions of no axis": (
        lambda of: pn.apply_rotary(of(x()), of(np.arange(7)), FREQ), "got [7]", "layout",
    ),
    "no axis in its place": (lambda of: ROPE.apply(of(x(5, 8))), '; layout="sd"?', "thd"),
    "three axes": (
        lambda of: ROPE.apply(of(x(5, 3, 8))),
        ('got shape [5, 3, 8]; write layout="thd" for [tokens, heads, dims], "hsd" for [heads, '
         'tokens, dims], "bsd" for [batch, tokens, dims]'), "?",
    ),
    "three axes, at a position": (
        lambda of: ROPE.apply(of(x(5, 8, 8)), 7), '; write layout="thd" for [tokens', "?",
    ),
    "three axes of q and k": (
        lambda of: ROPE(of(x(5, 3, 8)), of(x(5, 3, 8))), '; write layout="thd" for [tokens', "?",
    ),
    "four axes": (
        lambda of: pn.Rotary(8, layout="thd").apply(of(x())),
        ('; write layout="bhsd" for [batch, heads, tokens, dims], "bshd" for [batch, tokens, '
         'heads, dims]'), "?",
    ),
    "heads that share keys": (
        lambda of: pn.apply_rotary_qk(of(x(1, 5, 8, 8)), of(x(1, 5, 2, 8)), None, FREQ),
        '; layout="bshd"?', "different",
    ),
    "heads that share keys, at positions": (
        lambda of: pn.apply_rotary_qk(of(x(1, 5, 8, 8)), of(x(1, 5, 2, 8)), of(AT), FREQ),
        '; layout="bshd"?', "different",
    ),
    "heads that share keys, the other way": (
        lambda of: pn.apply_rotary_qk(
            of(x(1, 8, 5, 8)), of(x(1, 2, 5, 8)), None, FREQ, layout="bshd"
        ),
        '; layout="bhsd"?', "different",
    ),
    "heads that share keys, by tables": (
        lambda of: pn.apply_rotary_qk(
            of(x(1, 5, 8, 8)), of(x(1, 5, 2, 8)), None, pn.Tables(of(x(5, 4)), of(x(5, 4)))
        ),
        '; layout="bshd"?', "different",
    ),
    "heads that share keys, packed": (
        lambda of: pn.apply_rotary_qk(of(x(5, 8, 8)), of(x(5, 2, 8)), None, FREQ, layout="hsd"),
        '; layout="thd"?', "different",
    ),
    "a step of decoding": (
        lambda of: pn.apply_rotary_qk(of(x(1, 8, 1, 8)), of(x(1, 8, 7, 8)), None, FREQ),
        "positions=(q_positions, k_positions)", "layout",
    ),
    "no number": (
        lambda of: pn.apply_rotary(of(x(1, 5, 4, 8)), of(np.full(4, np.nan)), FREQ),
        "positions: expected ", "layout",
    ),
    "frequencies without an end": (
        lambda of: pn.apply_rotary(of(x(1, 4, 5, 8)), None, of(np.full((4, 4), np.inf))),
        "inv_freq: expected ", "layout",
    ),
    "capitals": (
        lambda of: pn.apply_rotary(of(x()), None, FREQ, layout="BSHD"), '; layout="bshd"?', "",
    ),
    "heads as n": (
        lambda of: pn.apply_rotary(of(x()), None, FREQ, layout="b s n d"), '; layout="bshd"?', "",
    ),
    # --- one tensor
    "two by a Rotary": (
        lambda of: ROPE.apply(of(x()), of(x(2, 1, 5, 8))),
        "; for q and k write apply_rotary_qk(q, k, positions, inv_freq)", "layout",
    ),
    "two by frequencies": (
        lambda of: pn.apply_rotary(of(x()), of(x(2, 1, 5, 8)), FREQ),
        "; for q and k write apply_rotary_qk(q, k, positions, inv_freq)", "layout",
    ),
    "a Rotary of one": (
        lambda of: ROPE(of(x())),
        "Rotary: arguments: expected q, k, got no k; for one tensor write rope.apply(q)", "Verbs",
    ),
    "a Rotary of one, at positions": (
        lambda of: ROPE(of(x()), positions=of(AT)), "got no k; for one tensor write rope.ap", "",
    ),
    "a bound step of one": (
        lambda of: ROPE.bind(of(x()), of(x()))(of(x())),
        "expected q, k, positions, got no k, positions; for one tensor write rope.apply(q)", "",
    ),
    "a bound step without positions": (
        lambda of: ROPE.bind(of(x()), of(x()))(of(x()), of(x())),
        "got no positions; write positions=None for 0 .. s - 1", "",
    ),
    "one bound": (lambda of: ROPE.bind(of(x())), "Rotary.bind: arguments: ", "Verbs"),
    "a rotation of full width": (
        lambda of: FULL(of(x())), "FullWidthRotary: arguments: expected q, k, got no k; for", "",
    ),
    "one normed": (
        lambda of: ROPE.norm(of(x())),
        "Rotary.norm: arguments: expected q, k, got no k; for queries alone write k=None", "Verbs",
    ),
    "one by frequencies": (
        lambda of: pn.apply_rotary_qk(of(x()), positions=None, inv_freq=FREQ),
        "got no k; for one tensor write apply_rotary(x, positions, inv_freq)", "",
    ),
    "nothing": (lambda of: ROPE(), "Rotary: arguments: expected q, k, got no q, k", ";"),
    "a word of others": (
        lambda of: ROPE(of(x()), of(x()), offset=3),
        "Rotary: offset: expected a keyword of q, k, positions, layout", "Verbs",
    ),
    "a word of others, for one": (
        lambda of: ROPE.apply(of(x()), start_pos=3), "; write positions=3, the position of", "Ver",
    ),
    # --- caches
    "no slots": (
        lambda of: append(of, (2, 3, 9, 8), slots=None),
        ("Rotary.append: arguments: expected q, k, v, positions, keys, values, slots, got no "
         "slots; write slots=..., the place of each token in the cache"), "inv_freq",
    ),
    "no slots, of rows": (
        lambda of: ROPE.append_latent(of(x()), of(x(2, 5, 8)), of(x(2, 5, 8)), 0, of(x(2, 9, 16))),
        "cache, slots, got no slots; write slots=..., the place of each token in the cache", "keys",
    ),
    "pages": (lambda of: append(of, (10, 16, 3, 8)), '; cache_layout="pshd"?', "phsd"),
    "pages, slots in a list": (
        lambda of: append(of, (10, 16, 3, 8), slots=[0, 1, 2, 3, 4]), '; cache_layout="pshd"?', "",
    ),
    "pages by head": (lambda of: append(of, (10, 3, 16, 8)), '; cache_layout="phsd"?', "pshd"),
    "pages, by tables": (
        lambda of: pn.rotary_append(
            *(of(x()) for _ in "qkv"),
            None,
            pn.Tables(of(x(5, 4)), of(x(5, 4))),
            of(x(10, 16, 3, 8)),
            of(x(10, 16, 3, 8)),
            of(AT),
        ),
        'b = 2, got shape [10, 16, 3, 8]; cache_layout="pshd"?', "layout=b",
    ),
    "pages of as many slots as heads": (
        lambda of: append(of, (10, 3, 3, 8)),
        ('; write cache_layout="pshd" for [pages, slots, heads, dims], "phsd" for [pages, heads, '
         'slots, dims]'), "?",
    ),
    "rows or pages": (
        lambda of: append(of, (2, 9, 3, 8)),
        ('; write cache_layout="bshd" for [batch, slots, heads, dims], "pshd" for [pages, slots, '
         'heads, dims]'), "?",
    ),
    "a pool": (lambda of: append(of, (9, 3, 8)), '; cache_layout="shd"?', ""),
    "a cache of other heads": (lambda of: append(of, (2, 4, 9, 8)), "keys: ", "layout"),
    "few pages": (lambda of: append(of, (1, 4, 3, 8)), "keys: ", "layout"),
    # --- one position
    "a number": (
        lambda of: pn.apply_rotary(of(x(2, 3, 1, 8)), of(np.array(7)), FREQ),
        "; for one token write [7]", "",
    ),
    "a float": (
        lambda of: pn.apply_rotary(of(x()), 5.0, FREQ),
        "the position of the first token (write 5) or positions (write [5.0] for one)", "",
    ),
    "a float table": (
        lambda of: pn.rotary_tables(4096.0, of(FREQ)), "(write 4096) or positions (write [4096.0]",
        "",
    ),
    "a fraction": (lambda of: pn.apply_rotary(of(x()), 0.5, FREQ), "write [0.5] for one", "0,"),
    "a slot": (
        lambda of: append_one(of, 0, 3), "[b, s] = [2, 1], got []; for one token write [3]", "",
    ),
    "a slot as an array": (
        lambda of: append_one(of, 0, of(3)), "slots: expected shape", "position]",
    ),
    "no slots in a list": (lambda of: append_one(of, 0, []), "got [0]", "float64"),
    # --- one position for each row of a batch
    "lengths": (
        lambda of: ROPE(of(x(2, 3, 1, 8)), of(x(2, 1, 1, 8)), of(np.array([7, 4]))),
        "got [2]; one for each row of the batch? write positions[:, None]", "layout",
    ),
    "lengths in a list": (
        lambda of: ROPE.apply(of(x(2, 3, 1, 8)), [7, 4]), "write np.array(positions)[:, None]", "",
    ),
    "lengths of an append": (
        lambda of: append_one(of, of(np.array([7, 4])), of(AT[:2, None])),
        "write positions[:, None]", "layout",
    ),
    "a slot for each row": (
        lambda of: append_one(of, of(AT[:2, None]), of(AT[:2])), "write slots[:, None]", "layout",
    ),
    "a row of tables for each row": (
        lambda of: pn.apply_rotary(of(x(2, 3, 1, 8)), None, pn.Tables(of(x(2, 4)), of(x(2, 4)))),
        "write cos[:, None]", "layout",
    ),
    "the first position of each row": (
        lambda of: ROPE(of(x()), of(x(2, 1, 5, 8)), of(np.array([7, 4]))),
        "; the first of each row of the batch? write positions[:, None] + arange(5)", "layout",
    ),
    "tokens on the first axis": (
        lambda of: ROPE(of(x(5, 2, 3, 8)), of(x(5, 2, 1, 8)), of(AT)), '; layout="sbhd"?', "row",
    ),
    # --- an argument left out of a call by position
    "no positions": (
        lambda of: ROPE.append(*(of(x()) for _ in "qkv"), *(of(x(2, 3, 9, 8)) for _ in "kv"), AT),
        "got no slots; did you leave out positions?", "place of each token",
    ),
    "no positions beside a Rotary": (
        lambda of: pn.apply_rotary(of(x()), ROPE), "no inv_freq; did you leave out positions?", "",
    ),
    "no values": (
        lambda of: ROPE.append(of(x()), of(x()), 7, *(of(x(2, 3, 9, 8)) for _ in "kv"), AT),
        "got no slots; did you leave out v?", "place of each token",
    ),
    # --- dtypes of positions
    "a mask": (
        lambda of: pn.apply_rotary(of(x()), of(MASK), FREQ),
        "(padded_positions makes positions from a mask), got bool", "16-bit",
    ),
    "a mask to add": (
        lambda of: pn.add_sinusoidal(of(x(2, 5, 8)), of(MASK)), "padded_positions", "16-bit",
    ),
    "complex": (
        lambda of: pn.apply_rotary(of(x()), of(AT * 1j), FREQ),
        "an integer dtype, float32 or float64, got complex128", "16-bit",
    ),
    "16 bits": (
        lambda of: pn.apply_rotary(of(x()), of(AT.astype("f2")), FREQ), "16-bit", "padded",
    ),
    "text": (lambda of: pn.apply_rotary(of(x()), "12345", FREQ), "float64, got str", "16-bit"),
    "dates": (
        lambda of: pn.sinusoidal(np.zeros(3, "M8[s]"), 8, **of_torch(of)), "datetime64", "16-bit",
    ),
    # --- frequencies and names
    "the pair of rotary_frequencies": (
        lambda of: pn.apply_rotary(of(x()), None, pn.rotary.rotary_frequencies(8)),
        "the first element of what rotary_frequencies returns, got the pair (inv_freq, factor)", "",
    ),
    "their pair for tables": (
        lambda of: pn.rotary_tables(of(AT), pn.rotary.rotary_frequencies(8)),
        "; write inv_freq[0]", "",
    ),
    "neox": (
        lambda of: pn.apply_rotary(of(x()), None, FREQ, pairing="neox"),
        "got 'neox'; 'neox' is 'half' here", "",
    ),
    "GPT-J by tables": (
        lambda of: pn.apply_rotary(
            of(x()), None, pn.Tables(of(x(5, 4)), of(x(5, 4))), pairing="GPT-J"
        ),
        "'GPT-J' is 'interleaved' here", "",
    ),
    "to another pairing": (
        lambda of: pn.checkpoints.permute_qk(of(x(8, 8)), 8, to="neox"),
        "to: expected 'half', 'interleaved' or an even int, got 'neox'; 'neox' is 'half' here", "",
    ),
    "from another pairing": (
        lambda of: pn.checkpoints.permute_qk(of(x(8, 8)), 8, source="gptj", to="half"),
        "source: ", "to: ",
    ),
    "an unknown pairing": (
        lambda of: pn.apply_rotary(of(x()), None, FREQ, pairing="diagonal"), "'diagonal'", "here",
    ),
    "a preset": (
        lambda of: pn.Rotary.preset("llama3"),
        "one of llama-3, llama-3.3, llama-3.1 or other names in Rotary.presets(), got 'llama3'", "",
    ),
    "a name of a hub": (
        lambda of: pn.Rotary.preset("meta-llama/Llama-3.1-8B"),
        "expected one of llama-3.1, llama-3 or other names in Rotary.presets()", "mistral",
    ),
    "a preset of tables": (
        lambda of: pn.SinusoidalSpec.preset("fairsek", 8),
        "one of fairseq, whisper, mae or other names in SinusoidalSpec.presets(), got 'fairsek'",
        "",
    ),
    "a vision model": (
        lambda of: pn.rotary.vision_rotary("pixtrl", 8),
        "one of pixtral or other names in posenc_native/models/vision.json, got 'pixtrl'", "",
    ),
    # --- numbers
    "a huge count": (lambda of: pn.apply_rotary(of(x()), 10**30, FREQ), "got 1e+30", "000000"),
    "a huge shape": (
        lambda of: pn.sinusoidal(2**62, 8, **of_torch(of)), "4.61169e+18", "46116860",
    ),
    "a huge base": (lambda of: pn.sinusoidal(3, 8, base=-1e30, **of_torch(of)), "-1e+30", "00000"),
}  # fmt: skip


def of_torch(of: Any) -> dict[str, Any]:
    return {} if of is np.asarray else {"device": "cpu"}


@pytest.fixture(params=["arrays", "tensors"])
def of(request: pytest.FixtureRequest) -> Any:
    if request.param == "arrays":
        return np.asarray
    return pytest.importorskip("torch").tensor


@pytest.mark.parametrize("name", CALLS)
def test_the_message_says_what_was_meant(backend, of, name):
    call, there, absent = CALLS[name]
    with pytest.raises((ValueError, TypeError), match=re.escape(there)) as caught:
        call(of)
    message = str(caught.value)
    assert not absent or absent not in message
    fault = fault_of(caught.value)
    assert fault is not None
    assert str(fault) == message


def test_a_huge_frequency_is_short(native, of):
    with pytest.raises(ValueError, match=r"got 1e\+30 at \[0\]"):
        pn.apply_rotary(of(x()), None, of(np.full(4, 1e30)))


SLIPS = {
    "RotaryEmbedding": "posenc_native.nn.RotaryEmbedding",
    "ALiBi": "posenc_native.nn.ALiBi",
    "patch": "posenc_native.hf.patch",
    "toeplitz_score_mod": "posenc_native.flex.toeplitz_score_mod",
    "heatmap": "posenc_native.plot.heatmap",
}


def test_a_name_of_another_room_is_found_without_importing_it():
    code = f"""
import sys
import posenc_native as pn
for name, place in {SLIPS!r}.items():
    try:
        getattr(pn, name)
    except AttributeError as error:
        assert str(error).endswith(place), error
    else:
        raise SystemExit(name)
for name in ("rotary_embedding", "__wrapped__"):
    try:
        getattr(pn, name)
    except AttributeError as error:
        assert str(error).endswith(repr(name)), error
assert "torch" not in sys.modules and "matplotlib" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_those_names_are_where_the_message_says():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("matplotlib")
    for name, place in SLIPS.items():
        assert hasattr(getattr(pn, place.split(".")[1]), name)


def test_a_hint_takes_no_layout_for_granted():
    """Of two wrong arguments one is found first; the other one must not end its hint."""
    memory = np.zeros(17, np.uint8)[1:]
    positions = memory.view(np.int64)  # at no multiple of its size
    x = np.ones((1, 16), np.float32)
    inv_freq = pn.rotary.rotary_frequencies(16)[0]
    with pytest.raises((ValueError, TypeError), match="apply_rotary"):
        pn.apply_rotary(x, positions, inv_freq, layout=-1)
