"""`patch` and `unpatch`: make a model rotate with this library, and restore it."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from posenc_native.core.calls.arguments import wrong_type
from posenc_native.core.calls.suggestions.vocabulary import answered

from .forms import NotServed
from .groups import groups_sharing_tables
from .instances import MARK, Plan, install, restore
from .learned.processors import LearnedPlanner
from .planner import Planner
from .signatures import makes_tables

__all__ = ["Patch", "patch", "unpatch"]


@answered
def patch(model: Any, *, inplace: bool | None = None, fuse_norm: bool = False) -> Patch:
    """Make `model` rotate its queries and keys with this library.

    Args:
        model: a model of transformers, diffusers or timm, any module that contains one (a wrapper,
            an adapter), or a diffusers pipeline. In a pipeline its diffusers models are patched,
            not its text encoders. Weights and buffers must be loaded (not on the meta device).
        inplace: whether to rotate q and k in place instead of into new memory; writing there takes
            several times as long for long prompts. Never done while a gradient is recorded.

            None, the default: in place if nothing else can see it. Every call with heads of 4 MiB
            or more checks this. The code of the attention or of its processor must assign the
            results to the names of q and k. No forward hook or forward pre-hook may be registered
            on a module inside the attention or on all modules. Nothing else may refer to q, k or
            their memory (a list, a view, an array, a cache of the projection, q and k that are
            slices of one projection). torch must have allocated the memory. No mode, transform or
            torch.compile may be active. If a condition cannot be checked, fresh memory is used.

            True: always. This is correct as long as nothing uses q and k from before the rotation.
            No attention module of transformers 5.23 that was tested does (112 models, results
            compared bit for bit), but a forward hook that keeps the output of a ``q_proj`` would.

            False: never.
        fuse_norm: normalize q and k in the pass that rotates them
            (`posenc_native.norm_rotary_qk`), if an attention applies an RMS norm to them
            before: Qwen3, Gemma 3 and 3n, EXAONE 4, LFM2, GLM-4-MoE; over all heads: OLMo 2 and 3,
            OLMoE, MiniMax-M2. Values are rounded once for both steps, so in half precision they
            differ from the model's in the last bit. For each class, three checks come first: in its
            source, only the rotation uses the result of the norm; calls of the norm show its
            formula; the model's method and the fused one, run with small inputs, agree. ``.fused``
            names the modules, ``.notes`` says why another is not fused. The norm's module is called
            as before while it has a hook, another forward, or another module (an adapter) in its
            place. Fused results go into fresh memory even with ``inplace=True``.

    Returns:
        A handle. ``.undo()`` restores every module; as a context manager, the handle does so on
        exit. ``.patched`` names the patched modules; ``.skipped`` says why a rotary module was left
        alone.

    Raises:
        TypeError: `model` is not a torch module.
        ValueError: nothing in it can be patched (the message says what was found), or it is already
            patched.

    A part of a model is patched if a probe finds that it rotates by position. This covers models
    that make their tables in one module and rotate in a function:

    - text: Llama, Mistral, Mixtral, Qwen2, Qwen3, Gemma 1 to 4, Phi to Phi-3.5-MoE, GPT-NeoX,
      StableLM, OLMo, Cohere, GLM, ERNIE 4.5, Falcon, gpt-oss, EXAONE, SmolLM3, ModernBERT and
      most others, with partly rotated heads and every scaling of transformers;
      DeepSeek-V2 and Llama 4, whose tables are complex; DeepSeek-V3 and other latent attention;
      GPT-J and CodeGen, which keep a table in every attention module; RoFormer
    - tokens with a position on several axes: Qwen2-VL, Qwen2.5-VL, Qwen3-VL, GLM-4V, ERNIE 4.5 VL
      and HunYuan-VL, the last with a composition of torch operations, because the two dims of a
      pair have different axes
    - speech: Wav2Vec2-Conformer, Wav2Vec2-BERT and SeamlessM4T with rotary encoding, which rotate
      hidden states before the projections
    - vision: the towers of these models, Pixtral, DINOv3, SAM 2 and 3 (also their memory), Gemma
      4, Llama 4, Kimi, MiniMax-M3, V-JEPA 2 (also a composition)

    In diffusers and timm, a function is patched if it is called apply_rotary_emb,
    apply_rot_embed_cat or similar, wherever it is defined: in the file of a module or of an
    attention processor, imported or written inside a method. Its use of tables is learned on its
    first call, with random numbers. Tables may be two tensors, one with sin and cos side by side,
    complex numbers, matrices or angles; with a column for each dim or for each pair; for each
    token, head or row of the batch. If a call is not a rotation by tables, or the columns of a pair
    differ, it goes to the model's function, and ``.skipped`` then has the reason under the
    function's name. Modules that make tables by a formula run it in float64 and round once; tables
    from elsewhere stay the model's own. Compiled code (torch.compile) keeps the model's function,
    which the compiler fuses. These models are patched in this way: Flux 1 and 2, Chroma, Bria, LTX
    1 and 2, Wan, SkyReels, Qwen-Image, HunyuanVideo, HunyuanDiT, CogVideoX, CogView 4, Cosmos,
    Lumina, OmniGen, Stable Audio, HiDream, Kandinsky 5, Sana-Video, Z-Image, Mochi and 30 others;
    EVA02, DINOv3, PE, NaFlex, SAM and all others of timm.

    A function that does more than rotate (or a call that requests more) stays the model's own and
    gets exact tables. These are not patched, and ``.skipped`` lists them with the reason: learned
    frequencies (Mistral Large 4), tables of angles whose cosine the attention computes (CLVP),
    tables made from lengths or features instead of positions (EfficientLoFTR, MusicFlamingo,
    ESMFold2), attention or tables compiled by torch.jit (scripted or
    traced). Other compiled modules, such as an MLP or a norm, stay as they are.

    Frequencies are the float32 values of transformers, bit for bit, because the checkpoint
    was trained with them. If ``model.half()`` has rounded them, they are recomputed from the
    configuration. ``.notes`` says where they differ from the configuration. Logits differ
    from the model's own by the error of its phase.

    - Gradients flow as before. ``state_dict`` is the same before and after.
    - ``model.half()``, ``.bfloat16()``, ``.to(...)`` may come before or after: frequencies and
      tables stay float32. In half precision the rotated values are rounded once, not four times.
    - ``torch.compile(model, fullgraph=True)`` works; patch and undo *before* compiling, or call
      ``torch.compiler.reset()`` after. ``torch.jit.script`` does not accept a patched model.
    - ``copy.deepcopy(model)`` gives a separate patched model; `unpatch` restores it.
    - ``pickle`` of a whole model (``torch.save(model)``) raises a TypeError while methods of
      it are patched: call ``handle.undo()`` first. ``save_pretrained`` and ``state_dict`` work.

    Example::

        model = AutoModelForCausalLM.from_pretrained(...)
        handle = posenc_native.hf.patch(model)
        model.generate(**inputs)
        handle.undo()
    """
    skipped: dict[str, str] = {}
    learned = LearnedPlanner(skipped.setdefault, inplace)
    modules: dict[str, nn.Module] = {}
    plans: dict[str, Plan] = {}
    for prefix, root in _roots(model).items():
        within = dict(root.named_modules())
        for name, module in within.items():
            if MARK in module.__dict__:
                raise ValueError(
                    f"patch: model: expected a model that is not patched, got one whose module "
                    f"{name or type(module).__name__!r} is; call .undo() of its handle, or unpatch"
                )
        planned, left = _plans_of(within, inplace, fuse_norm)
        own = _with_tables_of_their_own(prefix, within, planned, learned)
        for members, reason in left:
            taken = [name for name in members if name in own]
            for name in taken:
                own[name].note = f"tables are the model's own: {reason}"
            # No reason is reported for makers of tables if their users were patched one by one.
            if not taken and not (own and all(makes_tables(within[name]) for name in members)):
                skipped.update(dict.fromkeys((prefix + name for name in members), reason))
        planned |= own
        modules |= {prefix + name: module for name, module in within.items()}
        plans |= {prefix + name: plan for name, plan in planned.items()}
    if not plans:
        raise ValueError(_nothing_to_patch(modules, skipped))
    for name in plans:
        install(modules[name], plans[name])
    patched = {name: modules[name] for name in modules if name in plans}
    notes = {name: plans[name].note for name in patched if plans[name].note}
    fused = tuple(name for name in patched if plans[name].fused)
    return Patch(patched, skipped, notes, fused)


def _roots(model: Any) -> dict[str, nn.Module]:
    """The models in the argument, by the prefix of their modules' names."""
    if isinstance(model, nn.Module):
        return {"": model}
    parts = getattr(model, "components", None)
    if not isinstance(parts, dict):
        hint = ""
        if isinstance(model, (str, os.PathLike)):
            hint = "write AutoModelForCausalLM.from_pretrained(...) first, and patch its result"
        elif hasattr(model, "model_type"):
            hint = "write AutoModelForCausalLM.from_config(...) first, and patch its result"
        expected = "a torch.nn.Module or a pipeline of diffusers"
        wrong_type("patch", "model", expected, type(model).__name__, hint)
    # A diffusers pipeline: its own models, not its text encoders.
    roots: dict[str, nn.Module] = {}
    for name, part in parts.items():
        own = isinstance(part, nn.Module) and type(part).__module__.startswith("diffusers.")
        if own and all(part is not other for other in roots.values()):
            roots[f"{name}."] = part
    return roots


def _with_tables_of_their_own(
    prefix: str, modules: dict[str, nn.Module], planned: dict[str, Plan], learned: LearnedPlanner
) -> dict[str, Plan]:
    """Plans for modules outside the patched groups, each planned by itself.

    Models of transformers are patched as a group or not at all.
    """
    plans = {}
    own = {
        name: module
        for name, module in modules.items()
        if name not in planned and not type(module).__module__.startswith("transformers.")
    }
    for name, module in own.items():
        plan = learned.plan(prefix + name, module)
        if plan is not None:
            plans[name] = plan
    for name in own.keys() - plans.keys() if plans else ():
        plan = learned.exact(own[name])
        if plan is not None:
            plans[name] = plan
    return plans


def _plans_of(
    modules: dict[str, nn.Module], inplace: bool | None, fuse_norm: bool
) -> tuple[dict[str, Plan], list[tuple[list[str], str]]]:
    """Plans for modules that share tables, and the groups that get none, with the reason."""
    plans: dict[str, Plan] = {}
    left: list[tuple[list[str], str]] = []
    planner = Planner(modules, inplace, fuse_norm)
    for members in groups_sharing_tables(modules):
        # All of a group or nothing: a function that is not replaced must never get an exact table.
        try:
            # Modes that the caller has enabled must not change what probing finds.
            with torch.no_grad(), torch.device("cpu"), torch.autocast("cpu", enabled=False):
                plans.update(planner.plan({name: modules[name] for name in members}))
        except NotServed as reason:
            left.append((members, str(reason)))
    return plans, left


def unpatch(model: Any) -> None:
    """Restore every patched module in `model`; other modules stay as they are.

    ``handle.undo()`` restores the modules that it patched. This function finds them by itself, for
    instance in a ``copy.deepcopy`` of a patched model.
    """
    for root in _roots(model).values():
        for module in root.modules():
            restore(module)


class Patch:
    """The result of `patch`, which can undo it.

    Attributes:
        patched: names of the patched modules, in the order of the model.
        skipped: name to reason, for rotary and attention modules that were left alone.
        notes: name to remark, for some patched modules: their frequencies differ from the
            configuration (set by hand, or lost while loading), the model's own function rotates,
            with exact tables, or a norm is done separately.
        fused: names of the attention modules that norm and rotate q and k in one pass.
    """

    def __init__(
        self,
        modules: dict[str, nn.Module],
        skipped: dict[str, str],
        notes: dict[str, str],
        fused: tuple[str, ...],
    ) -> None:
        self._modules = list(modules.values())
        self.patched: tuple[str, ...] = tuple(modules)
        self.skipped = skipped
        self.notes = notes
        self.fused = fused

    def undo(self) -> None:
        """Restore every module that was patched. A second call does nothing."""
        for module in self._modules:
            restore(module)
        self._modules = []

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        state = "active" if self._modules else "undone"
        return f"<Patch of {len(self.patched)} modules, {len(self.skipped)} skipped, {state}>"


def _nothing_to_patch(modules: dict[str, nn.Module], skipped: dict[str, str]) -> str:
    if skipped:
        name, reason = next(iter(skipped.items()))
        got = f"{len(skipped)} rotary modules that cannot be patched, the first {name!r}: {reason}"
    else:
        kinds = sorted({type(m).__name__ for m in modules.values()} - set(dir(nn)))
        got = f"none; its classes are {', '.join(kinds) or 'torch.nn only'}"
    return (
        "patch: model: expected a model of transformers, diffusers or timm whose attention calls a "
        "rotary function (apply_rotary_pos_emb, apply_rotary_emb, apply_rot_embed_cat), "
        f"got {got}; in your own model, call posenc_native.apply_rotary_qk"
    )
