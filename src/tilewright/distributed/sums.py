"""Sums of the ranks' partial sums, in an order that depends on the number of parts alone.

Parts are added by a kernel of this library, either one after the other or as a binary tree of eight leaves.
The terms after a product (bias, activation and others) follow in the same kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from inspect import Parameter, Signature
from typing import Any

import torch

from tilewright.dtypes import DType, f32, f64
from tilewright.errors import LaunchError
from tilewright.lang.dataflow.loops import tiles
from tilewright.lang.functions import derivative as slope
from tilewright.ops.ending import ACTIVATIONS
from tilewright.runtime.kernel import Kernel, kernel
from tilewright.torch.registry import dtype_of

PARTS = 8
"""Parts of the summed dimension if bits must not depend on the number of ranks; also the most ranks."""

TERMS = {"c": "M N", "bias": "N", "multiply": "M N", "residual": "M N"}
"""Arrays of the terms after a sum, with the dimensions that the kernel sees."""


def in_order(parts: Sequence[Any]) -> Any:
    """Add parts one after the other.

    Example:
        >>> in_order(["a", "b", "c", "d"])
        'abcd'
    """
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def as_tree(parts: Sequence[Any]) -> Any:
    """Add neighbours, then neighbouring sums, and so on; the number of parts is a power of 2.

    Example:
        >>> as_tree([(1,), (2,), (3,), (4,)])
        (1, 2, 3, 4)
    """
    while len(parts) > 1:
        parts = [one + other for one, other in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


@lru_cache(256)
def _adding(
    count: int,
    is_tree: bool,
    terms: tuple[str, ...],
    activation: str | None,
    derivative: str | None,
    sums: DType,
    kind: DType,
) -> Kernel:
    """Return the kernel that adds ``count`` parts and applies terms."""
    add: Callable[[Sequence[Any]], Any] = as_tree if is_tree else in_order
    declared: dict[str, Any] = {"S": "R M N", **{one: TERMS[one] for one in terms}, "Y": "M N"}
    if "c" in terms:
        declared["beta"] = sums

    def added(*given: Any) -> None:
        arrays = dict(zip(declared, given, strict=True))
        for m, n in tiles(arrays["Y"]):
            value = add([arrays["S"][part, m, n].to(kind) for part in range(count)])
            if "c" in terms:
                value = value + arrays["beta"] * arrays["c"][m, n].to(sums)
            if "bias" in terms:
                value = value + arrays["bias"][n].to(sums)
            if activation is not None:
                value = ACTIVATIONS[activation](value)
            if "multiply" in terms:
                factor = arrays["multiply"][m, n].to(sums)
                value = value * (factor if derivative is None else slope(derivative, factor))
            if "residual" in terms:
                value = value + arrays["residual"][m, n].to(sums)
            arrays["Y"][m, n] = value

    names = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in declared]
    added.__signature__ = Signature(names)  # type: ignore[attr-defined]
    return kernel(**declared)(added)


def add_parts(
    parts: torch.Tensor,
    out: torch.Tensor,
    *,
    is_tree: bool = False,
    activation: str | None = None,
    derivative: str | None = None,
    beta: float | None = None,
    terms: Mapping[str, torch.Tensor] = {},
) -> None:
    """``out = activation(sum of parts + beta * c + bias) * multiply + residual``, rounded once.

    Args:
        parts: tensor (R, M, N) of the sums' dtype: f32, f64 or integers.
        out: tensor (M, N), which is written.
        is_tree: whether parts are added as a tree; otherwise in their order.
        activation: as in `matmul`.
        derivative: as in `matmul`.
        beta: factor of ``c``; default: 1.
        terms: tensors of the result's shape, ``bias`` of shape (N,), by the names of `TERMS`; sums of
            integers take none.

    Raises:
        LaunchError: a tree of a number of parts that is no power of 2.

    Example:
        >>> out = torch.empty(1, 2)
        >>> add_parts(torch.tensor([[[1.0, -4.0]], [[2.0, 3.0]]]), out, activation="relu")
        >>> out.tolist()
        [[3.0, 0.0]]
    """
    count = parts.shape[0]
    if is_tree and count & (count - 1):
        raise LaunchError(
            f"a tree of {count} parts; nearest legal choice: {1 << count.bit_length() - 1} parts"
        )
    if not out.numel():
        return
    if count == 1 and not terms and activation is None and out.dtype == parts.dtype:
        out.copy_(parts[0])
        return
    own = dtype_of(parts.dtype)
    sums = f64 if own == f64 else f32
    names = tuple(name for name in TERMS if name in terms)
    numbers = [1.0 if beta is None else beta] if "c" in terms else []
    adding = _adding(count, is_tree, names, activation, derivative, sums, sums if own.is_float else own)
    adding(parts, *(terms[name] for name in names), out, *numbers)
