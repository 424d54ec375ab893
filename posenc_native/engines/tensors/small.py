"""Small calls pass torch's dispatcher by: the NumPy module reads the tensors.

The dispatcher takes longer than a small call does. So for a small call the module does what the
operator would do, with the same bits.

It returns NotImplemented, and the caller takes the operator, if something follows what operators
do: autograd, forward mode, torch.func, or whatever traces, counts or profiles operators (except
ExecutionTraceObserver, which cannot be asked). It also does so for tensors that are not plain ones
on the CPU, and for calls that are worth several threads.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from posenc_native.engines import backend

from .following import functorch_active
from .library import LIBRARY

# The public function calls this one and takes half as long again.
increment_version = getattr(torch._C, "_increment_version", torch.autograd.graph.increment_version)

is_dynamo_compiling = torch.compiler.is_dynamo_compiling

# The NumPy module, if it can read tensors: for that torch must have the exchange of DLPack 1.3.
direct: Any = backend.native
if (
    LIBRARY is None
    or direct is None
    or not direct.use_tensors(
        Tensor,
        torch.empty_like,
        torch.is_grad_enabled,
        (
            functorch_active,
            torch._C._len_torch_dispatch_stack,
            torch._C._len_torch_function_stack,
            torch._C._is_tracing,
            torch._C._autograd._profiler_enabled,
            # The only one that knows of profile_all_threads.
            partial(vars(torch.autograd.profiler).get, "_is_profiler_enabled"),
        ),
        vars(forward_ad),
    )
):
    direct = None


def at_once(x: object) -> Any:
    """The NumPy module where it may be asked, else None: it cannot see torch.compile itself."""
    if is_dynamo_compiling() or type(x) is not Tensor or backend.implementation is not direct:
        return None
    return direct
