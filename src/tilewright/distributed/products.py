"""Products over ranks: rows that are gathered before a product, and partial sums that are added after it.

Both have gradients, and each is the gradient of the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from tilewright.distributed.calls import (
    ADDED,
    BLOCK,
    ArrivingProduct,
    How,
    LeavingProduct,
    OwnProduct,
    add_parts,
    check_dim,
    check_invariant,
    check_operands,
    check_pair,
    check_products,
    check_sizes,
    check_term,
    check_wire,
    cuts_of,
    is_served,
    of_shard,
    result_dtype,
    sums_dtype,
    sums_of,
)
from tilewright.distributed.exchange import Described, RankCall, chunks, facts_of
from tilewright.distributed.peers import PeerMemory, known_call, memory_of
from tilewright.errors import LaunchError
from tilewright.torch.terms import own_dtype

# ---------------------------------------------------------------- forward


def _gathered(call: RankCall, own: torch.Tensor, sizes: Sequence[int], what: str) -> torch.Tensor:
    """Return the shards of all ranks along the first dimension."""
    whole = own.new_empty((sum(sizes), *own.shape[1:]))
    slots = whole.split(list(sizes))
    mine = slots[call.ranks.rank]
    mine.copy_(own)
    others = call.ranks.others
    call.trade(dict.fromkeys(others, mine), {rank: slots[rank] for rank in others}, what)
    return whole


def gather(how: How, x: torch.Tensor, gradients: Sequence[bool] = ()) -> torch.Tensor:
    """Return the shards of all ranks along ``dim``, without a gradient."""

    def describe() -> Described:
        check_operands(how, {"a_shard": x})
        check_dim(how, x.dim(), "a shard")
        return Described(*of_shard(how, x, gradients))

    is_uneven = how.sizes is None
    known_key = None if is_uneven and how.check is None else how.key(x, "rows", {}, None, gradients)
    with how.ranks.call(how.name, how.timeout) as call:
        known: KnownRows | None = known_call(call, known_key)
        if known is not None:
            return known.run(call, x)
        key = "rows", how.facts, facts_of(x), tuple(gradients)
        found = call.agree(x.device, lambda: how.ranks.recall(key, describe), how.check, is_uneven=is_uneven)
        sizes = how.sizes or [one["rows"] for one in found]
        lead, inner = x.shape[: how.dim], x.shape[x.dim() + how.dim + 1 :]
        size_bytes = sum(sizes) * math.prod(inner) * x.element_size()
        is_small = math.prod(lead) == 1 and size_bytes <= MOST_COPIED_BYTES
        memory = memory_of(call, x, size_bytes) if is_small else None
        if memory is not None:
            rows = [math.prod((extent, *inner[:-1])) for extent in sizes]
            known = KnownRows(memory, rows, (*lead, sum(sizes), *inner))
            how.ranks.keep(known_key, known)
            return known.run(call, x)
        return _gathered(call, x.detach().movedim(how.dim, 0), sizes, "a shard").movedim(0, how.dim)


MOST_COPIED_BYTES = 32 << 20
"""Most bytes of gathered rows that are copied out of a slot: within 20 µs on a GPU with 3 TB/s."""


@dataclass(frozen=True)
class KnownRows:
    """The record of a call of `gather` whose rows copy engines carry, for later calls with the same key.

    Args:
        memory: the memory of this rank.
        rows: rows of the ranks' shards, as matrices.
        shape: shape of the result.
    """

    memory: PeerMemory
    rows: Sequence[int]
    shape: tuple[int, ...]

    def run(self, call: RankCall, x: torch.Tensor) -> torch.Tensor:
        """Gather the rows; return a copy of them."""
        own = x.detach().reshape(self.rows[call.ranks.rank], self.shape[-1]).contiguous()
        with self.memory.gathering(call, own, self.rows) as arriving:
            arriving.wait()
            return arriving.whole.clone().view(self.shape)


def gather_products(
    how: How,
    a: torch.Tensor,
    bs: Sequence[torch.Tensor],
    terms: Sequence[Mapping[str, Any]],
    kind: torch.dtype | None,
    gradients: Sequence[bool] = (),
) -> tuple[list[torch.Tensor], tuple[int, ...]]:
    """Return the products of the gathered rows with each ``b``, and each rank's number of rows.

    Args:
        how: how ranks compute it.
        a: this rank's rows.
        bs: the second operands.
        terms: the terms of each product.
        kind: dtype of the results; None: as in `matmul`.
        gradients: which operands want gradients.
    """
    scale = how.scaled.get("scale_a")
    names = ["b"] if len(bs) == 1 else [f"b[{at}]" for at in range(len(bs))]
    named = dict(zip(names, bs, strict=True))
    if not how.gathers:
        if any(gradients[:1]):
            check_operands(how, {"a": a, **named})
            check_products(how, a, named, gradients)
        given = [{**how.scaled, **one, **_out_dtype(kind)} for one in terms]
        return [how.multiply(a.detach(), b.detach(), **one) for b, one in zip(bs, given, strict=True)], ()

    def describe() -> Described:
        biases = {
            f"bias of {name}": one["bias"] for name, one in zip(names, terms, strict=True) if "bias" in one
        }
        check_operands(how, {"a_shard": a, **named}, biases)
        check_dim(how, a.dim(), "a_shard")
        check_products(how, a, named, gradients)
        for name, b in named.items():
            if f"bias of {name}" in biases:
                check_term(how, f"bias of {name}", biases[f"bias of {name}"], b.shape[-1:])
        shared, own = of_shard(how, a, gradients)
        batched = [b for b in bs if how.dim < -2 and b.dim() >= -how.dim]
        own["batches of b"] = [int(b.shape[how.dim]) for b in batched]
        if (
            isinstance(scale, torch.Tensor)
            and scale.numel() > 1
            and scale.shape[: a.dim() - 1] != a.shape[:-1]
        ):
            raise LaunchError(
                f"{how.name}: scale_a has shape {list(scale.shape)} for a_shard {list(a.shape)}",
                f"a scale for each row, of shape {list(a.shape[:-1])}",
            )
        shared["scales of rows"] = scale
        if isinstance(scale, torch.Tensor):
            each = scale.shape[-1] if scale.dim() == a.dim() and scale.numel() != 1 else 1
            shared["scales of rows"] = f"{each} of {scale.dtype} for each row"
        return Described(shared, own)

    is_uneven = how.sizes is None and how.check is None
    known_key = None if is_uneven else how.key(a, bs, terms, kind, gradients)
    with how.ranks.call(how.name, how.timeout) as call:
        known: KnownGather | None = known_call(call, known_key)
        if known is not None:
            return known.run(call, a, bs, terms), known.sizes
        key = "gathered", how.facts, facts_of([a, bs, terms]), tuple(gradients)
        found = call.agree(
            a.device, lambda: how.ranks.recall(key, describe), how.check, is_uneven=how.sizes is None
        )
        sizes = how.sizes or tuple(one["rows"] for one in found)
        for rank, one in enumerate(found):
            if wrong := [extent for extent in one["batches of b"] if extent not in (1, sum(sizes))]:
                raise LaunchError(
                    f"{how.name}: b has {wrong[0]} batches on rank {rank}, and the ranks' shards have "
                    f"{sum(sizes)} together",
                    f"{sum(sizes)} batches, or 1",
                )
        a = a.detach()
        words = dict(how.scaled)
        if isinstance(scale, torch.Tensor):
            if scale.numel() == 1:  # one scale for all rows of a shard
                scale = scale.reshape(()).expand(a.shape[:-1])
            rows = a.dim() + how.dim
            moved = scale.detach().movedim(rows, 0)
            words["scale_a"] = _gathered(call, moved, sizes, "scales").movedim(0, rows)
        given = [{**words, **one, **_out_dtype(kind)} for one in terms]
        inner, lead = a.shape[a.dim() + how.dim + 1 : -1], a.shape[: how.dim]
        rows, depth = [math.prod((extent, *inner)) for extent in sizes], a.shape[-1]
        memory = memory_of(call, a, sum(rows) * depth * a.element_size()) if math.prod(lead) == 1 else None
        if memory is not None:
            shape = (*lead, sum(sizes), *inner)
            if _is_simple(how, bs, given) and _is_one_kernel(how, a, bs, rows):
                known = KnownGather.of(how, memory, a, bs, given, kind, (*sizes,), rows, shape)
                how.ranks.keep(known_key, known)
                return known.run(call, a, bs, terms), sizes
            own = a.reshape(rows[how.ranks.rank], depth).contiguous()
            with memory.gathering(call, own, rows) as arriving:
                if _is_simple(how, bs, given):
                    shards, arrivals = arriving.whole.split(rows), arriving.arrivals()
                    ys = _products_in_ring_order(how, shards, arrivals, bs, given, kind)
                    return [y.view(*shape, y.shape[-1]) for y in ys], sizes
                arriving.wait()
                whole = arriving.whole.view(*shape, depth)
                return [
                    how.multiply(whole, b.detach(), **one) for b, one in zip(bs, given, strict=True)
                ], sizes
        if a.is_cuda and a.dim() == 2 and _is_simple(how, bs, given):
            own, others = a.contiguous(), call.ranks.others
            shards = [
                own if one == how.ranks.rank else own.new_empty((rows[one], depth))
                for one in range(len(rows))
            ]
            incoming = {rank: shards[rank] for rank in others}
            arrivals = call.arrivals(dict.fromkeys(others, own), incoming, "a shard")
            return _products_in_ring_order(how, shards, arrivals, bs, given, kind), sizes
        whole = _gathered(call, a.movedim(how.dim, 0), sizes, "a shard").movedim(0, how.dim)
    return [how.multiply(whole, b.detach(), **one) for b, one in zip(bs, given, strict=True)], sizes


def _out_dtype(kind: torch.dtype | None) -> dict[str, Any]:
    return {} if kind is None else {"out_dtype": own_dtype(kind)}


def _is_simple(how: How, bs: Sequence[torch.Tensor], given: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether each shard can be multiplied alone, by matrices without batches."""
    is_plain = not how.invariant and not how.scaled and all(b.dim() == 2 for b in bs)
    return is_plain and all(one.keys() <= {"bias", "activation", "out_dtype"} for one in given)


def _is_one_kernel(how: How, a: torch.Tensor, bs: Sequence[torch.Tensor], rows: Sequence[int]) -> bool:
    """Return whether one kernel multiplies all shards, and waits for each before it loads it.

    Each shard has its own product if the extents are not those of `torch.chunk`, if the kernel does not serve
    the dtype, or if a shard is empty: the kernel would not wait for its counter, which could be set after the
    call cleared it.
    """
    is_even = tuple(rows) == chunks(sum(rows), len(rows)) and 0 not in rows
    return not how.words and is_even and all(is_served(a, b) for b in bs)


@dataclass(frozen=True)
class KnownGather:
    """The record of a call of `gather_products`, for later calls with its key: a kernel for each product.

    Args:
        memory: the memory of this rank.
        sizes: extents of the ranks' shards.
        rows: rows of the ranks' shards, as matrices.
        shape: shape of a result without its columns.
        products: for each ``b`` its columns, the dtype of its result, and its launch.
    """

    memory: PeerMemory
    sizes: tuple[int, ...]
    rows: Sequence[int]
    shape: tuple[int, ...]
    products: Sequence[tuple[int, torch.dtype, ArrivingProduct]]

    @classmethod
    def of(
        cls,
        how: How,
        memory: PeerMemory,
        a: torch.Tensor,
        bs: Sequence[torch.Tensor],
        given: Sequence[Mapping[str, Any]],
        kind: torch.dtype | None,
        sizes: tuple[int, ...],
        rows: Sequence[int],
        shape: tuple[int, ...],
    ) -> KnownGather:
        """Make it from the first call."""
        first = how.ranks.rank * memory.pieces(rows, a.shape[-1] * a.element_size())
        products = list[tuple[int, torch.dtype, ArrivingProduct]]()
        for b, one in zip(bs, given, strict=True):
            activation, has_bias = one.get("activation"), "bias" in one
            product = ArrivingProduct(first, activation, has_bias=has_bias, sums=sums_of(b))
            products.append((b.shape[-1], result_dtype(how, kind, a, b, one), product))
        return cls(memory, sizes, rows, shape, products)

    def run(
        self, call: RankCall, a: torch.Tensor, bs: Sequence[torch.Tensor], terms: Sequence[Mapping[str, Any]]
    ) -> list[torch.Tensor]:
        """Gather the rows and multiply them; return the products."""
        own, outs = a, list[torch.Tensor]()
        if a.dim() != 2 or not a.is_contiguous():
            own = a.detach().reshape(self.rows[call.ranks.rank], a.shape[-1]).contiguous()
        with self.memory.gathering(call, own, self.rows) as arriving:
            for b, one, (columns, kind, product) in zip(bs, terms, self.products, strict=True):
                outs.append(a.new_empty((*self.shape, columns), dtype=kind))
                flat = outs[-1] if len(self.shape) == 1 else outs[-1].view(-1, columns)
                product.run(arriving, b, flat, one.get("bias"))
        return outs


def _products_in_ring_order(
    how: How,
    shards: Sequence[torch.Tensor],
    arrivals: Iterator[int],
    bs: Sequence[torch.Tensor],
    given: Sequence[Mapping[str, Any]],
    kind: torch.dtype | None,
) -> list[torch.Tensor]:
    """Compute one product for each shard: this rank's first, while the other shards arrive."""
    me, rows = how.ranks.rank, [len(one) for one in shards]
    outs = list[list[torch.Tensor]]()
    for b, one in zip(bs, given, strict=True):
        made = result_dtype(how, kind, shards[me], b, one)
        out = shards[me].new_empty((sum(rows), b.shape[-1]), dtype=made)
        outs.append([out, *out.split(rows)])
    for rank in chain([me], arrivals):
        for b, one, (_, *places) in zip(bs, given, outs, strict=True):
            words = {name: word for name, word in one.items() if name != "out_dtype"}
            how.multiply(shards[rank], b.detach(), out=places[rank], **words)
    return [out for out, *_ in outs]


# ---------------------------------------------------------------- sums over ranks


def reduce_products(
    how: How,
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
    terms: Mapping[str, Any],
    kind: torch.dtype | None,
    gradients: Sequence[bool] = (),
) -> torch.Tensor:
    """Return the sum over ranks and pairs of ``a @ b`` with terms, without gradients.

    Each rank computes partial sums in the dtype of sums, and adds those of its rows in the ranks' order.

    Args:
        how: how ranks compute it.
        pairs: operands of the products that this rank adds.
        terms: the terms after the sum.
        kind: dtype of the result; None: as in `matmul`.
        gradients: which operands want gradients.
    """

    def describe() -> Described:
        shape: tuple[int, ...] = ()
        at = [""] if len(pairs) == 1 else [f"[{pair}]" for pair in range(len(pairs))]
        names = [(f"a{one}", f"b_shard{one}") for one in at]
        for both, pair in zip(names, pairs, strict=True):
            check_operands(how, dict(zip(both, pair, strict=True)))
            found = check_pair(how, pair[0].shape, pair[1].shape, both)
            if shape and found != shape:
                raise LaunchError(
                    f"{how.name}: {both[0]} @ {both[1]} has shape {list(found)}, and the first product "
                    f"{list(shape)}",
                    "products of one shape",
                )
            shape = found
        check_dim(how, len(shape), "a result")
        check_sizes(how, shape[how.dim])
        check_invariant(how)
        rows = list(shape)
        if how.scatters:
            rows[how.dim] = (how.sizes or chunks(shape[how.dim], how.ranks.size))[how.ranks.rank]
        arrays = {name: terms[name] for name in (*ADDED, "multiply") if terms.get(name) is not None}
        check_operands(how, {"a": pairs[0][0]}, arrays)
        for name, one in arrays.items():
            check_term(how, name, one, rows[-1:] if name == "bias" else rows)
        if not sums_dtype(how, pairs).is_floating_point and (arrays or terms.get("activation") is not None):
            raise LaunchError(
                f"{how.name}: sums of integers over ranks take no terms",
                "the terms after the call, by PyTorch",
            )
        made = result_dtype(how, kind, *pairs[0], terms)
        check_wire(how, sums_dtype(how, pairs))
        shared = {
            "the shape of the product": list(shape),
            "the dtype of the operands": [str(one.dtype) for pair in pairs for one in pair],
            "the dtype of the result": str(made),
            "the dimension of the rows": how.dim,
            "sizes": how.sizes,
            "terms": sorted(name for name, one in terms.items() if one is not None),
            "the activation": terms.get("activation"),
            "the derivative": terms.get("derivative"),
            "beta": terms.get("beta"),
            "alpha and precision": dict(how.words),
            "which operands want gradients": list(gradients),
            "rank_invariant": how.invariant,
            "wire_dtype": None if how.wire is None else str(how.wire),
        }
        return Described(shared, {"depths": [int(a.shape[-1]) for a, _ in pairs]}, (shape, made))

    a, bs = pairs[0][0], [b for _, b in pairs]
    known_key = how.key([one for one, _ in pairs], bs, terms, kind, gradients)
    with how.ranks.call(how.name, how.timeout) as call:
        known: KnownSum | None = known_call(call, known_key)
        if known is not None:
            return known.run(call, pairs, terms)
        key = "sums", how.facts, facts_of([pairs, terms]), kind, tuple(gradients)
        found = call.agree(a.device, describe, how.check, is_uneven=how.invariant, key=key)
        shape, made = call.found
        extents = SumExtents.of(how, shape, sums_dtype(how, pairs), made)
        memory = memory_of(call, a, extents.slot_bytes)
        is_plain = not (how.words or how.scaled or how.invariant) and all(b.dim() == 2 for b in bs)
        if memory is not None and is_plain and all(is_served(*pair) for pair in pairs):
            known = KnownSum.of(memory, extents, bs, terms)
            how.ranks.keep(known_key, known)
            return known.run(call, pairs, terms)
        cuts = [cuts_of(how, [one["depths"][at] for one in found]) for at in range(len(pairs))]
        return _summed(call, extents, memory, a, lambda: _partial_sums(how, pairs, cuts, shape), terms)


def sum_rows(how: How, x: torch.Tensor, gradients: Sequence[bool] = ()) -> torch.Tensor:
    """Return this rank's rows of the sum of a tensor over ranks, or all rows, without a gradient.

    Args:
        how: how ranks compute it.
        x: a tensor of the same shape on all ranks.
        gradients: which operands want gradients.
    """

    def describe() -> Described:
        check_operands(how, {"x": x})
        check_dim(how, x.dim(), "a tensor")
        check_sizes(how, x.shape[how.dim])
        shared = {
            "the shape of x": list(x.shape),
            "the dtype of x": str(x.dtype),
            "the dimension of the rows": how.dim,
            "sizes": how.sizes,
            "which operands want gradients": list(gradients),
        }
        return Described(shared, {})

    key = "summed rows", how.facts, facts_of(x), tuple(gradients)
    with how.ranks.call(how.name, how.timeout) as call:
        call.agree(x.device, describe, how.check, is_uneven=False, key=key)
        partial = x.detach().movedim(how.dim, 0).contiguous()
        extents = SumExtents.of(how, x.shape, x.dtype, x.dtype)
        memory = memory_of(call, x, extents.slot_bytes)
        return _summed(call, extents, memory, x, lambda: partial, {})


@dataclass(frozen=True)
class SumExtents:
    """Shapes and dtypes of a sum over ranks.

    Args:
        how: how ranks compute it.
        shape: shape of the whole sum.
        moved: the shape with the cut dimension first; without scattering, of the rows as a matrix.
        sizes: the ranks' extents of the first dimension of ``moved``.
        rows: rows of this rank, as a matrix.
        sums: dtype of the partial sums.
        kind: dtype of the result.
        wire: dtype in which ranks send partial sums.
        slot_bytes: bytes that copy engines write to each rank; 0: ranks exchange messages.
    """

    how: How
    shape: tuple[int, ...]
    moved: tuple[int, ...]
    sizes: tuple[int, ...]
    rows: int
    sums: torch.dtype
    kind: torch.dtype
    wire: torch.dtype
    slot_bytes: int

    @classmethod
    def of(cls, how: How, shape: Sequence[int], sums: torch.dtype, kind: torch.dtype) -> SumExtents:
        """Derive them from the shape of the whole sum."""
        dim, columns, ranks = how.dim, shape[-1], how.ranks
        moved = (shape[dim], *shape[:dim], *shape[len(shape) + dim + 1 :])
        if not how.scatters:
            moved = (math.prod(shape[:-1]), columns)
        sizes = tuple(how.sizes if how.scatters and how.sizes is not None else chunks(moved[0], ranks.size))
        rows = math.prod((sizes[ranks.rank], *moved[1:])) // max(columns, 1)
        is_rounded = kind == torch.bfloat16 and sums.is_floating_point and not how.invariant
        wire = how.wire or (kind if is_rounded else sums)
        wire = wire if wire.itemsize < sums.itemsize else sums
        is_cut = len(set(sizes)) == 1 and (not how.scatters or math.prod(shape[:dim]) == 1)
        slot_bytes = ranks.size * rows * columns * wire.itemsize if is_cut else 0
        return cls(how, tuple(shape), moved, sizes, rows, sums, kind, wire, slot_bytes)

    @property
    def first(self) -> int:
        """The first row of this rank, along the first dimension of ``moved``."""
        return sum(self.sizes[: self.how.ranks.rank])

    def result(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Allocate the result; return it, and this rank's rows in it, which `finished` gathers if need be."""
        size = self.sizes[self.how.ranks.rank]
        if self.how.scatters:
            whole = mine = like.new_empty((size, *self.moved[1:]), dtype=self.kind)
        else:
            whole = like.new_empty(self.moved, dtype=self.kind)
            mine = whole.narrow(0, self.first, size)
        return whole, mine if mine.dim() == 2 else mine.view(self.rows, self.shape[-1])

    def finished(self, call: RankCall, memory: PeerMemory | None, whole: torch.Tensor) -> torch.Tensor:
        """Return the result, after this rank's rows in it are computed."""
        if self.how.scatters:
            return whole if len(self.shape) == 2 else whole.movedim(0, self.how.dim)
        ranks, places = self.how.ranks, whole.split(self.sizes)
        # The slots have room for results that are no wider than the parts.
        if memory is not None and whole.nbytes <= min(self.slot_bytes, MOST_COPIED_BYTES):
            with memory.gathering(call, places[ranks.rank], self.sizes) as arriving:
                arriving.wait()
                for some in (slice(0, self.first), slice(self.first + self.rows, None)):
                    whole[some].copy_(arriving.whole[some])
        else:
            incoming = {rank: places[rank] for rank in ranks.others}
            call.trade(dict.fromkeys(ranks.others, places[ranks.rank]), incoming, "sums")
        return whole.view(*self.shape)


@dataclass(frozen=True)
class KnownSum:
    """The record of a call of `reduce_products` whose parts copy engines carry, for calls with its key.

    Args:
        memory: the memory of this rank.
        extents: shapes and dtypes.
        launches: computes the parts of the other ranks while they are sent; then this rank's part, and adds
            the others.  None for several products: their sum is complete when the first part is sent.
    """

    memory: PeerMemory
    extents: SumExtents
    launches: tuple[LeavingProduct, OwnProduct] | None

    @classmethod
    def of(
        cls, memory: PeerMemory, extents: SumExtents, bs: Sequence[torch.Tensor], terms: Mapping[str, Any]
    ) -> KnownSum:
        """Make it from the first call."""
        if len(bs) > 1:
            return cls(memory, extents, None)
        at = memory.size, memory.rank
        words: dict[str, Any] = {one: terms.get(one) for one in WORDS}
        arrays = [name for name, one in terms.items() if name not in WORDS and one is not None]
        own = OwnProduct(*at, sums_of(bs[0]), terms=arrays, **words)
        return cls(memory, extents, (LeavingProduct(*at), own))

    def run(
        self, call: RankCall, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], terms: Mapping[str, Any]
    ) -> torch.Tensor:
        """Multiply, exchange parts, and add them; return this rank's rows, or all rows."""
        extents, columns, rank = self.extents, self.extents.shape[-1], self.memory.rank
        with self.memory.scattering(call, extents.rows, columns, extents.wire) as parts:
            whole, out = extents.result(pairs[0][0])  # an error without memory for it ends the group
            added = _terms_of_rows(extents, terms) if terms else {}
            flat = [(a if a.dim() == 2 else a.detach().reshape(-1, a.shape[-1]), b) for a, b in pairs]
            if self.launches is not None:
                leaving, own = self.launches
                leaving.run(parts, *flat[0])
                parts.send()
                own.run(parts, *flat[0], out, added)
            else:
                sums, is_narrow = parts.local.view(-1, columns), extents.wire != extents.sums
                sums = torch.empty_like(sums, dtype=extents.sums) if is_narrow else sums
                for at, (a, b) in enumerate(flat):
                    before = {"c": sums} if at else {}
                    extents.how.multiply(a.detach(), b.detach(), out=sums, **before)
                parts.take(sums) if is_narrow else parts.count()
                parts.send()
                words: dict[str, Any] = {one: terms.get(one) for one in WORDS}
                mine = rank, sums[rank * extents.rows :][: extents.rows]
                add_parts(parts.wait(), out, own=mine, terms=added, **words)
        return extents.finished(call, self.memory, whole)


WORDS = ("activation", "derivative", "beta")
"""Terms that are no arrays."""


def _summed(
    call: RankCall,
    extents: SumExtents,
    memory: PeerMemory | None,
    like: torch.Tensor,
    partial: Callable[[], torch.Tensor],
    terms: Mapping[str, Any],
) -> torch.Tensor:
    """Exchange partial sums, and add them with terms; return this rank's rows, or all rows.

    Args:
        call: the call.
        extents: shapes and dtypes.
        memory: the memory through which ranks exchange parts; None: they exchange messages.
        like: a tensor on this rank's device.
        partial: computes this rank's partial sums, with the rows of ``dim`` first.
        terms: the terms after the sum.
    """
    how, rows, columns, wire = extents.how, extents.rows, extents.shape[-1], extents.wire
    ranks = how.ranks
    words: dict[str, Any] = {one: terms.get(one) for one in WORDS}

    def rows_first() -> torch.Tensor:
        made = partial()
        return made if how.scatters else made.movedim(0, how.dim).reshape(extents.moved)

    if memory is not None:
        with memory.scattering(call, rows, columns, wire) as parts:
            result, out = extents.result(like)
            words["terms"] = _terms_of_rows(extents, terms)
            whole = rows_first().reshape(ranks.size, rows, columns)
            parts.take(whole)
            parts.send()
            own = whole[ranks.rank]
            add_parts(parts.wait(), out, is_tree=how.invariant, own=(ranks.rank, own), **words)
    else:
        (result, out), slots = extents.result(like), rows_first().split(extents.sizes)
        here = slots[ranks.rank]
        received = here.new_empty((ranks.size, *here.shape), dtype=wire)
        outgoing = {rank: slots[rank].to(wire) for rank in ranks.others}
        call.trade(outgoing, {rank: received[rank] for rank in ranks.others}, "partial sums")
        if out.numel():
            words["terms"] = _terms_of_rows(extents, terms)
            if wire == extents.sums:
                received[ranks.rank].copy_(here)
            else:  # it is not sent, and not rounded
                words["own"] = ranks.rank, here.reshape(rows, columns)
            add_parts(received.view(ranks.size, rows, columns), out, is_tree=how.invariant, **words)
    return extents.finished(call, memory, result)


def _partial_sums(
    how: How,
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
    cuts: Sequence[Sequence[tuple[int, int]]],
    shape: Sequence[int],
) -> torch.Tensor:
    """Return this rank's partial sums, with the rows first, in the dtype in which kernels add."""
    kind, dim = sums_dtype(how, pairs), how.dim
    moved = shape[dim], *shape[:dim], *shape[len(shape) + dim + 1 :]
    count = len(cuts[0])
    made = pairs[0][0].new_empty((count, len(pairs), *moved), dtype=kind)
    for at, (a, b) in enumerate(pairs):
        for part, (begin, end) in enumerate(cuts[at]):
            out = made[part, at].movedim(0, dim)
            _multiply_part(how, a.detach(), b.detach(), begin, end, out)
    if count == len(pairs) == 1:
        return made[0, 0]
    rows, columns = made[0, 0].numel() // max(shape[-1], 1), shape[-1]
    flat = made.view(count, len(pairs), rows, columns)
    if len(pairs) > 1:
        sums = flat.new_empty((count, rows, columns))
        for part in range(count):
            add_parts(flat[part], sums[part])
    else:
        sums = flat[:, 0]
    if count == 1:
        return sums[0].view(moved)
    total = sums.new_empty((rows, columns))
    add_parts(sums, total, is_tree=True)
    return total.view(moved)


def _multiply_part(
    how: How, a: torch.Tensor, b: torch.Tensor, begin: int, end: int, out: torch.Tensor
) -> None:
    """Store the product of a part of K in ``out``."""
    if (begin, end) == (0, a.shape[-1]):
        how.multiply(a, b, out=out, **how.scaled)
        return
    words = dict(how.scaled)
    step, group = 2 if words.get("packed") else 1, words.get("group")
    for name in ("scale_b", "zero_b"):
        one = words.get(name)
        if isinstance(one, torch.Tensor) and group is not None:
            words[name] = one[begin // group : -(-end // group)]
        elif isinstance(one, torch.Tensor) and one.dim() > 1 and one.shape[-2] > 1:
            words[name] = one[..., begin // BLOCK : -(-end // BLOCK), :]
    one = words.get("scale_a")
    if isinstance(one, torch.Tensor) and one.dim() == a.dim() and one.shape[-1] > 1:
        words["scale_a"] = one[..., begin // BLOCK : -(-end // BLOCK)]
    b = b[..., begin // step : end // step, :]
    how.multiply(a[..., begin:end], b, out=out, **words)


def _terms_of_rows(extents: SumExtents, terms: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the arrays of the terms for this rank's rows of the result, as matrices."""
    how, shape, rows, first = extents.how, extents.shape, extents.rows, extents.first
    given, columns = dict[str, torch.Tensor](), shape[-1]
    for name in (*ADDED, "multiply"):
        one = terms.get(name)
        if one is None:
            continue
        if name == "bias":
            given[name] = one.detach()
        elif how.scatters:
            target = (*shape[: how.dim], extents.sizes[how.ranks.rank], *shape[len(shape) + how.dim + 1 :])
            given[name] = one.detach().expand(target).movedim(how.dim, 0).reshape(rows, columns)
        else:
            given[name] = one.detach().expand(shape).reshape(-1, columns)[first : first + rows]
    return given
