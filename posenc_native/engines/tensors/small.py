"""Small calls pass torch's dispatcher by: the NumPy module reads the tensors.

The dispatcher takes longer than they do. Of a small call the module does what an operator does,
unless somebody follows what operators do: who traces, counts or profiles them (but not
ExecutionTraceObserver, which cannot be asked), torch.func, forward mode, autograd. It returns
NotImplemented then, and where tensors are not plain ones on the CPU or are worth several threads.
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

# That of torch.autograd.graph, which calls this one, takes half as long again.
increment_version = getattr(torch._C, "_increment_version", torch.autograd.graph.increment_version)

is_dynamo_compiling = torch.compiler.is_dynamo_compiling

# The NumPy module, if it can read tensors: where torch has the exchange of DLPack 1.3.
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
            # With profile_all_threads this one alone knows.
            partial(vars(torch.autograd.profiler).get, "_is_profiler_enabled"),
        ),
        vars(forward_ad),
    )
):
    direct = None


def at_once(x: object) -> Any:
    """The NumPy module where it may be asked, else None: of torch.compile it can know nothing."""
    if is_dynamo_compiling() or type(x) is not Tensor or backend.implementation is not direct:
        return None
    return direct
