"""Gradients of products over ranks.

Gathering rows and adding rows over ranks are each other's gradients.  So are a product of gathered rows and a
sum of products over ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tilewright.distributed.calls import ADDED, How
from tilewright.distributed.exchange import chunks
from tilewright.distributed.products import gather, gather_products, reduce_products, sum_rows
from tilewright.ops import matmul as of_matmul
from tilewright.torch.products import column_sums, gradient_of_a, gradient_of_b
from tilewright.torch.terms import FROM_RESULT, present


class InvariantProduct(torch.autograd.Function):
    """``alpha * (a @ b)``, added in an order that depends on K alone, as are its gradients."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any, words: Any) -> Any:
        """Compute the product in one kernel."""
        ctx.words = words
        ctx.save_for_backward(a, b)
        return of_matmul.matmul(a.detach(), b.detach(), batch_invariant=True, **words)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        """Return the gradients, by products of the same kind."""
        a, b = ctx.saved_tensors
        of_a, of_b, _ = ctx.needs_input_grad
        return *invariant_gradients(dy, a, b, ctx.words, of_a=of_a, of_b=of_b), None


def invariant_gradients(
    dy: torch.Tensor, a: torch.Tensor, b: torch.Tensor, words: Any, *, of_a: bool, of_b: bool
) -> tuple[Any, Any]:
    """Return ``dA = dY Bᵀ`` and ``dB = Aᵀ dY``; if ``b`` has no batches, one product adds up dB."""
    d_a = InvariantProduct.apply(dy, b.mT, words).sum_to_size(a.shape) if of_a else None
    if not of_b:
        return d_a, None
    if b.dim() == 2 and a.shape[:-1] == dy.shape[:-1]:
        a, dy = a.flatten(0, -2), dy.flatten(0, -2)
    return d_a, InvariantProduct.apply(a.mT, dy, words).sum_to_size(b.shape)


def _local_gradients(
    how: How, dy: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, of_a: bool, of_b: bool
) -> tuple[Any, Any]:
    """Return the gradients of a product that one rank computes alone."""
    words = dict(how.words)
    if how.invariant:
        return invariant_gradients(dy, a, b, words, of_a=of_a, of_b=of_b)
    d_a = gradient_of_a(dy, a, b, **words) if of_a else None
    return d_a, gradient_of_b(dy, a, b, **words) if of_b else None


def _added_gradients(
    how: How, dz: torch.Tensor, dy: torch.Tensor, beta: float | None, likes: Sequence[Any]
) -> list[Any]:
    """Return the gradients of the terms in `ADDED`; ``likes`` has the shape and dtype of each wanted term."""
    c, bias, residual = likes
    d_bias = None
    if bias is not None and how.invariant:
        flat = dz.flatten(0, -2)
        d_bias = InvariantProduct.apply(flat.new_ones((1, flat.shape[0])), flat, {})[0].to(bias[1])
    elif bias is not None:
        d_bias = column_sums(dz).to(bias[1])
    return [
        None if c is None else (dz if beta is None else beta * dz).sum_to_size(c[0]).to(c[1]),
        d_bias,
        None if residual is None else dy.sum_to_size(residual[0]).to(residual[1]),
    ]


def _likes(terms: Sequence[Any], needs: Sequence[bool]) -> list[Any]:
    return [(one.shape, one.dtype) if need else None for one, need in zip(terms, needs, strict=True)]


class SharedParameter(torch.autograd.Function):
    """A parameter that is the same on all ranks; all ranks add to its gradient."""

    @staticmethod
    def forward(ctx: Any, how: How, parameter: Any) -> Any:
        """Return the parameter."""
        ctx.how = how
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        """Add the gradients of all ranks in their order."""
        how = _gradient_of(ctx.how).changed(scatters=False, dim=-2, sizes=None)
        return None, SummedRows.apply(how, dy.reshape(1, -1)).view(dy.shape)


class GatheredRows(torch.autograd.Function):
    """The rows of all ranks; each rank's gradient is the sum of its rows over all ranks."""

    @staticmethod
    def forward(ctx: Any, how: How, x: Any) -> Any:
        """Gather the rows."""
        ctx.how, ctx.rows = how, x.shape[how.dim]
        return gather(how, x, ctx.needs_input_grad[1:])

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        """Add the gradients of all ranks in their order."""
        return None, SummedRows.apply(_gradient_of(ctx.how), dy)


class SummedRows(torch.autograd.Function):
    """A rank's rows of the sum of a tensor over ranks, or all rows."""

    @staticmethod
    def forward(ctx: Any, how: How, x: Any) -> Any:
        """Exchange and add."""
        ctx.how = _with_sizes(how, x.shape[how.dim])
        return sum_rows(how, x, ctx.needs_input_grad[1:])

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        """Gather the rows of the gradient."""
        return None, GatheredRows.apply(_gradient_of(ctx.how), dy) if ctx.how.scatters else dy


class GatherProducts(torch.autograd.Function):
    """``y = activation(gathered a @ b + beta * c + bias) + residual`` for each ``b``."""

    @staticmethod
    def forward(ctx: Any, how: How, count: int, kind: Any, words: Any, a: Any, *rest: Any) -> Any:
        """Gather once, and multiply by each ``b``."""
        activation, beta = words
        bs, added = rest[:count], [rest[count + 3 * at : count + 3 * at + 3] for at in range(count)]
        needs = ctx.needs_input_grad[4:]
        terms = [_given(activation, beta, one) for one in added]
        ys, sizes = gather_products(how, a, bs, terms, kind, [needs[0], any(needs[1 : count + 1])])
        ctx.how, ctx.words, ctx.needs = how.changed(sizes=sizes or None), words, needs
        ctx.likes = [
            _likes(one, needs[1 + count + 3 * at : 4 + count + 3 * at]) for at, one in enumerate(added)
        ]
        ctx.save_for_backward(a, *bs, *(ys if activation is not None else ()))
        return tuple(ys)

    @staticmethod
    def backward(ctx: Any, *dys: torch.Tensor) -> Any:
        """Return the gradients: sums over ranks for ``a``, and products with the gathered rows for each b."""
        how, (activation, beta), count = _gradient_of(ctx.how), ctx.words, len(dys)
        a, *rest = ctx.saved_tensors
        bs, ys = rest[:count], rest[count:]
        dzs = dys
        if activation is not None:
            dzs = tuple(FROM_RESULT[activation](dy, y) for dy, y in zip(dys, ys, strict=True))
        factors = [dz.to(a.dtype) for dz in dzs]
        d_a, d_bs = None, list[Any]([None] * count)
        if any(ctx.needs[1 : count + 1]):
            whole = GatheredRows.apply(how, a) if how.gathers else a
            for at, (factor, b) in enumerate(zip(factors, bs, strict=True)):
                if ctx.needs[1 + at]:
                    d_bs[at] = _local_gradients(how, factor, whole, b, of_a=False, of_b=True)[1]
        if ctx.needs[0]:
            turned = [b.mT for b in bs]
            back = how.changed(scatters=how.gathers)
            d_a = ReduceProducts.apply(back, count, a.dtype, (None, None), *factors, *turned, *[None] * 3)
            d_a = d_a.sum_to_size(a.shape)
        d_added = list[Any]()
        for dz, dy, likes in zip(dzs, dys, ctx.likes, strict=True):
            d_added += _added_gradients(how, dz, dy, beta, likes)
        return None, None, None, None, d_a, *d_bs, *d_added


class ReduceProducts(torch.autograd.Function):
    """``y = activation(sum over ranks and pairs of a @ b + beta * c + bias) + residual``."""

    @staticmethod
    def forward(ctx: Any, how: How, count: int, kind: Any, words: Any, *rest: Any) -> Any:
        """Multiply, exchange partial sums, and add."""
        activation, beta = words
        needs = ctx.needs_input_grad[4:]
        pairs, added = list(zip(rest[:count], rest[count : 2 * count], strict=True)), rest[2 * count :]
        wanted = [any(needs[:count]), any(needs[count : 2 * count])]
        y = reduce_products(how, pairs, _given(activation, beta, added), kind, wanted)
        a, b = pairs[0]
        whole = (*a.shape[:-1], 1)
        if b.dim() > 2:
            whole = torch.broadcast_shapes(whole, (*b.shape[:-2], 1, 1))
        ctx.how, ctx.words, ctx.needs = _with_sizes(how, whole[how.dim]), words, needs
        ctx.likes = _likes(added, needs[2 * count :])
        ctx.save_for_backward(*rest[: 2 * count], *((y,) if activation is not None else ()))
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        """Return the gradients: products with the gathered rows of the gradient."""
        how, (activation, beta) = _gradient_of(ctx.how), ctx.words
        count = len(ctx.saved_tensors) // 2
        saved_as, saved_bs = ctx.saved_tensors[:count], ctx.saved_tensors[count : 2 * count]
        dz = dy if activation is None else FROM_RESULT[activation](dy, ctx.saved_tensors[-1])
        factor = dz.to(saved_as[0].dtype)
        d_as, d_bs = list[Any]([None] * count), list[Any]([None] * count)
        of_as, of_bs = any(ctx.needs[:count]), any(ctx.needs[count : 2 * count])
        if how.scatters and of_as and not of_bs:
            turned = [b.mT for b in saved_bs]
            d_as = list(
                GatherProducts.apply(how, count, None, (None, None), factor, *turned, *[None] * (3 * count))
            )
            d_as = [one.sum_to_size(a.shape) for one, a in zip(d_as, saved_as, strict=True)]
        elif of_as or of_bs:
            whole = GatheredRows.apply(how, factor) if how.scatters else factor
            for at, (a, b) in enumerate(zip(saved_as, saved_bs, strict=True)):
                wanted = {"of_a": ctx.needs[at], "of_b": ctx.needs[count + at]}
                d_as[at], d_bs[at] = _local_gradients(how, whole, a, b, **wanted)
        return None, None, None, None, *d_as, *d_bs, *_added_gradients(how, dz, dy, beta, ctx.likes)


def _given(activation: str | None, beta: float | None, added: Sequence[Any]) -> dict[str, Any]:
    """Return the keyword arguments of a call with these terms."""
    return present(activation=activation, beta=beta, **dict(zip(ADDED, added, strict=True)))


def _gradient_of(how: How) -> How:
    """Return how ranks compute a gradient; headers then name the gradient."""
    name = how.name if how.name.startswith("gradient of ") else f"gradient of {how.name}"
    return how.changed(name=name)


def _with_sizes(how: How, extent: int) -> How:
    """Return ``how`` with the extents of all ranks, so that gathering a gradient's rows needs no headers."""
    return how.changed(sizes=how.sizes or chunks(extent, how.ranks.size)) if how.scatters else how
