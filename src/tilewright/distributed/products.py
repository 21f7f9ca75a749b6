"""Products over ranks: rows that are gathered before a product, and partial sums that are added after it.

Both have gradients, and each is the gradient of the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from tilewright.distributed.calls import (
    ADDED,
    BLOCK,
    PARTS,
    How,
    add_parts,
    check_dim,
    check_invariant,
    check_operands,
    check_pair,
    check_products,
    check_sizes,
    check_term,
    check_wire,
    is_served,
    multiply_and_add,
    multiply_arriving,
    multiply_leaving,
    of_shard,
    result_dtype,
    sums_dtype,
)
from tilewright.distributed.exchange import Described, RankCall, chunks, facts_of
from tilewright.distributed.peers import ArrivingRows, memory_of
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

    key = "rows", how.facts, facts_of(x), tuple(gradients)
    with how.ranks.call(how.name, how.timeout) as call:
        found = call.agree(
            x.device, lambda: how.ranks.recall(key, describe), how.check, is_uneven=how.sizes is None
        )
        moved = x.detach().movedim(how.dim, 0)
        sizes = how.sizes or [one["rows"] for one in found]
        return _gathered(call, moved, sizes, "a shard").movedim(0, how.dim)


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
                f"{how.name}: scale_a has shape {list(scale.shape)} for a_shard {list(a.shape)}; nearest "
                f"legal choice: a scale for each row, of shape {list(a.shape[:-1])}"
            )
        shared["scales of rows"] = scale
        if isinstance(scale, torch.Tensor):
            each = scale.shape[-1] if scale.dim() == a.dim() and scale.numel() != 1 else 1
            shared["scales of rows"] = f"{each} of {scale.dtype} for each row"
        return Described(shared, own)

    key = "gathered", how.facts, facts_of([a, bs, terms]), tuple(gradients)
    with how.ranks.call(how.name, how.timeout) as call:
        found = call.agree(
            a.device, lambda: how.ranks.recall(key, describe), how.check, is_uneven=how.sizes is None
        )
        sizes = how.sizes or tuple(one["rows"] for one in found)
        for rank, one in enumerate(found):
            if wrong := [extent for extent in one["batches of b"] if extent not in (1, sum(sizes))]:
                raise LaunchError(
                    f"{how.name}: b has {wrong[0]} batches on rank {rank}, and the ranks' shards have "
                    f"{sum(sizes)} together; nearest legal choice: {sum(sizes)} batches, or 1"
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
            own = a.reshape(rows[how.ranks.rank], depth).contiguous()
            shape = (*lead, sum(sizes), *inner)
            with memory.gathering(call, own, rows) as arriving:
                if _is_simple(how, bs, given):
                    ys = _products_of_arriving_rows(how, arriving, bs, given)
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
            return _products_in_ring_order(how, shards, arrivals, bs, given), sizes
        whole = _gathered(call, a.movedim(how.dim, 0), sizes, "a shard").movedim(0, how.dim)
    return [how.multiply(whole, b.detach(), **one) for b, one in zip(bs, given, strict=True)], sizes


def _out_dtype(kind: torch.dtype | None) -> dict[str, Any]:
    return {} if kind is None else {"out_dtype": own_dtype(kind)}


def _is_simple(how: How, bs: Sequence[torch.Tensor], given: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether each shard can be multiplied alone, by matrices without batches."""
    is_plain = not how.invariant and not how.scaled and all(b.dim() == 2 for b in bs)
    return is_plain and all(one.keys() <= {"bias", "activation", "out_dtype"} for one in given)


def _products_of_arriving_rows(
    how: How, rows: ArrivingRows, bs: Sequence[torch.Tensor], given: Sequence[Mapping[str, Any]]
) -> list[torch.Tensor]:
    """Return the products of rows that are still arriving, from this rank's own rows on.

    One kernel multiplies all shards, and waits for each shard before it loads it.  Each shard has its own
    product if the extents are not those of `torch.chunk`, if the kernel does not serve the dtype, or if a
    shard is empty: the kernel would not wait for its counter, which could be set after this call cleared it.
    """
    whole = rows.whole
    is_even = tuple(rows.sizes) == chunks(len(whole), len(rows.sizes)) and 0 not in rows.sizes
    if how.words or not is_even or not all(is_served(whole, b) for b in bs):
        return _products_in_ring_order(how, whole.split(rows.sizes), rows.arrivals(), bs, given)
    outs = list[torch.Tensor]()
    for b, one in zip(bs, given, strict=True):
        kind = result_dtype(how, one.get("out_dtype"), whole, b, one)
        outs.append(whole.new_empty((len(whole), b.shape[-1]), dtype=kind))
        multiply_arriving(rows, b.detach(), outs[-1], one.get("bias"), one.get("activation"))
    return outs


def _products_in_ring_order(
    how: How,
    shards: Sequence[torch.Tensor],
    arrivals: Iterator[int],
    bs: Sequence[torch.Tensor],
    given: Sequence[Mapping[str, Any]],
) -> list[torch.Tensor]:
    """Compute one product for each shard: this rank's first, while the other shards arrive."""
    me, rows = how.ranks.rank, [len(one) for one in shards]
    outs = list[list[torch.Tensor]]()
    for b, one in zip(bs, given, strict=True):
        kind = result_dtype(how, one.get("out_dtype"), shards[me], b, one)
        out = shards[me].new_empty((sum(rows), b.shape[-1]), dtype=kind)
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
                    f"{list(shape)}; nearest legal choice: products of one shape"
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
                f"{how.name}: sums of integers over ranks take no terms; nearest legal choice: the terms "
                "after the call, by PyTorch"
            )
        a, b = pairs[0]
        made = result_dtype(how, kind, a, b, terms)
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

    key = "sums", how.facts, facts_of([pairs, terms]), kind, tuple(gradients)
    with how.ranks.call(how.name, how.timeout) as call:
        found = call.agree(pairs[0][0].device, describe, how.check, is_uneven=how.invariant, key=key)
        shape, made = call.found
        cuts = [_cuts(how, [one["depths"][at] for one in found]) for at in range(len(pairs))]

        [(a, b), *more] = pairs
        is_plain = not (more or how.words or how.scaled or how.invariant) and b.dim() == 2
        factors = None
        if is_plain and is_served(a, b):
            factors = a.detach().reshape(-1, a.shape[-1]), b.detach()
        how_to_add = (shape, sums_dtype(how, pairs), made, terms)
        return _summed(call, how, a, lambda: _partial_sums(how, pairs, cuts, shape), factors, *how_to_add)


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
        return _summed(call, how, x, lambda: partial, None, x.shape, x.dtype, x.dtype, {})


def _summed(
    call: RankCall,
    how: How,
    like: torch.Tensor,
    partial: Callable[[], torch.Tensor],
    factors: tuple[torch.Tensor, torch.Tensor] | None,
    shape: Sequence[int],
    sums: torch.dtype,
    kind: torch.dtype,
    terms: Mapping[str, Any],
) -> torch.Tensor:
    """Exchange partial sums, and add them with terms; return this rank's rows, or all rows.

    Args:
        call: the call.
        how: how ranks compute it.
        like: a tensor on this rank's device.
        partial: computes this rank's partial sums, with the rows of ``dim`` first.
        factors: the matrices whose product the sums are, if kernels multiply them while parts are sent.
        shape: shape of the whole sum.
        sums: dtype of the partial sums.
        kind: dtype of the result.
        terms: the terms after the sum.
    """
    ranks, dim, columns = how.ranks, how.dim, shape[-1]
    moved = (*torch.empty(shape, device="meta").movedim(dim, 0).shape,)
    if not how.scatters:
        moved = (math.prod(shape[:-1]), columns)
    sizes = list(how.sizes if how.scatters and how.sizes is not None else chunks(moved[0], ranks.size))
    result = like.new_empty((sizes[ranks.rank] if how.scatters else moved[0], *moved[1:]), dtype=kind)
    places = () if how.scatters else result.split(sizes)
    mine = result if how.scatters else places[ranks.rank]
    first, rows = sum(sizes[: ranks.rank]), mine.numel() // max(columns, 1)

    def rows_first() -> torch.Tensor:
        made = partial()
        return made if how.scatters else made.movedim(0, dim).reshape(moved)

    wire = sums if how.wire is None or how.wire.itemsize >= sums.itemsize else how.wire
    words: dict[str, Any] = {one: terms.get(one) for one in ("activation", "derivative", "beta")}
    out = mine.view(rows, columns)
    memory = None
    if len(set(sizes)) == 1 and (not how.scatters or math.prod(shape[:dim]) == 1):
        memory = memory_of(call, like, ranks.size * rows * columns * wire.itemsize)
    if memory is not None:
        words["terms"] = _terms_of_rows(how, terms, mine, shape, first)
        with memory.scattering(call, rows, columns, wire) as parts:
            if factors is not None:
                a, b = factors
                multiply_leaving(parts, a, b)
                parts.send()
                multiply_and_add(parts, a[ranks.rank * rows :][:rows], b, out, **words)
            else:
                whole = rows_first().reshape(ranks.size, rows, columns)
                parts.take(whole)
                parts.send()
                own = whole[ranks.rank]
                add_parts(parts.wait(), out, is_tree=how.invariant, own=(ranks.rank, own), **words)
    else:
        slots = rows_first().split(sizes)
        here = slots[ranks.rank]
        received = here.new_empty((ranks.size, *here.shape), dtype=wire)
        outgoing = {rank: slots[rank].to(wire) for rank in ranks.others}
        call.trade(outgoing, {rank: received[rank] for rank in ranks.others}, "partial sums")
        if mine.numel():
            words["terms"] = _terms_of_rows(how, terms, mine, shape, first)
            if wire == sums:
                received[ranks.rank].copy_(here)
            else:  # it is not sent, and not rounded
                words["own"] = ranks.rank, here.reshape(rows, columns)
            add_parts(received.view(ranks.size, rows, columns), out, is_tree=how.invariant, **words)
    if how.scatters:
        return result.movedim(0, dim)
    call.trade(dict.fromkeys(ranks.others, mine), {rank: places[rank] for rank in ranks.others}, "sums")
    return result.view(*shape)


def _cuts(how: How, depths: Sequence[int]) -> list[tuple[int, int]]:
    """Return the parts of this rank's K: one, or its share of eight if bits must not depend on ranks."""
    own = depths[how.ranks.rank]
    if not how.invariant:
        return [(0, own)]
    parts, each = chunks(sum(depths), PARTS), PARTS // how.ranks.size
    shares = [parts[rank * each : (rank + 1) * each] for rank in range(how.ranks.size)]
    if [sum(one) for one in shares] != list(depths):
        raise LaunchError(
            f"{how.name}: rank_invariant=True, and K is {list(depths)} on the ranks, which are no eighths of "
            f"{sum(depths)}; nearest legal choice: {[sum(one) for one in shares]}"
        )
    # K of quantised numbers can be cut at multiples of a group, of a byte, and of a block.
    group, packed = how.scaled.get("group"), how.scaled.get("packed")
    has_blocks = group is None and any(
        isinstance(one, torch.Tensor) and one.dim() > 1 and one.shape[at] > 1
        for one, at in ((how.scaled.get("scale_b"), -2), (how.scaled.get("scale_a"), -1))
    )
    step = math.lcm(group or 1, 2 if packed else 1, BLOCK if has_blocks else 1)
    if each > 1 and parts[0] % step:
        raise LaunchError(
            f"{how.name}: rank_invariant=True cuts K at {parts[0]}, within a group of {step}; nearest legal "
            f"choice: a K whose eighth is a multiple of {step}"
        )
    ends = [sum(shares[how.ranks.rank][: at + 1]) for at in range(each)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _partial_sums(
    how: How,
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
    cuts: Sequence[Sequence[tuple[int, int]]],
    shape: Sequence[int],
) -> torch.Tensor:
    """Return this rank's partial sums, with the rows first, in the dtype in which kernels add."""
    kind, dim = sums_dtype(how, pairs), how.dim
    moved = torch.empty(shape, dtype=kind, device="meta").movedim(dim, 0).shape
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
    step = 2 if words.get("packed") else 1
    group = words.get("group")
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


def _terms_of_rows(
    how: How, terms: Mapping[str, Any], out: torch.Tensor, shape: Sequence[int], first: int
) -> dict[str, torch.Tensor]:
    """Return the arrays of the terms for this rank's rows of the result, as matrices.

    Args:
        how: how ranks compute it.
        terms: the terms.
        out: this rank's rows of the result.
        shape: shape of the whole sum.
        first: the first row.
    """
    columns = shape[-1]
    rows = out.numel() // columns
    given = dict[str, torch.Tensor]()
    for name in (*ADDED, "multiply"):
        one = terms.get(name)
        if one is None:
            continue
        if name == "bias":
            given[name] = one.detach()
        elif how.scatters:
            target = out.movedim(0, how.dim).shape
            given[name] = one.detach().expand(target).movedim(how.dim, 0).reshape(rows, columns)
        else:
            given[name] = one.detach().expand(tuple(shape)).reshape(-1, columns)[first : first + rows]
    return given
