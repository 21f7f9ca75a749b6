"""The kernels that multiply and add over ranks.

Partial sums are added in an order that depends on the number of parts alone: one after the other, or as a
binary tree of eight leaves.  The terms after a product (bias, activation and others) follow in the same
kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from tilewright.distributed.exchange import ARRIVED
from tilewright.distributed.peers import ArrivingRows, LeavingParts
from tilewright.dtypes import DType, f32, f64
from tilewright.errors import LaunchError
from tilewright.lang.dataflow.indexing import arrives, leaves
from tilewright.lang.dataflow.loops import steps, tiles, zeros
from tilewright.lang.functions import derivative as slope
from tilewright.lang.program import by_name
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


@dataclass(frozen=True)
class Ending:
    """The terms after a sum.

    Args:
        terms: names of the arrays, in the order of `TERMS`.
        activation: as in `matmul`.
        derivative: as in `matmul`.
        sums: the dtype of the sums.
    """

    terms: tuple[str, ...]
    activation: str | None
    derivative: str | None
    sums: DType

    @property
    def arrays(self) -> dict[str, Any]:
        """The dimensions of the arrays by name, as kernels declare them."""
        return {one: TERMS[one] for one in self.terms}

    def apply(self, value: Any, arrays: Mapping[str, Any], m: Any, n: Any) -> Any:
        """Record the terms of a tile after its sum."""
        sums = self.sums
        if "c" in self.terms:
            value = value + arrays["beta"] * arrays["c"][m, n].to(sums)
        if "bias" in self.terms:
            value = value + arrays["bias"][n].to(sums)
        if self.activation is not None:
            value = ACTIVATIONS[self.activation](value)
        if "multiply" in self.terms:
            factor = arrays["multiply"][m, n].to(sums)
            value = value * (factor if self.derivative is None else slope(self.derivative, factor))
        if "residual" in self.terms:
            value = value + arrays["residual"][m, n].to(sums)
        return value


def _recorded(declared: Mapping[str, Any], record: Callable[[dict[str, Any]], None]) -> Kernel:
    """Make a kernel of a function that takes its arguments by name in a dictionary."""

    def over_ranks(given: Any) -> None:
        record(vars(given))

    return kernel(**declared)(by_name(declared, over_ranks))


@lru_cache(256)
def _adding(count: int, is_tree: bool, own: int | None, ending: Ending, kind: DType) -> Kernel:
    """Return the kernel that adds ``count`` parts and applies terms; part ``own`` lies in an array alone."""
    add: Callable[[Sequence[Any]], Any] = as_tree if is_tree else in_order
    declared: dict[str, Any] = {"S": "R M N", **({} if own is None else {"OWN": "M N"}), **ending.arrays}
    declared |= {"Y": "M N"} | ({"beta": ending.sums} if "c" in ending.terms else {})

    def added(arrays: dict[str, Any]) -> None:
        for m, n in tiles(arrays["Y"]):
            parts = [arrays["OWN"][m, n] if part == own else arrays["S"][part, m, n] for part in range(count)]
            arrays["Y"][m, n] = ending.apply(add([part.to(kind) for part in parts]), arrays, m, n)

    return _recorded(declared, added)


@lru_cache(64)
def gathering(ending: Ending) -> Kernel:
    """Return the kernel of ``Y = A B`` with terms, whose tiles wait for the shards of their rows of ``A``."""
    declared = {"A": "M K", "B": "K N", **ending.arrays, "Y": "M N", "READY": "R"}

    def gathered(arrays: dict[str, Any]) -> None:
        for m, n in tiles(arrays["Y"]):
            arrives(arrays["A"], arrays["READY"], arrays["epoch"], first=arrays["first"])
            acc = zeros()
            for k in steps(arrays["A"].shape[1]):
                acc += arrays["A"][m, k] @ arrays["B"][k, n]
            arrays["Y"][m, n] = ending.apply(acc, arrays, m, n)

    return _recorded({**declared, "first": int, "epoch": int}, gathered)


@kernel(A="P S K", B="K N", PARTS="P S N", SENT="P", first=int)
def scattering(A: Any, B: Any, PARTS: Any, SENT: Any, first: Any) -> None:
    """``PARTS[p] = A[p] B``; counts ``SENT[p]`` when the last tile of ``PARTS[p]`` is stored."""
    for p, m, n in tiles(PARTS):
        leaves(PARTS, SENT, first=first)
        acc = zeros()
        for k in steps(A.shape[2]):
            acc += A[p, m, k] @ B[k, n]
        PARTS[p, m, n] = acc


def add_parts(
    parts: torch.Tensor,
    out: torch.Tensor,
    *,
    is_tree: bool = False,
    own: tuple[int, torch.Tensor] | None = None,
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
        own: a part, and the tensor (M, N) that takes the place of ``parts[part]``.
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
    element = dtype_of(parts.dtype)
    sums = f64 if element == f64 else f32
    ending = Ending(tuple(name for name in TERMS if name in terms), activation, derivative, sums)
    place, alone = (None, []) if own is None else (own[0], [own[1]])
    numbers = [1.0 if beta is None else beta] if "c" in terms else []
    adding = _adding(count, is_tree, place, ending, sums if element.is_float else element)
    adding(parts, *alone, *(terms[name] for name in ending.terms), out, *numbers)


MULTIPLIED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Dtypes of operands of the kernels that wait for shards, or count parts."""


def is_served(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the kernels multiply operands of these shapes and dtypes."""
    return a.dtype == b.dtype and a.dtype in MULTIPLIED and bool(a.numel()) and bool(b.numel())


def multiply_arriving(
    rows: ArrivingRows, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None, activation: str | None
) -> None:
    """``out = activation(rows @ b + bias)``; a tile waits for the shards of its rows, the own ones first."""
    sums, terms = f64 if b.dtype == torch.float64 else f32, {} if bias is None else {"bias": bias.detach()}
    multiply = gathering(Ending(tuple(terms), activation, None, sums))
    turn = rows.turn
    multiply(rows.whole, b, *terms.values(), out, rows.counters, turn.rank * rows.pieces, ARRIVED)


def multiply_leaving(parts: LeavingParts, a: torch.Tensor, b: torch.Tensor) -> None:
    """``parts = a @ b`` without this rank's own part; counts each piece when it is stored.

    The parts of the next rank come first, and those of the first ranks follow in a second launch.
    """
    (pieces, rows, _), own, each = parts.local.shape, parts.turn.rank, parts.pieces
    rows_of_a = a.unflatten(0, (pieces, rows))
    for begin, end in ((own + 1, parts.turn.ranks), (0, own)):
        if begin < end:
            some = slice(begin * each, end * each)
            scattering(rows_of_a[some], b, parts.local[some], parts.counters[some], 0)


@lru_cache(256)
def adding_to_own(count: int, own: int, ending: Ending) -> Kernel:
    """Return the kernel of ``Y = P0 + ... + A B + ...`` with terms: the product is part ``own`` of ``count``.

    A tile waits for the pieces of the other parts in its rows, when its product is complete.
    """
    peers = [rank for rank in range(count) if rank != own]
    declared = {"A": "M K", "B": "K N", **{f"P{rank}": "M N" for rank in peers}}
    declared |= {f"READY{rank}": f"R{rank}" for rank in peers}
    declared |= {**ending.arrays, "Y": "M N"} | ({"beta": ending.sums} if "c" in ending.terms else {})

    def added(arrays: dict[str, Any]) -> None:
        for m, n in tiles(arrays["Y"]):
            for rank in peers:
                arrives(arrays[f"P{rank}"], arrays[f"READY{rank}"], ARRIVED)
            acc = zeros()
            for k in steps(arrays["A"].shape[1]):
                acc += arrays["A"][m, k] @ arrays["B"][k, n]
            parts = [
                acc if rank == own else arrays[f"P{rank}"][m, n].to(ending.sums) for rank in range(count)
            ]
            arrays["Y"][m, n] = ending.apply(in_order(parts), arrays, m, n)

    return _recorded(declared, added)


def multiply_and_add(
    parts: LeavingParts,
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    *,
    activation: str | None = None,
    derivative: str | None = None,
    beta: float | None = None,
    terms: Mapping[str, torch.Tensor] = {},
) -> None:
    """``out = activation(sum of all ranks' parts + beta * c + bias) * multiply + residual``, rounded once.

    This rank's part is ``a @ b``, at its place in the order of the ranks.

    Args:
        parts: the parts that travel.
        a: the own rows.
        b: the second operand.
        out: tensor (M, N), which is written.
        activation: as in `add_parts`.
        derivative: as in `add_parts`.
        beta: as in `add_parts`.
        terms: as in `add_parts`.
    """
    sums, turn = f64 if b.dtype == torch.float64 else f32, parts.turn
    ending = Ending(tuple(name for name in TERMS if name in terms), activation, derivative, sums)
    peers, inbox = [rank for rank in range(turn.ranks) if rank != turn.rank], parts.inbox
    numbers = [1.0 if beta is None else beta] if "c" in terms else []
    multiply = adding_to_own(turn.ranks, turn.rank, ending)
    counters = [parts.arrivals(rank) for rank in peers]
    arrays = [*(inbox[rank] for rank in peers), *counters, *(terms[name] for name in ending.terms)]
    multiply(a, b, *arrays, out, *numbers)
