"""A GRU without input, computed by torch in a form that torch.compile can trace.

torch.compile refuses torch's recurrent layers, and it would compile a Python loop step by step, for
one length. While it traces, the GRU is therefore an opaque operator; the backward, written out, is
a second operator. An export to ONNX writes ONNX's operator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posenc_native.engines.following import exports_to_onnx


def recurrent(
    count: int, state: Tensor, weight: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> Tensor:
    """States ``[count, h]`` after 1 .. count steps from the state ``[h]``."""
    if exports_to_onnx():
        run: Any = _onnx_gru
    else:
        run = _recurrent_operator if torch.compiler.is_compiling() else _gru
    states: Tensor = run(count, state, weight, bias_ih, bias_hh)
    return states


def _gru(count: int, state: Tensor, weight: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
    if not count or not state.shape[0]:  # torch refuses both
        return state.new_zeros(count, state.shape[0]) + 0 * state.sum()
    # torch requires an input: a single 0, which adds nothing.
    inputs, weight_ih = state.new_zeros(count, 1, 1), weight.new_zeros(weight.shape[0], 1)
    states: Tensor = torch.gru(
        inputs, state.reshape(1, 1, -1), [weight_ih, weight, bias_ih, bias_hh],
        has_biases=True, num_layers=1, dropout=0.0, train=True, bidirectional=False,
        batch_first=False,
    )[0]  # fmt: skip
    return states[:, 0]


def _onnx_gru(
    count: int, state: Tensor, weight: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> Tensor:
    """As `_gru`, in ONNX's own operation, which keeps the count open."""
    # ONNX Runtime 1.31 has it for float32 alone, and raises an error for float64.
    real = torch.float64 if state.dtype == torch.float64 else torch.float32
    h = state.shape[0]

    def in_order(gates: Tensor) -> Tensor:  # torch has the reset gate first, ONNX the update gate
        reset, update, new = gates.to(real).chunk(3)
        return torch.cat([update, reset, new])[None]

    inputs = [
        state.new_zeros(count, 1, 1, dtype=real),
        state.new_zeros(1, 3 * h, 1, dtype=real),
        in_order(weight),
        torch.cat([in_order(bias_ih), in_order(bias_hh)], -1),
        None,
        state.to(real).reshape(1, 1, h),
    ]
    states = torch.onnx.ops.symbolic(
        "GRU", inputs, {"hidden_size": h, "linear_before_reset": 1},
        dtype=real, shape=(count, 1, 1, h), version=14,
    )  # fmt: skip
    return states[:, 0, 0].to(state.dtype)


@torch.library.custom_op("posenc_native::recurrent_positions", mutates_args=())
def _recurrent_operator(
    count: int, state: Tensor, weight: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> Tensor:
    return _gru(count, state, weight, bias_ih, bias_hh).contiguous()


@_recurrent_operator.register_fake
def _(count: int, state: Tensor, weight: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
    return state.new_empty(count, state.shape[0])


@torch.library.custom_op("posenc_native::recurrent_positions_backward", mutates_args=())
def _backward_operator(
    grad: Tensor, states: Tensor, state: Tensor, weight: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    before = torch.cat([state[None], states])[: len(states)]
    hidden_r, hidden_z, hidden_n = (before @ weight.T + bias_hh).chunk(3, -1)
    input_r, input_z, input_n = bias_ih.chunk(3)
    r, z = (input_r + hidden_r).sigmoid(), (input_z + hidden_z).sigmoid()
    n = (input_n + r * hidden_n).tanh()
    # Derivatives of the new state by the sums within the gates.
    to_n = (1 - z) * (1 - n * n)
    to_gates = torch.stack([to_n * hidden_n * r * (1 - r), (before - n) * z * (1 - z), to_n * r], 1)
    carried, arrived = torch.zeros_like(state), torch.empty_like(states)
    for p in range(len(states) - 1, -1, -1):
        gradient = arrived[p] = grad[p] + carried
        carried = gradient * z[p] + (to_gates[p] * gradient).flatten() @ weight
    of_gates = to_gates * arrived[:, None]
    of_inputs = torch.cat([of_gates[:, :2], (to_n * arrived)[:, None]], 1)
    return (
        carried,
        of_gates.flatten(1).T @ before,
        of_inputs.sum(0).flatten(),
        of_gates.sum(0).flatten(),
    )


@_backward_operator.register_fake
def _(
    grad: Tensor, states: Tensor, state: Tensor, weight: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(t) for t in (state, weight, bias_ih, bias_hh))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, *inputs[1:])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return None, *_backward_operator(grad, *ctx.saved_tensors)


_recurrent_operator.register_autograd(_backward, setup_context=_setup_context)
