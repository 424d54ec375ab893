"""Context parallelism: each order against torch's balancers and TransformerEngine's arithmetic."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from outside import module

import posenc_native as pn

RANKS = range(1, 17)
ORDERS = ["contiguous", "zigzag", "striped", "head_tail"]


def parts(ranks: int, order: str) -> list[pn.positions.ContextParallel]:
    return [pn.positions.ContextParallel(rank, ranks, order) for rank in range(ranks)]


def documents(ranks: int, seed: int, empty: bool = False) -> np.ndarray:
    """Where documents begin, of which each is a multiple of 2 * ranks long."""
    rng = np.random.default_rng(seed)
    lengths = 2 * ranks * rng.integers(0 if empty else 1, 6, rng.integers(1, 7))
    return np.concatenate([[0], np.cumsum(lengths)])


def balancer(name: str):
    return getattr(
        module("torch.distributed.tensor.experimental._context_parallel._load_balancer"), name
    )


# --- Rows


@pytest.mark.parametrize("order", ["zigzag", "head_tail"])
def test_rows_are_those_of_torch(order):
    torch = module("torch")
    for ranks, chunk in itertools.product(RANKS, (1, 3)):
        length = 2 * ranks * chunk
        theirs = balancer("_HeadTailLoadBalancer")(length, ranks, torch.device("cpu"))
        forth, back = (theirs._generate_indices(restore=restore) for restore in (False, True))
        gathered = parts(ranks, order)[0].gathered_positions(length, device="cpu")
        np.testing.assert_array_equal(gathered, forth.reshape(-1))
        row = torch.arange(length) * 7
        for part in parts(ranks, order):
            own = part.positions(length, device="cpu")
            place = part.rank * len(own)
            assert torch.equal(own, gathered[place : place + len(own)])
            assert torch.equal(part.shard(row, 0), row[own])
            assert torch.equal(part.restore(row[gathered], 0), row)
        assert torch.equal(torch.argsort(gathered), back.reshape(-1))


@pytest.mark.parametrize("order", ORDERS)
def test_ranks_have_every_position_once(order):
    shards = [part.positions(48) for part in parts(4, order)]
    np.testing.assert_array_equal(np.sort(np.concatenate(shards)), np.arange(48))
    expected = {
        "contiguous": np.arange(12) + 12,
        "striped": np.arange(1, 48, 4),
    }.get(order, [*range(6, 12), *range(36, 42)])
    np.testing.assert_array_equal(shards[1], expected)
    own = pn.positions.ContextParallel(1, 4, order=order).positions(48)
    np.testing.assert_array_equal(own, expected)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("of_torch", [False, True])
def test_several_axes_are_sharded(order, of_torch):
    torch = module("torch") if of_torch else None
    given = np.random.default_rng(0).integers(0, 99, (3, 2, 48))
    x = torch.from_numpy(given) if of_torch else given
    shards = [part.shard(x, -1) for part in parts(4, order)]
    for part, shard in zip(parts(4, order), shards, strict=True):
        np.testing.assert_array_equal(shard, given[..., part.positions(48)])
    joined = torch.cat(shards, -1) if of_torch else np.concatenate(shards, -1)
    np.testing.assert_array_equal(parts(4, order)[0].restore(joined, -1), given)
    # The axis of tokens first: whole tokens move.
    shard = parts(4, order)[2].shard(x.T if not of_torch else x.permute(2, 1, 0), 0)
    np.testing.assert_array_equal(shard, given.T[parts(4, order)[2].positions(48)])


# --- Packed rows


def of_transformer_engine(cu_seqlens: np.ndarray, rank: int, ranks: int) -> list[int]:
    """Positions by the index arithmetic of its fused rotary kernel for thd.

    Source: transformer_engine/common/fused_rope/fused_rope.cu: bounds over ranks, then the first
    half of a sequence's tokens counts on from the head of the rank, the others from its tail.
    """
    positions = []
    for start, end in itertools.pairwise(cu_seqlens // ranks):
        here = end - start
        for s_id in range(here):
            if s_id < here // 2:
                positions.append(s_id + rank * here // 2)
            else:
                positions.append(s_id + here * ranks - (rank + 1) * here // 2 - here // 2)
    return positions


@pytest.mark.parametrize("seed", range(4))
def test_zigzag_of_packed_rows_is_that_of_transformer_engine(seed):
    for ranks in RANKS:
        bounds = documents(ranks, seed, empty=True)
        for rank in range(ranks):
            ours = pn.positions.packed_positions(bounds, bounds[-1], rank=rank, ranks=ranks)
            assert ours.tolist() == of_transformer_engine(bounds, rank, ranks)


@pytest.mark.parametrize("seed", range(4))
def test_head_tail_of_packed_rows_is_that_of_torch(seed):
    torch = module("torch")
    for ranks in RANKS:
        bounds = documents(ranks, seed)
        lengths = np.diff(bounds).tolist()
        theirs = balancer("_PerDocumentHeadTailLoadBalancer")(
            [lengths], ranks, torch.device("cpu")
        )._generate_indices(restore=False)
        ours = [part.packed(bounds, bounds[-1]).indices for part in parts(ranks, "head_tail")]
        np.testing.assert_array_equal(np.concatenate(ours), theirs.reshape(-1))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("of_torch", [False, True])
def test_parts_of_packed_rows_belong_together(order, of_torch):
    torch = module("torch") if of_torch else None
    for ranks, rest in itertools.product((1, 2, 3, 8), (0, 2)):
        bounds = documents(ranks, ranks, empty=True)
        total = int(bounds[-1]) + rest * ranks  # tokens after the last sequence
        start = np.arange(len(bounds) - 1) * 10
        given = (torch.from_numpy(bounds), torch.from_numpy(start)) if of_torch else (bounds, start)
        positions = pn.positions.packed_positions(bounds, total, start=start)
        segments = pn.positions.packed_segments(bounds, total)
        seen = []
        for part in parts(ranks, order):
            own = part.packed(given[0], total, start=given[1])
            rank = part.rank
            indices = np.asarray(own.indices)
            np.testing.assert_array_equal(own.positions, positions[indices])
            np.testing.assert_array_equal(own.segments, segments[indices])
            # Its own bounds: the sequences in their order, each with its tokens on this rank.
            for document, (begin, end) in enumerate(itertools.pairwise(own.cu_seqlens.tolist())):
                assert (segments[indices[begin:end]] == document).all()
            assert (segments[indices[int(own.cu_seqlens[-1]) :]] == len(bounds) - 1).all()
            again = pn.positions.packed_positions(
                given[0], total, start=given[1], rank=rank, ranks=ranks, order=order
            )
            np.testing.assert_array_equal(again, own.positions)
            seen.append(indices)
        assert sorted(np.concatenate(seen).tolist()) == list(range(total))


# --- Biases in the steps of a ring


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_rectangles_are_the_bias_of_the_whole(order, ranks):
    length, heads = 4 * ranks, 3
    diagonals = np.random.default_rng(ranks).standard_normal((heads, 2 * length - 1), np.float32)
    whole = pn.toeplitz_bias(diagonals, length, length)
    for queries, keys in itertools.product(parts(ranks, order), repeat=2):
        expected = whole[:, queries.positions(length)][:, :, keys.positions(length)]
        scores = np.full(expected.shape, np.nan, np.float32)
        for r in queries.rectangles(length, keys.rank):
            shape = scores[:, r.queries, r.keys].shape[1:]
            scores[:, r.queries, r.keys] = pn.toeplitz_bias(diagonals[:, r.diagonals], *shape)
            assert queries.positions(length)[r.queries][0] == r.first_query
            assert keys.positions(length)[r.keys][0] == r.first_key
        np.testing.assert_array_equal(scores, expected)


def test_rectangles_of_nothing():
    for order in ORDERS:
        for r in pn.positions.ContextParallel(1, 2, order).rectangles(0, 0):
            assert pn.toeplitz_bias(np.zeros((1, 3))[:, r.diagonals], 0, 0).shape == (1, 0, 0)


def test_columns_are_cut_as_diagonals_are():
    length, ranks = 16, 2
    index = pn.relative.clipped_index(length, length, 3)
    x = np.random.default_rng(1).standard_normal((length, 7), np.float32)
    whole = pn.relative_gather(x, index, length)
    for queries, keys in itertools.product(parts(ranks, "zigzag"), repeat=2):
        own = x[queries.positions(length)]
        for r in queries.rectangles(length, keys.rank):
            count = r.keys.stop - r.keys.start
            found = pn.relative_gather(own[r.queries], index[r.diagonals], count)
            rows = queries.positions(length)[r.queries]
            columns = keys.positions(length)[r.keys]
            np.testing.assert_array_equal(found, whole[rows][:, columns])


# --- Nothing is read from a device; errors


def test_shapes_do_not_depend_on_values():
    """On the device meta there are no values: what runs there reads none."""
    torch = module("torch")
    bounds = torch.empty(4, dtype=torch.int32, device="meta")
    for order in ORDERS:
        part = pn.positions.ContextParallel(1, 4, order)
        own = part.packed(bounds, 64)
        assert [t.shape for t in own] == [(16,), (16,), (16,), (4,)]
        assert part.positions(64, device="meta").shape == (16,)
        assert part.restore(part.gathered_positions(64, device="meta"), 0).shape == (64,)


@pytest.mark.parametrize("order", ORDERS)
def test_compiled_and_exported(order):
    torch = module("torch")

    class Model(torch.nn.Module):
        def forward(self, x, bounds):
            part = pn.positions.ContextParallel(1, 2, order)
            own = part.packed(bounds, 24)
            row = part.positions(24, device=x.device)
            scores = [x[r.queries, r.keys] for r in part.rectangles(24, 0)]
            return x + own.positions, x * row, own.cu_seqlens, part.shard(row, 0), *scores

    x = torch.arange(144.0).view(12, 12)
    bounds = torch.tensor([0, 4, 16, 24])
    expected = Model()(x, bounds)
    with torch.no_grad():
        compiled = torch.compile(Model(), fullgraph=True, backend="aot_eager")(x, bounds)
        exported = torch.export.export(Model(), (x, bounds)).module()(x, bounds)
    for found in (compiled, exported):
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours, theirs)


def test_integers_of_numpy_become_ints():
    part = pn.positions.ContextParallel(np.int64(1), np.int32(2))
    assert (type(part.rank), type(part.ranks)) == (int, int)
    assert part == pn.positions.ContextParallel(1, 2)


def errors():
    part = pn.positions.ContextParallel(0, 2)
    x = np.zeros(6)
    return [
        (ValueError, "ContextParallel: rank: expected an int below ranks = 2",
         lambda: pn.positions.ContextParallel(2, 2)),
        (ValueError, "ContextParallel: order", lambda: pn.positions.ContextParallel(0, 2, "ring")),
        (TypeError, "ContextParallel: ranks", lambda: pn.positions.ContextParallel(0, 2.0)),
        (ValueError, 'length: expected a multiple of 4 for order="zigzag", got 6; torch.s',
         lambda: part.positions(6)),
        (ValueError, "length: expected a multiple of 4", lambda: part.gathered_positions(6)),
        (ValueError, r"x.shape\[0\]: expected a multiple of 4", lambda: part.shard(x, 0)),
        (ValueError, "shard: axis: expected an axis of x", lambda: part.shard(x, 1)),
        (TypeError, "restore: axis: expected an int", lambda: part.restore(x, 0.0)),
        (ValueError, "packed: total: expected a multiple of 4",
         lambda: part.packed([0, 4], 6)),
        (ValueError, "packed: cu_seqlens: expected sequences, and a rest after them, with lengths",
         lambda: part.packed([0, 6, 8], 8)),
        (ValueError, "packed_positions: cu_seqlens: expected sequences",
         lambda: pn.positions.packed_positions([0, 6, 8], 8, rank=0, ranks=2)),
        (ValueError, "rectangles: rank", lambda: part.rectangles(8, 2)),
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "call"), errors())
def test_errors(kind, text, call):
    with pytest.raises(kind, match=text):
        call()


def test_sequences_of_any_length_may_be_striped_or_cut():
    bounds = [0, 5, 6, 14]
    for order in ("striped", "contiguous"):
        part = pn.positions.ContextParallel(1, 2, order).packed(bounds, 14)
        assert part.cu_seqlens[-1] == 7
