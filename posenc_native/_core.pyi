"""The native module: kernels on NumPy arrays. Arguments by position, as in reference.py."""

from typing import Any

def sinusoidal(
    positions: Any,
    dim: Any,
    base: Any,
    layout: Any,
    shift: Any,
    scale: Any,
    dtype: Any,
    out: Any,
    /,
) -> Any: ...
def add_sinusoidal(
    x: Any,
    positions: Any,
    x_scale: Any,
    alpha: Any,
    base: Any,
    layout: Any,
    shift: Any,
    scale: Any,
    out: Any,
    /,
) -> Any: ...
def rotary_tables(
    positions: Any, inv_freq: Any, axis_map: Any, scale: Any, dtype: Any, /
) -> tuple[Any, Any]: ...
def apply_rotary(
    x: Any,
    positions: Any,
    inv_freq: Any,
    layout: Any,
    pairing: Any,
    rotary_start: Any,
    axis_map: Any,
    scale: Any,
    inverse: Any,
    out: Any,
    /,
) -> Any: ...
def apply_rotary_qk(
    q: Any,
    k: Any,
    positions: Any,
    inv_freq: Any,
    layout: Any,
    pairing: Any,
    rotary_start: Any,
    axis_map: Any,
    scale: Any,
    inverse: Any,
    inplace: Any,
    /,
) -> tuple[Any, Any]: ...
def rotary_backward(
    grads: Any,
    inputs: Any,
    positions: Any,
    inv_freq: Any,
    layout: Any,
    pairing: Any,
    rotary_start: Any,
    axis_map: Any,
    scale: Any,
    inverse: Any,
    of_positions: Any,
    /,
) -> tuple[tuple[Any, ...], Any, Any]: ...
def apply_rotary_tables(
    x: Any,
    cos: Any,
    sin: Any,
    layout: Any,
    pairing: Any,
    rotary_start: Any,
    inverse: Any,
    out: Any,
    /,
) -> Any: ...
def apply_rotary_qk_tables(
    q: Any,
    k: Any,
    cos: Any,
    sin: Any,
    layout: Any,
    pairing: Any,
    rotary_start: Any,
    inverse: Any,
    inplace: Any,
    /,
) -> tuple[Any, Any]: ...
def toeplitz_bias(
    diagonals: Any,
    q_len: Any,
    k_len: Any,
    start: Any,
    q_offset: Any,
    dtype: Any,
    out: Any,
    /,
) -> Any: ...
def add_toeplitz_bias(
    scores: Any,
    diagonals: Any,
    q_len: Any,
    k_len: Any,
    start: Any,
    q_offset: Any,
    out: Any,
    /,
) -> Any: ...
def diagonal_sums(
    grad: Any,
    shape: Any,
    q_len: Any,
    k_len: Any,
    start: Any,
    q_offset: Any,
    /,
) -> Any: ...
def relative_gather(
    x: Any,
    index: Any,
    k_len: Any,
    start: Any,
    q_offset: Any,
    missing: Any,
    content: Any,
    scale: Any,
    out: Any,
    /,
) -> Any: ...
def relative_scatter(
    grad: Any,
    index: Any,
    width: Any,
    start: Any,
    q_offset: Any,
    missing: Any,
    scale: Any,
    out: Any,
    /,
) -> Any: ...
def set_num_threads(n: int, /) -> None: ...
def get_num_threads() -> int: ...
def available_targets() -> list[str]: ...
def current_target() -> str: ...
def set_target(name: str, /) -> bool: ...
def set_non_temporal_bytes(n: int, /) -> None: ...
