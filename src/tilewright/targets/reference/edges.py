"""Elements beyond the edge of an array, followed through registers and shared memory into sums and extremes.

A tile that reaches past the edge of its array has elements there that take part in all computations: a sum
over ``exp(x)`` counts them as 1.  A load marks them.  Results computed from marked elements are marked too.
`tw.where` replaces the mark if it selects another value.  A reduction, or the K of a multiply, that mixes
marked elements with elements inside is a finding, unless their values are neutral: 0 in a sum, the least
number in a maximum.  If all reduced elements lie beyond the edge, or were replaced, as in rows past the last
one, the result is marked.

The only operation that uses a sum may subtract the share of the elements beyond the edge.  The checker knows
this share, and compares the rest with the sum of the elements inside.

Elements in global memory have no marks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.dtypes import limits
from tilewright.functions.conversions import Array
from tilewright.functions.table import FUNCTIONS
from tilewright.ir.async_ops import MmaAsync
from tilewright.ir.fragment_ops import ReduceOp
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Elementwise, Mma, Op
from tilewright.ir.types import Value
from tilewright.symbolic.nodes import Expr, bounds
from tilewright.targets.reference.agents import Actor
from tilewright.targets.reference.checker import Checker
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.memory import Storage
from tilewright.targets.reference.state import Padded, WarpRegisters
from tilewright.threads.registers import Reduction

MASKED = 1e4
"""Magnitude from which a finite number counts as the mask value of a maximum or minimum."""


TAKES_OFF = ("add", "sub", "fma")
"""Operations that may subtract the padding's share from a sum."""

MORE_ROUNDINGS = 8
"""Roundings in the author's computation of the padding's share, in addition to those of the sum."""


class Signs:
    """Finds the fragments of a kernel that hold no negative numbers: padding with 0 keeps their maximum."""

    def __init__(self, kernel: Kernel) -> None:
        ops = list(kernel.walk())
        changed = {value for op in ops for value in op.written}
        self._made = {op.result: op for op in ops if isinstance(op, Elementwise) and op.result not in changed}
        self._known: dict[Value, bool] = {}
        self._readers: dict[Value, list[Op]] = {}
        for op in ops:
            for value in op.read:
                self._readers.setdefault(value, []).append(op)
        self._changed = changed

    def sole_user(self, value: Value) -> Elementwise | None:
        """Return the only operation that reads a fragment, if it adds or subtracts with 32 bits or more."""
        readers = self._readers.get(value, [])
        user = readers[0] if len(readers) == 1 else None
        if not isinstance(user, Elementwise) or user.function not in TAKES_OFF or value in self._changed:
            return None
        wide = value.dtype.is_float and value.dtype.bits >= 32 and user.result.dtype == value.dtype
        return user if wide else None

    def is_positive_or_0(self, operand: Any) -> bool:
        """Return whether an operand never holds a negative number."""
        if not isinstance(operand, Value):
            return (bounds(operand)[0] if isinstance(operand, Expr) else operand) >= 0
        if operand.dtype.kind in ("uint", "bool"):
            return True
        if operand not in self._known:
            op = self._made.get(operand)
            self._known[operand] = op is not None and self._of(op)
        return self._known[operand]

    def combines(self, made: Value, target: Value) -> bool:
        """Return whether a fragment combines the target of ``target += x`` with something else."""
        op = self._made.get(made)
        return op is not None and len(op.operands_) > 1 and any(part is target for part in op.operands_)

    def _of(self, op: Elementwise) -> bool:
        operands = op.operands_[1:] if op.function == "select" else op.operands_
        row = FUNCTIONS[op.function]
        if row.non_negative:
            return op.result.dtype.is_float  # the least integer has no absolute value
        if op.function == "mul" and operands[0] is operands[1] and op.result.dtype.is_float:
            return True
        if op.function in ("select", "convert", "saturate"):
            return all(map(self.is_positive_or_0, operands))
        if row.keeps_sign is None or not op.result.dtype.is_float:
            return False
        return row.keeps_sign(map(self.is_positive_or_0, operands))


# ---------------------------------------------------------------- the padding's share of a sum


def check_padding_share(padded: Padded, total: Array, made: Array, unit: float) -> None:
    """Report a sum over elements outside, unless a later operation subtracts their share.

    Args:
        padded: the share of the elements outside.
        total: the sums.
        made: the results of the operation that uses them.
        unit: the unit roundoff of both.
    """
    if padded.report is None:
        return
    if made.shape == total.shape:
        with np.errstate(invalid="ignore"):
            wanted = total - padded.share
            # The total is the operand itself, so only the subtracted share adds roundings.
            bound = unit * (2 * np.abs(wanted) + (padded.extent + MORE_ROUNDINGS) * padded.sizes)
            right = np.abs(made - wanted) <= bound
        if right[padded.mixed].all():
            return
    padded.report()


# ---------------------------------------------------------------- marks


def some(marks: Array | None) -> Array | None:
    """Return marks, or None if no element is marked."""
    return marks if marks is not None and np.count_nonzero(marks) else None


def of_load(buffer: Storage, absent: Array | None, touched: Array, at: Array) -> Array | None:
    """Return which elements that a warp reads lie beyond an edge.

    Args:
        buffer: the buffer.
        absent: which elements do not exist in the view; None if all do.
        touched: which of the existing elements are read.
        at: the offsets of the read elements.
    """
    if buffer.beyond is None:
        return absent
    marks = np.zeros(touched.shape, bool) if absent is None else absent.copy()
    marks[touched] |= buffer.beyond[at]
    return some(marks)


def mark(buffer: Storage, at: Array, marks: Array | None) -> None:
    """Remember which of the elements written to shared memory lie beyond an edge."""
    if not buffer.is_shared or (buffer.beyond is None and some(marks) is None):
        return
    if buffer.beyond is None:
        buffer.beyond = np.zeros(len(buffer.elements), bool)
    buffer.beyond[at] = False if marks is None else marks


def of_elementwise(function: str, operands: list[Any], marks: list[Array | None]) -> Array | None:
    """Return which results lie beyond an edge because an operand (of ``select``: the selected one) does."""
    if all(part is None for part in marks):
        return None
    if function == "select":
        left, right = (False if part is None else part for part in marks[1:])
        chosen = np.where(operands[0], left, right)
        return chosen if marks[0] is None else np.asarray(chosen | marks[0])
    made: Array | None = None
    for part in marks:
        made = part if made is None else made if part is None else np.asarray(made | part)
    return made


def replaced_by(
    function: str, operands: list[Any], marks: list[Array | None], replaced: list[Array | None]
) -> Array | None:
    """Return which results have another number in place of an element beyond an edge.

    Args:
        function: the name of the operation.
        operands: its operands.
        marks: which of their elements lie beyond an edge.
        replaced: which of their elements have another number in place of one beyond an edge.
    """
    found = [one for one in replaced if one is not None]
    if function == "select":
        left, right = (False if part is None else part for part in marks[1:])
        found.append(np.where(operands[0], right, left) & ~np.where(operands[0], left, right))
    made: Array | None = None
    for part in found:
        made = part if made is None else np.asarray(made | part)
    return made


def of_change(
    marks: Array | None, old: WarpRegisters, old_marks: Array | None, values: Array
) -> Array | None:
    """Return which elements of a fragment lie beyond an edge after new values replace the old ones.

    Unchanged elements inside stay inside: ``total += x`` adds 0 beyond the edge of the last tile.
    """
    if marks is None or (old_marks is not None and old_marks.shape != marks.shape):
        return marks
    stays = old.written & np.asarray(old.values == values)
    return np.asarray(marks & ~(stays if old_marks is None else stays & ~old_marks))


# ---------------------------------------------------------------- reductions


def is_neutral(op: ReduceOp, values: Array, marks: Array, signs: Signs) -> Array:
    """Return which values are neutral in a reduction.

    In a maximum, unmarked values as small as a mask value, such as -1e30, are neutral too: in a row past the
    last one, they stand together with elements beyond the edge.
    """
    if op.function == "sum":
        return np.asarray(values == 0)
    least, most = limits(op.source.dtype)
    if op.function == "min":
        neutral, masked = values >= most, values >= MASKED
    else:
        neutral = values <= (0 if signs.is_positive_or_0(op.source) else least)
        masked = values <= -MASKED
    return np.asarray(neutral | (masked & ~marks) if op.source.dtype.is_float else neutral)


def of_reduce(op: ReduceOp, marks: Array, neutral: Array, replaced: Array) -> tuple[Array, Array]:
    """Follow elements beyond an edge through a reduction.

    Args:
        op: the reduction.
        marks: which elements lie beyond, of shape (lanes, results, values per result).
        neutral: which elements are neutral.
        replaced: which have another number in place of an element beyond.

    Returns:
        Which results lie beyond an edge, and which mix elements inside with elements beyond that change them;
        of shape (lanes, results).
    """
    found = [np.asarray(part.any(-1)) for part in (marks & ~neutral, ~(marks | replaced | neutral), marks)]
    for partners in lane_partners(op.plan, len(marks)):
        found = [np.asarray(part | part[partners]) for part in found]
    beyond, inside, some_beyond = found
    return some_beyond & ~inside, beyond & inside


def lane_partners(plan: Reduction, lanes: int) -> Iterator[Array]:
    """Yield the partner of each lane in each step of a reduction over pairs of lanes."""
    for digit in plan.lanes:
        apart = digit.weight
        while apart < digit.weight * digit.extent:
            yield np.arange(lanes) ^ apart
            apart *= 2


def of_multiply(a: Array, b: Array, marks: tuple[Array, Array]) -> tuple[Array, Array, Array]:
    """Follow elements beyond an edge through a multiply.

    Args:
        a: (m, k).
        b: (n, k).
        marks: which elements of each lie beyond.

    Returns:
        The rows and the columns of the sums that lie beyond an edge, and the k at which elements beyond the
        edge are multiplied into sums inside.
    """
    used, wrong = [], []
    for values, beyond in zip((a, b), marks, strict=True):
        inside = (~beyond & (values != 0)).any(1) | ~beyond.any(1)
        used.append((values != 0)[inside].any(0))
        wrong.append((beyond & (values != 0))[inside].any(0))
    rows, columns = (np.asarray(beyond.all(1)) for beyond in marks)
    if rows.all() or columns.all():
        # An operand that lies entirely beyond an edge is past the end of K, and its products are 0.
        rows, columns = np.zeros_like(rows), np.zeros_like(columns)
    return rows, columns, np.asarray((wrong[0] & used[1]) | (wrong[1] & used[0]))


# ---------------------------------------------------------------- findings


def report(
    checker: Checker,
    agent: Actor,
    op: Op,
    value: Value,
    place: tuple[tuple[int, ...], int],
    what: str,
    count: int,
) -> None:
    """Report elements beyond an edge that change a result inside.

    Args:
        checker: receives findings.
        agent: the agent.
        op: the reduction or multiply.
        value: the fragment or tensor that holds the elements.
        place: the coordinate of one of them, and its lane.
        what: its value and the result that it changes, in words.
        count: number of these elements.
    """
    neutral = "0"
    if isinstance(op, ReduceOp) and op.function != "sum":
        neutral = "-inf" if op.function == "max" else "inf"
        if not op.source.dtype.is_float:
            neutral = str(limits(op.source.dtype)[op.function == "min"])
    reason = (
        f"this element lies beyond the edge of an array and is {what};\n"
        f"  choose another number there, tw.where(inside, {value}, {neutral}), or use tw.load(..., "
        f"other=...) with a value that becomes {neutral} here"
    )
    checker.register_read(Kind.EDGE, checker.site(op, value, "read"), agent, place, count, reason)


def report_products(
    checker: Checker,
    agent: Actor,
    op: Mma | MmaAsync,
    dense: Sequence[Array],
    marks: Sequence[Array],
    wrong: Array,
    origin: tuple[int, int] = (0, 0),
) -> None:
    """Report the operands that multiply elements beyond the edge of K into sums.

    Args:
        checker: receives findings.
        agent: the agent.
        op: the multiply.
        dense: A and B, of shapes (m, k) and (n, k).
        marks: which of their elements lie beyond.
        wrong: the k at which they go into sums inside.
        origin: the first row of A, and of B.
    """
    k = int(wrong.argmax())
    for value, numbers, beyond, first in zip((op.a, op.b), dense, marks, origin, strict=True):
        used = beyond[:, k] & (numbers[:, k] != 0)
        if used.any():
            row = int(used.argmax())
            what = f"{spelled(numbers[row, k])}, which is multiplied into sums of elements inside"
            count = int((beyond & (numbers != 0))[:, wrong].sum())
            report(checker, agent, op, value, ((first + row, k), 0), what, count)


def spelled(value: Any) -> str:
    """Format a number for messages."""
    number = float(value)
    return str(int(number)) if math.isfinite(number) and number.is_integer() else f"{number:.6g}"
