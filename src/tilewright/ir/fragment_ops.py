"""Operations on whole fragments: reductions, parts, other maps, coordinates; and the dtypes of results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.dtypes import DType, boolean, f32, i32, i64, limits
from tilewright.errors import DTypeError, LayoutError, Violation
from tilewright.functions.function import integers
from tilewright.functions.table import CONVERSION, FUNCTIONS, TAKE
from tilewright.ir.op import IN_REGISTERS, REGISTERS, SHARED, Op, Traits
from tilewright.ir.types import FragmentType, Type, Value
from tilewright.symbolic.nodes import Expr, Int, bounds
from tilewright.threads.distribution import Distribution
from tilewright.threads.registers import Keep, PrefixPlan, Reduction, is_local, prefix, reduction

__all__ = ["FRAGMENT_OPS", "REDUCTIONS", "Coordinates", "PrefixOp", "Redistribute", "ReduceOp"]

REDUCTIONS = ("sum", "max", "min")
"""Functions of `ReduceOp`."""


@dataclass(frozen=True)
class ReduceOp(Op):
    """``result[..., g, ...] = function(source[..., c, ...] for all c whose kept digits are g)``.

    The extent of the result along ``dim`` is 1, or the number of values of the digits ``keep``.  Threads that
    held different coordinates along ``dim`` then hold copies; values along it are dropped.

    A sum is computed in f32 for narrower floats and rounded once at the end; integers wrap.  Its order: each
    thread adds its values by rising register number, then pairs of lanes add their sums, neighbours in the
    thread index first.  A target without threads may use any other order.  Without second-order terms and
    without the rounding of the result to its dtype, a sum of n numbers is within ``(n - 1) u sum(|x|)`` of
    the exact sum, u the unit roundoff.  A maximum or minimum is NaN if any element is NaN.

    Args:
        source: the fragment.
        function: one of `REDUCTIONS`.
        dim: the dimension.
        keep: digits of its coordinate that are not reduced, finest first: ``(extent, step)`` is
            ``coordinate // step % extent``.
    """

    name = "reduce"
    traits = Traits((REGISTERS, SHARED))
    roles: ClassVar = {"result": "defines", "source": "reads"}
    result: Value
    source: Value
    function: str
    dim: int
    keep: Keep = ()

    @staticmethod
    def infer(source: Value, function: str, dim: int, keep: Keep = ()) -> Type:
        """Type of the result."""
        if function not in REDUCTIONS:
            raise LayoutError(f"no reduction {function!r}; known: {', '.join(REDUCTIONS)}")
        made = reduction(source.fragment.distribution, dim, keep)
        return FragmentType(source.dtype, made.result)

    @property
    def plan(self) -> Reduction:
        """Return the registers and lanes to combine."""
        return reduction(self.source.fragment.distribution, self.dim, self.keep)

    def verify(self) -> Iterator[Violation]:
        """Require numbers, and a number of lanes that can be combined in pairs."""
        dtype = self.source.dtype
        if dtype.components > 1 or dtype.kind == "bool":
            yield self.violation("dtype", f"{self.function} of {dtype} {self.source}", "i32, or a real float")
        for digit in self.plan.lanes:
            if digit.extent & (digit.extent - 1) or digit.weight & (digit.weight - 1):
                text = f"{self.function} over {digit.extent} threads, {digit.weight} apart: lanes pair up"
                near = f"{1 << digit.extent.bit_length() - 1} threads, a power of two apart"
                yield self.violation("reduce", text, near)

    def outside_warps(self, lanes: int) -> Iterator[Violation]:
        """Yield a violation if the inputs of one result are in several warps of ``lanes`` threads."""
        plan = self.plan
        if plan.span <= lanes:
            return
        warps = 1
        for digit in plan.lanes:
            inside = min(max(lanes // digit.weight, 1), digit.extent)
            warps *= digit.extent // inside
        shape = list(plan.result.shape)
        shape[self.dim] *= warps
        kind = "f32" if self.source.dtype.is_float and self.source.dtype.bits < 32 else self.source.dtype
        near = f"scratch=tw.shared({tuple(shape)}, tw.{kind})"
        if math.prod(digit.extent for digit in plan.lanes) <= lanes:  # another order of threads avoids it
            order = (self.dim, *(dim for dim in range(len(shape)) if dim != self.dim))
            near += (
                f", or threads that dimension {self.dim} numbers first, as in tw.blocked(..., order={order})"
            )
        rule = f"each result needs values of {warps} warps, and lanes exchange values within one warp only"
        text = f"{self.function} of {self.source} along dimension {self.dim}: {rule}"
        yield self.violation("reduce", text, near)


@dataclass(frozen=True)
class PrefixOp(Op):
    """``result[..., j, ...] = before[..., j // run, ...] + sum(source[..., i, ...] for i <= j in j's run)``.

    A run is ``run`` neighbours along ``dim``, in the lanes of one warp.  Sums are computed in f32 for
    narrower floats and rounded once at the end; integers wrap.  Their order: digits of the coordinate from
    the finest to the coarsest.  A thread adds its own values by rising coordinate, and pairs of lanes
    exchange their sums.  A target without threads may use any other order.

    Args:
        source: the fragment.
        before: the numbers that the elements of each run begin with, in the map of the runs' sums; None: 0.
        dim: the dimension.
        run: length of the runs; it divides the extent of the dimension.
    """

    name = "prefix"
    traits = Traits((REGISTERS, SHARED))
    roles: ClassVar = {"result": "defines", "source": "reads", "before": "reads"}
    result: Value
    source: Value
    dim: int
    run: int
    before: Value | None = None

    @staticmethod
    def infer(source: Value, dim: int, run: int, before: Value | None = None) -> Type:
        """Type of the result."""
        spread = source.fragment.distribution
        made = prefix(spread, dim, run).runs.result
        if before is not None and before.type != (wanted := FragmentType(source.dtype, made)):
            raise LayoutError(f"before is {before.type}; the sums of the runs are {wanted}")
        return FragmentType(source.dtype, spread)

    @property
    def plan(self) -> PrefixPlan:
        """Return the registers and lanes along which sums pass."""
        return prefix(self.source.fragment.distribution, self.dim, self.run)

    def verify(self) -> Iterator[Violation]:
        """Require numbers, and a number of lanes that can be combined in pairs."""
        dtype = self.source.dtype
        if dtype.components > 1 or dtype.kind == "bool":
            yield self.violation("dtype", f"prefix sums of {dtype} {self.source}", "i32, or a real float")
        for stage in self.plan.stages:
            if stage.in_lanes and (stage.extent & (stage.extent - 1) or stage.weight & (stage.weight - 1)):
                text = f"prefix sums over {stage.extent} threads, {stage.weight} apart: lanes pair up"
                near = f"{1 << stage.extent.bit_length() - 1} threads, a power of two apart"
                yield self.violation("prefix", text, near)

    def outside_warps(self, lanes: int) -> Iterator[Violation]:
        """Yield a violation if a run is in several warps of ``lanes`` threads."""
        if self.plan.runs.span > lanes:
            text = f"a run of {self.run} elements of {self.source} is in several warps of {lanes} lanes"
            yield self.violation("prefix", text, "shorter runs, in one warp each")


@dataclass(frozen=True)
class Redistribute(Op):
    """``result[i] = source[start + i]``: a part of a fragment, or all of it, with another map.

    Every thread must already hold its elements of the result in ``source``.

    Args:
        source: the fragment.
        start: coordinates of the result's first element, with at most one symbol, which has bounds.
        distribution: distribution of the result.
    """

    name = "redistribute"
    traits = Traits((REGISTERS, SHARED))
    roles: ClassVar = {"result": "defines", "source": "reads"}
    result: Value
    source: Value
    start: tuple[Int, ...]
    distribution: Distribution

    @staticmethod
    def infer(source: Value, start: tuple[Int, ...], distribution: Distribution) -> Type:
        """Type of the result."""
        return FragmentType(source.dtype, distribution)

    def verify(self) -> Iterator[Violation]:
        """Require the box to lie in the source, and every value to stay in its thread."""
        held, shape = self.source.fragment.distribution, self.distribution.shape
        if len(shape) != held.rank or len(self.start) != held.rank:
            yield self.violation("redistribute", f"box of {shape} at {self.start} in a tile of {held.shape}")
        elif not all(
            int(bounds(at)[0]) >= 0 and bounds(at)[1] + extent <= whole
            for at, extent, whole in zip(self.start, shape, held.shape, strict=True)
        ):
            yield self.violation(
                "redistribute", f"box of {shape} at {self.start} is not inside {self.source}: {held.shape}"
            )
        elif held.size_threads > 1 and not is_local(held, self.distribution, self.start):
            yield self.violation(
                "redistribute",
                f"threads would need elements of {self.result} that they do not hold in {self.source}, which "
                f"has {held}; the result has {self.distribution}",
                f"through shared memory: scratch=tw.shared({held.shape}, tw.{self.source.dtype})",
            )


@dataclass(frozen=True)
class Coordinates(Op):
    """``result[i0, i1, ...] = i_dim``, in i32: the coordinate of each element of a tile."""

    name = "coordinates"
    traits = IN_REGISTERS
    roles: ClassVar = {"result": "defines"}
    result: Value
    distribution: Distribution
    dim: int

    @staticmethod
    def infer(distribution: Distribution, dim: int) -> Type:
        """Type of the result."""
        if not 0 <= dim < distribution.rank:
            raise LayoutError(f"dimension {dim} of a tile of rank {distribution.rank}")
        return FragmentType(i32, distribution)


FRAGMENT_OPS: tuple[type[Op], ...] = (ReduceOp, PrefixOp, Redistribute, Coordinates)


# ---------------------------------------------------------------- dtypes of results


def result_dtype(function: str, operands: Sequence[DType], asked: DType | None) -> DType:
    """Return a function's dtype: ``asked`` (conversions), boolean (comparisons), or that of the operands.

    Args:
        function: the elementwise function.
        operands: the dtypes of the operands that have one; the first one of a select is its condition's.
        asked: the dtype of a conversion, and of a function whose operands are all plain numbers.

    Raises:
        DTypeError: the operands' dtypes differ, the function is unknown, or it needs floats.
    """
    if function not in FUNCTIONS:
        raise DTypeError(f"unknown elementwise function {function!r}; known: {', '.join(FUNCTIONS)}")
    if function in CONVERSION:
        if asked is None:
            raise DTypeError(f"{function} needs the dtype to convert to")
        if function == "bitcast" and operands:
            given, obstacle = operands[0], ""
            if given.kind == "bool" or asked.kind == "bool" or given.bits < 8:
                obstacle = "needs numbers of whole bytes; nearest legal choice: .to(...)"
            elif given.components > 1 or asked.components > 1:
                obstacle = "needs real numbers"
            elif given.bits != asked.bits:
                obstacle = f"needs the same number of bits; nearest legal choice: tw.u{given.bits}"
            if obstacle:
                raise DTypeError(f"bitcast of {given} to {asked}: {obstacle}")
        return asked
    if function == TAKE:
        if operands and (obstacle := integers(operands[0])):
            raise DTypeError(f"{function} by codes of {operands[0]}: {obstacle}")
        made = f32 if asked is None else asked
        if made.components > 1 or made.kind in ("bool", "exponent") or made.is_packed:
            raise DTypeError(f"{function} of a table of {made}: needs real numbers of whole bytes")
        return made
    values = list(operands[1:]) if function == "select" else list(operands)
    if len(set(values)) > 1:
        raise DTypeError(f"{function} of {' and '.join(str(v) for v in values)}: convert one of them first")
    if not values:
        return f32 if asked is None else asked
    if obstacle := FUNCTIONS[function].takes(values[0]):
        raise DTypeError(f"{function} of {values[0]}: {obstacle}")
    return FUNCTIONS[function].result(values[0])


def choice_dtype(function: str, operands: Sequence[object]) -> DType | None:
    """Return the dtype of a select between integers, or between truth values, without dtypes of their own.

    Truth values stay truth values.  Integers of the author and of the kernel become i32 if it holds all of
    them, otherwise i64.

    Args:
        function: the elementwise function.
        operands: the condition and both alternatives.

    Returns:
        None if an alternative has a dtype, or is a float; then use `result_dtype`.

    Example:
        >>> choice_dtype("select", (True, 1, 0)), choice_dtype("select", (True, 1, 2**40))
        (i32, i64)
    """
    if function != "select":
        return None
    plain = [arm for arm in operands[1:] if isinstance(arm, int | Expr)]
    if len(plain) < len(operands) - 1:
        return None
    if all(isinstance(arm, bool) for arm in plain):
        return boolean
    ends = [end for arm in plain for end in bounds(arm)]
    low, high = limits(i32)
    return i32 if low <= min(ends) and max(ends) <= high else i64


def widest_map(maps: Sequence[Distribution]) -> Distribution:
    """Return the map that the others broadcast to, if they fit: the first with the most elements."""
    return max(maps, key=lambda spread: math.prod(spread.shape))
