"""Whatever can follow torch follows calls of the door as it follows the operators.

A call is made twice: as it comes, and with the operator forced. Results, flags, versions and errors
must be the same. Each case says whether the small path is taken, so that a change in torch shows.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch_cases import bits, random  # noqa: E402

import posenc_native as pn  # noqa: E402
from posenc_native.engines.torch import door  # noqa: E402

pytestmark = [
    torch_cases.needs_operators,
    pytest.mark.skipif(
        not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
        reason="this torch does not exchange tensors; any later one does",
    ),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
INV_FREQ = torch.tensor([1.0, 0.1, 0.01, 0.001])
COS, SIN = pn.rotary_tables(torch.arange(3), INV_FREQ)
DIAGONALS, INDEX = random((2, 10), seed=2), torch.arange(10) % 4

# As a patched model binds the rotation of its layers; tables of two axes.
BOUND, BOUND_IN_PLACE = (
    door.backend.native
    and door.backend.native.bind_tables(
        2, "bhsd", 1 << 2, 4, 8, False, "half", False, "same", inplace, False
    )
    for inplace in (False, True)
)


def bound(call, q, k, inplace=False):
    rotated = pn.engines.backend.door.call_bound(call, q, k, COS, SIN)
    if rotated is not NotImplemented:
        return rotated
    return pn.apply_rotary_qk(q, k, None, pn.Tables(COS, SIN), inplace=inplace)


# Calls on q [1, 2, 3, 8] and k [1, 1, 3, 8].
CALLS: dict[str, Callable[..., Any]] = {
    "new": lambda q, k: pn.apply_rotary_qk(q, k, None, INV_FREQ),
    "in place": lambda q, k: pn.apply_rotary_qk(q, k, None, INV_FREQ, inplace=True),
    "one, out": lambda q, k: (pn.apply_rotary(q, None, INV_FREQ, out=torch.empty_like(q)),),
    "one, in place": lambda q, k: (pn.apply_rotary(q, None, INV_FREQ, out=q),),
    "tables": lambda q, k: pn.apply_rotary_qk(q, k, None, pn.Tables(COS, SIN)),
    "bound": lambda q, k: bound(BOUND, q, k),
    "bound, in place": lambda q, k: bound(BOUND_IN_PLACE, q, k, inplace=True),
    "sinusoid": lambda q, k: (pn.sinusoidal(q, 4),),
    "rotary tables": lambda q, k: pn.rotary_tables(q, INV_FREQ),
    "added in place": lambda q, k: (pn.add_sinusoidal(q, 5, out=q),),
    "bias": lambda q, k: (pn.toeplitz_bias(k, 4, 5),),
    "bias added": lambda q, k: (pn.add_toeplitz_bias(q, DIAGONALS),),
    "look-up": lambda q, k: (pn.relative_gather(q, INDEX, 8),),
}
NEW = CALLS["new"]
# The operators that these calls stand for.
OPERATORS = (
    "rotary_qk", "rotary_qk_", "rotary_out", "rotary_", "rotary_qk_from_tables",
    "rotary_qk_from_tables_", "rotary_tables",
    "sinusoidal", "add_sinusoidal_", "toeplitz_bias", "add_toeplitz_bias", "relative_gather",
)  # fmt: skip


def qk():
    return random((1, 2, 3, 8)), random((1, 1, 3, 8), seed=1)


def has_values(tensor):
    """Whether the values of a tensor can be read, whatever is wrong with it."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not tensor.is_cpu:
        return False
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return False
    if torch._is_functional_tensor(tensor) or tensor._is_zerotensor() or tensor.is_complex():
        return False
    end = sum(s * (n - 1) for s, n in zip(tensor.stride(), tensor.shape, strict=True)) + 1
    end += tensor.storage_offset()
    return tensor.untyped_storage().nbytes() >= end * tensor.element_size()


def describe(tensor):
    """All that a caller can tell of a tensor."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    flags = (
        type(tensor).__name__,
        re.sub(r"j\d+", "j", str(tensor.shape)),  # ragged lengths are numbered
        tensor.dtype, str(tensor.device),
        tensor.layout, tensor.requires_grad, tensor.is_leaf, type(tensor.grad_fn).__name__,
        tensor.is_inference(), tensor.is_neg(), tensor.is_conj(),
        None if tensor.is_inference() else tensor._version,
    )  # fmt: skip
    if tensor.layout == torch.strided and not tensor.is_nested:
        flags += (tensor.stride(), tensor.is_contiguous(memory_format=torch.channels_last))
    if has_values(tensor):
        flags += (bits(tensor.resolve_neg()).tolist(),)
    return flags


def outcome(run, call, make):
    """What came of a call: results and arguments, or the error; and what the follower saw."""
    q, k = make()
    seen = None
    try:
        results, seen = run(call, q, k)
        text = [describe(t) for t in results]
    except Exception as error:
        text = [type(error).__name__, str(error).split("\n")[0]]
    try:
        arguments = [describe(t) for t in (q, k)]
    except RuntimeError:  # freed
        arguments = []
    return text + arguments, seen


def failed(result):
    return isinstance(result[0][0], str) and result[0][0].endswith("Error")


def both_ways(run, call, make=qk):
    """Outcomes of the small call and of the operator, and whether the small path was taken."""
    answers = []

    class Spy:
        def __getattr__(self, name):
            def ask(*args):
                answers.append(getattr(pn.engines.backend.native.door, name)(*args))
                return answers[-1]

            return ask

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pn.engines.backend, "door", Spy())
        at_once = outcome(run, call, make)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pn.engines.backend, "door", pn.engines.backend.ClosedDoor())
        by_operator = outcome(run, call, make)
    return at_once, by_operator, any(answer is not NotImplemented for answer in answers)


def test_the_small_path_is_there():
    assert door.IS_OPEN
    assert pn.engines.backend.door is pn.engines.backend.native.door


# --- Modes, profilers, states: all that is entered


class Followed(NamedTuple):
    """enter(): a context that gives a question whether it saw an operator of ours, or None."""

    enter: Callable[[], contextlib.AbstractContextManager[Any]]
    taken: bool  # whether the small path is taken
    sees: bool = False  # whether the context can tell that it saw the operator
    why: str = ""


def ours(names):
    return any("posenc_native" in str(name) for name in names)


@contextlib.contextmanager
def dispatch_mode():
    from torch.utils._python_dispatch import TorchDispatchMode

    names = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(function.name())
            return function(*args, **(kwargs or {}))

    with Mode():
        yield lambda: ours(names)


@contextlib.contextmanager
def function_mode():
    names = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            names.append(function)
            return function(*args, **(kwargs or {}))

    with Mode():
        yield lambda: ours(names)


@contextlib.contextmanager
def functional_mode(pre_dispatch, asked=False):
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    names = []

    class Mode(FunctionalTensorMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(function)
            return super().__torch_dispatch__(function, types, args, kwargs)

    dispatcher = python_dispatcher() if asked else contextlib.nullcontext()
    with dispatcher, Mode(pre_dispatch=pre_dispatch):
        yield lambda: ours(names)


@contextlib.contextmanager
def schema_check(pre_dispatch=False):
    from torch._subclasses.schema_check_mode import SchemaCheckMode

    with SchemaCheckMode() as mode:
        yield lambda: ours(mode.ops)


@contextlib.contextmanager
def flop_counter():
    from torch.utils.flop_counter import FlopCounterMode

    operators = [getattr(torch.ops.posenc_native, name) for name in OPERATORS]
    with FlopCounterMode(
        display=False,
        custom_mapping={operator: lambda *args, **kwargs: 7 for operator in operators},
    ) as counter:
        yield lambda: counter.get_total_flops() > 0


@contextlib.contextmanager
def fake_mode():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        yield None


@contextlib.contextmanager
def logging_mode():
    from torch.testing._internal.logging_tensor import capture_logs_with_logging_tensor_mode

    with capture_logs_with_logging_tensor_mode() as logs:
        yield lambda: ours(logs)


@contextlib.contextmanager
def python_dispatcher():
    from torch._dispatch.python import enable_python_dispatcher

    with enable_python_dispatcher():
        yield None


@contextlib.contextmanager
def profiled(**options):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options) as p:
        yield lambda: ours(event.key for event in p.key_averages())


@contextlib.contextmanager
def profiled_by_autograd():
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        yield lambda: ours(event.key for event in profile.key_averages())


@contextlib.contextmanager
def execution_trace(path):
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(path))
    observer.start()
    seen = []
    try:
        yield lambda: seen[0]
    finally:
        observer.stop()
        observer.unregister_callback()
        seen.append(ours(node["name"] for node in json.loads(path.read_text())["nodes"]))


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield None
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def legacy_vmap():
    torch._C._vmapmode_increment_nesting()
    try:
        yield None
    finally:
        torch._C._vmapmode_decrement_nesting()


@contextlib.contextmanager
def legacy_functionalization():
    torch._enable_functionalization(reapply_views=True)
    try:
        yield None
    finally:
        torch._disable_functionalization()


@contextlib.contextmanager
def kernel(key, register=None):
    """A kernel over ours, which calls it or returns what it was given."""
    names = []
    with torch.library._scoped_library("posenc_native", "IMPL") as library:
        for name in OPERATORS:

            def replaced(*args, name=name, **kwargs):
                names.append(f"posenc_native::{name}")
                if name in ("rotary_qk", "rotary_qk_from_tables", "rotary_tables"):
                    return torch.full_like(args[0], 2.0), torch.full_like(args[1], 3.0)
                if not name.endswith(("_", "_out")):
                    return torch.full_like(args[0], 4.0)
                (kwargs.get("out", args[0])).fill_(5.0)
                return None

            if register is None:
                library.impl(name, replaced, key)
            else:
                register(f"posenc_native::{name}", replaced, library)
        yield lambda: ours(names)


@contextlib.contextmanager
def kernel_past_torch_library():
    names = []
    library = torch._C._dispatch_library("IMPL", "posenc_native", "CPU", "", 0)

    def replaced(*args):
        names.append("posenc_native::rotary_qk")
        return torch.zeros_like(args[0]), torch.zeros_like(args[1])

    library.impl("rotary_qk", "CPU", replaced, False)
    try:
        yield lambda: ours(names)
    finally:
        library.reset()


@contextlib.contextmanager
def elsewhere(enter):
    """The context, on another thread."""
    entered, done = threading.Event(), threading.Event()

    def follow():
        with enter():
            entered.set()
            done.wait(60)

    thread = threading.Thread(target=follow)
    thread.start()
    entered.wait(60)
    try:
        yield None
    finally:
        done.set()
        thread.join()


def silent(context):
    """The context of torch itself, which cannot be asked."""

    @contextlib.contextmanager
    def enter():
        with context():
            yield None

    return enter


def identity(tensor):
    return tensor


NO_GRAD = "nothing is recorded of tensors that require no gradient"
ENTERED: dict[str, Followed] = {
    "nothing": Followed(contextlib.nullcontext, True),
    "TorchDispatchMode": Followed(dispatch_mode, False, True),
    "TorchFunctionMode": Followed(function_mode, False, True),
    "torch.device": Followed(silent(lambda: torch.device("cpu")), False, why="a function mode"),
    "FakeTensorMode": Followed(fake_mode, False),
    "FunctionalTensorMode": Followed(lambda: functional_mode(False), False, True),
    "FunctionalTensorMode, pre": Followed(
        lambda: functional_mode(True), False, why="alone it is not asked, by no operator"
    ),
    "FunctionalTensorMode, pre, asked": Followed(
        lambda: functional_mode(True, asked=True), False, True
    ),
    "SchemaCheckMode": Followed(schema_check, False, True),
    "FlopCounterMode": Followed(flop_counter, False, True),
    "LoggingTensorMode": Followed(logging_mode, False, True),
    "allow_mutation_on_saved_tensors": Followed(
        silent(torch.autograd.graph.allow_mutation_on_saved_tensors), False, why="dispatch mode"
    ),
    "enable_python_dispatcher": Followed(python_dispatcher, False),
    "_enable_functionalization": Followed(legacy_functionalization, False),
    "_vmapmode": Followed(legacy_vmap, False),
    "profile": Followed(profiled, False, True),
    "profile, memory": Followed(
        lambda: profiled(profile_memory=True, record_shapes=True, with_flops=True), False, True
    ),
    "autograd.profiler": Followed(profiled_by_autograd, False, True),
    "record_function": Followed(
        silent(lambda: torch.profiler.record_function("a")), True, why="only with a profiler"
    ),
    "dual_level": Followed(silent(forward_ad.dual_level), False),
    "no_grad": Followed(silent(torch.no_grad), True),
    "enable_grad": Followed(silent(torch.enable_grad), True),
    "detect_anomaly": Followed(silent(torch.autograd.detect_anomaly), True, why=NO_GRAD),
    "set_multithreading_enabled": Followed(
        silent(lambda: torch.autograd.set_multithreading_enabled(False)), True, why=NO_GRAD
    ),
    "saved_tensors_hooks": Followed(
        silent(lambda: torch.autograd.graph.saved_tensors_hooks(identity, identity)),
        True,
        why=NO_GRAD,
    ),
    "autocast": Followed(
        silent(lambda: torch.autocast("cpu", torch.bfloat16)), True, why="dtypes are left alone"
    ),
    "deterministic": Followed(deterministic, True, why="whatever is filled is overwritten"),
    "DisableTorchFunctionSubclass": Followed(silent(torch._C.DisableTorchFunctionSubclass), True),
    "DisableTorchFunction": Followed(silent(torch._C.DisableTorchFunction), True),
    "_DisableTorchDispatch": Followed(silent(torch._C._DisableTorchDispatch), True),
    "_AutoDispatchBelowAutograd": Followed(silent(torch._C._AutoDispatchBelowAutograd), True),
    "kernel for CPU": Followed(lambda: kernel("CPU"), False, True),
    "kernel for AutogradCPU": Followed(lambda: kernel("AutogradCPU"), False, True),
    "kernel for Autograd": Followed(lambda: kernel("Autograd"), False, True),
    "kernel for BackendSelect": Followed(lambda: kernel("BackendSelect"), False, True),
    "kernel for CUDA": Followed(lambda: kernel("CUDA"), True, why="not of this device"),
    "register_kernel": Followed(
        lambda: kernel(
            "CPU", lambda name, f, lib: torch.library.register_kernel(name, "cpu", f, lib=lib)
        ),
        False,
        True,
    ),
    "dispatch mode elsewhere": Followed(lambda: elsewhere(dispatch_mode), True, why="its thread"),
    "function mode elsewhere": Followed(lambda: elsewhere(function_mode), True, why="its thread"),
    "pre-dispatch elsewhere": Followed(
        lambda: elsewhere(lambda: functional_mode(True)), True, why="its thread"
    ),
    "profile elsewhere": Followed(lambda: elsewhere(profiled), True, why="its thread"),
}


def inside(follower):
    def run(call, q, k):
        with follower.enter() as seen:
            results = call(q, k)
        return results, None if seen is None else seen()

    return run


@pytest.mark.parametrize("follower", ENTERED.values(), ids=ENTERED)
def test_what_is_entered(follower, subtests):
    for name, call in CALLS.items():
        with subtests.test(name):
            at_once, by_operator, taken = both_ways(inside(follower), call)
            assert at_once == by_operator
            assert taken == follower.taken
            if follower.sees:
                assert at_once[1] is True or failed(at_once)  # a mode may refuse what it sees


def test_nothing_is_followed_once_it_is_over():
    for follower in ENTERED.values():
        both_ways(inside(follower), NEW)
    assert both_ways(inside(ENTERED["nothing"]), NEW)[2]


@pytest.mark.parametrize("call", [NEW, CALLS["in place"]])
def test_execution_trace_observer(tmp_path, call):
    run = inside(Followed(lambda: execution_trace(tmp_path / "trace.json"), False))
    at_once, by_operator, taken = both_ways(run, call)
    assert at_once == by_operator
    assert at_once[1] is True
    assert not taken


def test_observers_of_all_threads_follow_this_one(tmp_path):
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    for enter in (
        lambda: profiled(experimental_config=everywhere),
        lambda: execution_trace(tmp_path / "trace.json"),
    ):
        at_once, by_operator, taken = both_ways(
            inside(Followed(lambda e=enter: elsewhere(e), 0)), NEW
        )
        assert at_once == by_operator
        assert not taken


def test_inference_mode():
    # Its tensors have no version; those from outside keep theirs.
    for make in (qk, lambda: tuple(t.requires_grad_() for t in qk())):
        for call in CALLS.values():
            run = inside(Followed(silent(torch.inference_mode), True))
            at_once, by_operator, taken = both_ways(run, call, make)
            assert at_once == by_operator
            assert taken


def test_a_kernel_past_torch_library_is_not_seen():
    # Python cannot ask for it, and C++ registers so: door.py says so. Where this fails, torch has
    # learned to tell, or a small call has.
    run = inside(Followed(kernel_past_torch_library, True))
    at_once, by_operator, taken = both_ways(run, NEW)
    assert taken
    assert (at_once[1], by_operator[1]) == (False, True)


def test_an_excluded_key_is_not_seen():
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    run = inside(Followed(silent(lambda: torch._C._ExcludeDispatchKeyGuard(keys)), True))
    at_once, by_operator, taken = both_ways(run, CALLS["in place"])
    assert taken
    assert failed(by_operator)
    assert not failed(at_once)


@pytest.mark.parametrize(
    "key", ["AutogradCPU", "Autograd", "ADInplaceOrView", "BackendSelect", "AutocastCPU"]
)
def test_torch_takes_no_fallback_at_the_keys_of_plain_tensors(key):
    # Else a call would have to ask for fallbacks too. At CPU our kernel would go before it.
    library = torch.library.Library("_", "IMPL")
    try:
        with pytest.raises(RuntimeError):
            library.fallback(lambda *args, **kwargs: None, key)
    finally:
        library._destroy()


# --- Transforms and tracers: all that calls a function


def traced_by_make_fx(**options):
    def run(call, q, k):
        from torch.fx.experimental.proxy_tensor import make_fx

        graph = make_fx(lambda q, k: tuple(call(q, k)), **options)(q.clone(), k.clone())
        return graph(q, k), ours(node.target for node in graph.graph.nodes)

    return run


def traced_by_jit(call, q, k):
    function = lambda q, k: tuple(call(q, k))  # noqa: E731
    traced = torch.jit.trace(function, (q.clone(), k.clone()), check_trace=False)
    return traced(q, k), ours([traced.graph])


def exported(call, q, k):
    class Module(torch.nn.Module):
        def forward(self, q, k):
            return tuple(call(q, k))

    program = torch.export.export(Module(), (q, k))
    return program.module()(q, k), ours(node.target for node in program.graph.nodes)


def compiled(call, q, k):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    results = torch.compile(call, backend=backend, fullgraph=True)(q, k)
    return results, ours(node.target for graph in graphs for node in graph.graph.nodes)


def traced_by_fx(call, q, k):
    class Module(torch.nn.Module):
        def forward(self, q, k):
            return call(q, k)

    return torch.fx.symbolic_trace(Module())(q, k), None


def mapped(call, q, k):
    return torch.func.vmap(call)(torch.stack((q, q)), torch.stack((k, k))), None


def graded(call, q, k):
    return torch.func.grad(lambda q, k: (call(q, k)[0] ** 2).sum(), (0, 1))(q, k), None


def jvp(call, q, k):
    return torch.func.jvp(lambda q, k: call(q, k)[0], (q, k), (q, k)), None


def vjp(call, q, k):
    result, back = torch.func.vjp(lambda q, k: call(q, k)[0], q, k)
    return (result, *back(result)), None


def jacrev(call, q, k):
    return (torch.func.jacrev(lambda q: call(q, k)[0])(q),), None


def functionalized(call, q, k):
    return torch.func.functionalize(lambda q, k: tuple(call(q, k)))(q, k), None


def linearized(call, q, k):
    result, push = torch.func.linearize(lambda q: call(q, k)[0], q)
    return (result, push(q)), None


def checkpointed(call, q, k):
    q = q.requires_grad_()
    result = torch.utils.checkpoint.checkpoint(call, q, k, use_reentrant=False)[0]
    return (result, *torch.autograd.grad(result.square().sum(), q)), None


def dual(call, q, k):
    with forward_ad.dual_level():
        return call(forward_ad.make_dual(q, q.clone()), k), None


TRANSFORMS: dict[str, tuple[Callable[..., Any], bool]] = {  # and whether they see the operator
    "make_fx": (traced_by_make_fx(tracing_mode="real"), True),
    "make_fx, fake": (traced_by_make_fx(tracing_mode="fake", _allow_non_fake_inputs=True), True),
    "make_fx, symbolic": (
        traced_by_make_fx(tracing_mode="symbolic", _allow_non_fake_inputs=True),
        True,
    ),
    "make_fx, pre_dispatch": (traced_by_make_fx(pre_dispatch=True), True),
    "jit.trace": (traced_by_jit, True),
    "fx.symbolic_trace": (traced_by_fx, False),
    "export": (exported, True),
    "compile": (compiled, True),
    "vmap": (mapped, False),
    "grad": (graded, False),
    "jvp": (jvp, False),
    "vjp": (vjp, False),
    "jacrev": (jacrev, False),
    "functionalize": (functionalized, False),
    "linearize": (linearized, False),
    "checkpoint": (checkpointed, False),
    "make_dual": (dual, False),
}


@pytest.mark.parametrize(("run", "sees"), TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms_and_tracers(run, sees):
    at_once, by_operator, taken = both_ways(run, NEW)
    assert at_once == by_operator
    # linearize computes the result first, without following it. Of others a Function is followed,
    # and inside of it nothing is.
    assert taken == (run in (linearized, graded, vjp, jacrev, checkpointed))
    if sees:
        assert at_once[1] is True


# --- Tensors that are not plain


class Tagged(torch.Tensor):
    pass


class Wrapped(torch.Tensor):
    """A tensor in a tensor, unwrapped by its __torch_dispatch__."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def unwrap(x):
            return x.inner if isinstance(x, Wrapped) else x

        return function(*map(unwrap, args), **{n: unwrap(x) for n, x in (kwargs or {}).items()})


class Disabled(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


def freed(bytes_left, offset=0):
    def make(tensor):
        n = tensor.numel()
        part = torch.cat((tensor.flatten(), tensor.flatten()))[offset : offset + n]
        part = part.view(tensor.shape)
        part.untyped_storage().resize_(bytes_left)
        return part

    return make


def made(make, context):
    def inside_context(tensor):
        with context():
            return make(tensor)

    return inside_context


def negated(tensor):
    return torch.imag(torch.complex(tensor, tensor).conj())


# Autograd follows a Function, which takes the small path.
IN_FUNCTION = "in a Function"
FUNCTIONS = [CALLS[name] for name in ("new", "tables", "bound")]
# Each makes q, and k alike, from a plain tensor; and whether the small path takes them.
TENSORS: dict[str, tuple[Callable[[Any], Any], bool | str]] = {
    "transposed": (lambda t: t.transpose(1, 2).contiguous().transpose(1, 2), True),
    "channels_last": (lambda t: t.contiguous(memory_format=torch.channels_last), True),
    "strided": (lambda t: torch.stack((t, t), -1)[..., 0], True),
    "offset": (lambda t: torch.cat((t, t))[1:], True),
    "shared": (lambda t: t.clone().share_memory_(), True),
    "detached": (lambda t: t.clone().requires_grad_().detach(), True),
    "subclass": (lambda t: t.as_subclass(Tagged), False),
    "__torch_dispatch__": (Wrapped, False),
    "__torch_function__ disabled": (lambda t: t.as_subclass(Disabled), False),
    "Parameter": (torch.nn.Parameter, False),
    "Parameter without gradient": (lambda t: torch.nn.Parameter(t, requires_grad=False), False),
    "Buffer": (torch.nn.Buffer, True),  # a tensor with a mark
    "masked": (lambda t: torch.masked.masked_tensor(t, t > 0), False),
    "nested": (lambda t: torch.nested.nested_tensor(list(t)), False),
    "nested, jagged": (
        lambda t: torch.nested.nested_tensor(list(t), layout=torch.jagged),
        False,
    ),
    "negative": (torch._neg_view, False),
    "imaginary part of a conjugate": (negated, False),
    "zeros": (lambda t: torch._efficientzerotensor(t.shape), False),
    "complex": (lambda t: torch.complex(t, t), False),
    "conjugate": (lambda t: torch.complex(t, t).conj(), False),
    "sparse": (lambda t: t.to_sparse(), False),
    "mkldnn": (lambda t: t.to_mkldnn(), False),
    "quantized": (lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8), False),
    "meta": (lambda t: t.to("meta"), False),
    "functional": (torch._to_functional_tensor, False),
    "leaf": (lambda t: t.clone().requires_grad_(), IN_FUNCTION),
    "not a leaf": (lambda t: t.clone().requires_grad_() * 1, IN_FUNCTION),
    "view of a leaf": (lambda t: t.clone().requires_grad_()[:], IN_FUNCTION),
    "view of a leaf, no_grad": (
        made(lambda t: t.clone().requires_grad_()[:], torch.no_grad),
        IN_FUNCTION,
    ),
    "expanded": (lambda t: t[..., :1].expand(t.shape), True),
    "freed": (freed(0), False),
    "freed, offset": (freed(0, 4), False),
    "too short": (freed(95), False),
}


@pytest.mark.parametrize(("make", "takes"), TENSORS.values(), ids=TENSORS)
def test_tensors_that_are_not_plain(make, takes, subtests):
    def run(call, q, k):
        return call(q, k), None

    for name, call in CALLS.items():
        with subtests.test(name):
            at_once, by_operator, taken = both_ways(run, call, lambda: tuple(map(make, qk())))
            assert at_once == by_operator
            taken_here = call in FUNCTIONS if takes == IN_FUNCTION else takes
            assert taken == (taken_here and not failed(at_once))
