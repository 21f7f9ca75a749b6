"""Reductions into memory: ``target = combine(target, source)``, atomic for each element.

One table lists the kinds for each element type.  Threads and blocks may reduce into one element at the same
time: no update is lost, and their order is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.errors import Violation
from tilewright.ir.op import Op
from tilewright.ir.types import Value

_INTEGERS = ("i64", "u64", "i32", "u32")

REDUCTIONS: dict[str, tuple[str, ...]] = {
    "add": ("f64", "f32", "f16", "bf16", *_INTEGERS),
    "min": ("f64", "f32", *_INTEGERS),
    "max": ("f64", "f32", *_INTEGERS),
    "and": _INTEGERS,
    "or": _INTEGERS,
}
"""Element types of each kind of reduction.

Minima and maxima of floats are exact in any order, and NaN if any operand is NaN.  For zeros of different
sign, either may be the result.  Sums of floats depend on the order.
"""


def verify_reduction(op: Op, kind: str | None, target: Value) -> Iterator[Violation]:
    """Yield the rules that an operation's reduction into a tensor breaks; nothing if it does not reduce."""
    if kind is None:
        return
    if kind not in REDUCTIONS:
        known = ", ".join(map(repr, REDUCTIONS))
        yield op.violation("reduction", f"reduction={kind!r} is none of {known}", "reduction='add'")
    elif target.dtype.name not in REDUCTIONS[kind]:
        names = REDUCTIONS[kind]
        same = [name for name in names if name[0] == target.dtype.name[0]]
        yield op.violation(
            "reduction",
            f"no {kind!r} of {target.dtype} in memory; there is one of {', '.join(names)}",
            f"a target of {(same or list(names))[-1]}",
        )
