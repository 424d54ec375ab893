"""Attention over a row that lies on four processes, with ALiBi: the same as on one.

    torchrun --nproc-per-node 4 examples/ring_attention.py

Ring attention: each process keeps its queries and sees all keys and values, which go round from
neighbor to neighbor; a running softmax joins the steps. The bias of a step is that of the
distances between its own tokens and those of whose keys are there: `rectangles` says where they
are among the diagonals of the whole row. Ulysses: an exchange turns parts of rows with all heads
into whole rows with some of the heads, and back; the bias is that of those heads, `heads=`.

Prints how far results are from those of one process, and fails beyond the bound. Forward alone:
examples/sharded_training has gradients.
"""

from __future__ import annotations

import argparse
import os
import sys

try:
    import torch
    import torch.distributed as dist
    from torch import Tensor

    import posenc_native as pn
except ImportError as error:
    sys.exit(f"ring_attention: {error}: pip install 'posenc-native[torch]'")

ORDERS = ("contiguous", "zigzag", "striped")
# A result is a mean of values of about 1, summed in another order: some roundings of float32.
BOUND = 2.0**-18


def main() -> None:
    """Compare every order, and Ulysses, with one process."""
    parser = argparse.ArgumentParser("ring_attention", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--length", type=int, default=1024, help="tokens of a row")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="64 tokens")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        sys.exit("ring_attention: start it with: torchrun --nproc-per-node 4 " + sys.argv[0])
    length = 64 if options.quick else options.length
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)  # the same on every rank: what one process would have
    q, k, v = torch.randn(3, 2, options.heads, length, 32).unbind()
    expected = attention(q, k, v)
    found = {f"ring, {order}": ring(q, k, v, order) for order in ORDERS}
    found["Ulysses"] = ulysses(q, k, v)
    failed = False
    for name, (part, own) in found.items():
        off = (own - part.shard(expected, 2)).abs().max()
        dist.all_reduce(off, dist.ReduceOp.MAX)
        failed |= bool(off > BOUND)
        if rank == 0:
            print(f"{name:20} {ranks} processes, {length} tokens: off by {off:.1e} at most")
    dist.destroy_process_group()
    if failed:
        sys.exit(f"ring_attention: expected results within {BOUND:.1e} of one process")


def causal_alibi(heads: int, length: int, own: tuple[int, int] | None = None) -> Tensor:
    """Diagonals ``[H, 2 * length - 1]`` of ALiBi and a causal mask: -inf for later keys."""
    return pn.relative.alibi_diagonals(heads, length, length, causal=True, heads=own, device="cpu")


def attention(q: Tensor, k: Tensor, v: Tensor, own: tuple[int, int] | None = None) -> Tensor:
    """Of whole rows, [b, H, s, d]; own: which share of all heads they are."""
    heads = q.shape[1] * (own[1] if own else 1)
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    pn.add_toeplitz_bias(scores, causal_alibi(heads, q.shape[2], own), out=scores)
    return scores.softmax(-1) @ v


def ring(
    q: Tensor, k: Tensor, v: Tensor, order: str
) -> tuple[pn.positions.ContextParallel, Tensor]:
    """The part of this rank, and what attention gives for its queries."""
    rank, ranks, length = dist.get_rank(), dist.get_world_size(), q.shape[2]
    part = pn.positions.ContextParallel(rank, ranks, order)
    diagonals = causal_alibi(q.shape[1], length)
    own_q = part.shard(q, 2) * q.shape[-1] ** -0.5
    keys_values = torch.stack([part.shard(k, 2), part.shard(v, 2)])
    # The first step has the keys of this rank: each query sees itself, no maximum stays -inf.
    best = torch.full((*own_q.shape[:-1], 1), -torch.inf)
    total, mixed = torch.zeros_like(best), torch.zeros_like(own_q)
    for step in range(ranks):
        theirs = (rank - step) % ranks
        arriving, sent = send_on(keys_values)  # while this step computes
        keys, values = keys_values
        scores = own_q @ keys.mT
        for r in part.rectangles(length, keys=theirs):
            some = scores[:, :, r.queries, r.keys]
            pn.add_toeplitz_bias(some, diagonals[:, r.diagonals], out=some)
        # A running softmax: what was summed so far shrinks where a higher score comes.
        higher = torch.maximum(best, scores.amax(-1, keepdim=True))
        shrink, weights = torch.exp(best - higher), torch.exp(scores - higher)
        total = total * shrink + weights.sum(-1, keepdim=True)
        mixed = mixed * shrink + weights @ values
        best = higher
        for request in sent:
            request.wait()
        keys_values = arriving
    return part, mixed / total


def send_on(tensor: Tensor) -> tuple[Tensor, list[dist.Work]]:
    """The tensor goes to the next rank, and that of the rank before arrives."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(tensor)
    if ranks == 1:
        return tensor, []
    return arriving, dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, tensor, (rank + 1) % ranks),
            dist.P2POp(dist.irecv, arriving, (rank - 1) % ranks),
        ]
    )


def ulysses(q: Tensor, k: Tensor, v: Tensor) -> tuple[pn.positions.ContextParallel, Tensor]:
    """As `ring`, with whole rows of some of the heads in between."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    part = pn.positions.ContextParallel(rank, ranks, "contiguous")
    qkv = torch.stack([part.shard(x, 2) for x in (q, k, v)])  # [3, b, H, s / ranks, d]
    rows = exchanged(qkv, 2, 3)  # [3, b, H / ranks, s, d]
    mixed = attention(*rows.unbind(), own=(rank, ranks))
    return part, exchanged(mixed, 2, 1)


def exchanged(x: Tensor, split: int, join: int) -> Tensor:
    """Split along one axis; piece r goes to rank r; what arrives is joined along another."""
    ranks = dist.get_world_size()
    pieces = torch.stack(x.chunk(ranks, split))
    arrived = torch.empty_like(pieces)
    dist.all_to_all_single(arrived, pieces)
    return torch.cat(list(arrived), join)


if __name__ == "__main__":
    main()
