"""Control flow that is recorded: loops, branches, mutable integers."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tilewright.errors import TraceError
from tilewright.ir.indices import loop_index
from tilewright.ir.ops import For, GetVariable, If, SetVariable, Variable
from tilewright.ir.types import Value
from tilewright.lang.scalars import Condition, Index, Scalar, unwrap, unwrap_condition
from tilewright.lang.source import author_frame, here, next_stored_name
from tilewright.lang.tensors import Fragment, Number, Tensor
from tilewright.lang.tracer import current
from tilewright.layout.nodes import FALSE, Int, Sym

_SYMBOLIC = (Scalar, Condition, Tensor, Fragment, Number)


def range(  # noqa: A001
    *span: Index, unroll: bool = False, provenance: str = ""
) -> Iterator[Index]:
    """``for k in tw.range(stop)``, ``(start, stop)`` or ``(start, stop, step)``: a loop of the kernel.

    The body is traced once with a symbolic index.  Rebinding a variable of the enclosing function inside the
    body is refused, because the loop would not carry it: use `var`, `Fragment.assign` or ``+=``.

    Args:
        span: as in Python; the step is a positive integer.
        unroll: copy the body for every iteration.
        provenance: what the loop implements; ``"mainloop"`` for the K loop of a GEMM.
    """
    if not 1 <= len(span) <= 3:
        raise TraceError(f"tw.range takes 1 to 3 numbers, not {len(span)}", here())
    start, stop = (0, span[0]) if len(span) == 1 else span[:2]
    step = span[2] if len(span) == 3 else 1
    if isinstance(step, Scalar) or step < 1:
        raise TraceError(f"tw.range with step {step!r}; the step is a positive integer constant", here())
    return _Loop(unwrap(start), unwrap(stop), step, unroll, provenance)


class _Loop:
    """Records the body between its two calls of ``next``."""

    def __init__(self, start: Int, stop: Int, step: int, unroll: bool, provenance: str) -> None:
        self.span = (start, stop, step)
        self.marks = (unroll, provenance)
        self.index: Sym | None = None
        self.frame = author_frame()
        self.location = here()

    def __iter__(self) -> _Loop:
        return self

    def __next__(self) -> Index:
        tracer = current()
        if self.index is None:
            self.before = _bindings(self.frame, tracer.region_ids)
            self.index = loop_index(tracer.name(next_stored_name(self.frame, "k")), *self.span)
            tracer.enter()
            self.depth = tracer.builder.depth
            return Scalar(self.index, tracer.region_ids[-1])
        if tracer.builder.depth != self.depth:
            raise TraceError(
                "an inner loop was left by break or return; a traced loop runs to its end", self.location
            )
        _refuse_rebinding(self.before, self.frame, "loop", self.location)
        body = tracer.leave()
        tracer.builder.append(For(self.index, *self.span, body, *self.marks, location=self.location))
        raise StopIteration


def _bindings(frame: FrameType, open_regions: list[int]) -> dict[str, Any]:
    """The author's variables, without those that were made in regions that are closed by now."""
    found = dict(frame.f_locals)
    return {
        name: value
        for name, value in found.items()
        if not isinstance(value, _SYMBOLIC) or getattr(value, "region", 0) in open_regions
    }


def _refuse_rebinding(before: dict[str, Any], frame: FrameType, where: str, location: Any) -> None:
    after = frame.f_locals
    for name, old in before.items():
        new = after.get(name, old)
        if new is old or not (isinstance(old, _SYMBOLIC) or isinstance(new, _SYMBOLIC)):
            continue
        if isinstance(new, Scalar) and isinstance(old, Scalar) and new.expr == old.expr:
            continue
        hint = "use `acc.assign(...)` or `acc += ...`" if isinstance(new, Fragment) else "use `tw.var`"
        raise TraceError(
            f"{name} is rebound inside the {where}, which would not carry its new value; "
            f"{hint} for a value that changes, or another name for a temporary",
            location,
        )


@contextmanager
def when(condition: Condition | bool) -> Iterator[None]:
    """``with tw.when(condition):`` records a branch; `otherwise` may follow."""
    tracer, frame, location = current(), author_frame(), here()
    cond = unwrap_condition(condition)
    before = _bindings(frame, tracer.region_ids)
    tracer.enter()
    yield
    _refuse_rebinding(before, frame, "branch", location)
    block = tracer.leave()
    if cond != FALSE or block.ops:
        tracer.builder.append(If(cond, block, location=location))


@contextmanager
def otherwise() -> Iterator[None]:
    """``with tw.otherwise():`` right after a `when` block records its other branch."""
    tracer, frame, location = current(), author_frame(), here()
    before = _bindings(frame, tracer.region_ids)
    last = tracer.builder.take_last()
    if not isinstance(last, If) or last.otherwise.ops:
        raise TraceError("tw.otherwise() must follow directly on a `with tw.when(...)` block", location)
    tracer.enter()
    yield
    _refuse_rebinding(before, frame, "branch", location)
    tracer.builder.append(If(last.condition, last.then, tracer.leave(), location=last.location))


def unroll(stop: int) -> builtins.range:
    """A Python loop over a static count: the body is traced once per iteration."""
    count = unwrap(stop)
    if not isinstance(count, int):
        raise TraceError(f"tw.unroll needs a static count, not {count}; use tw.range", here())
    return builtins.range(count)


class MutableIndex:
    """A mutable integer; see `var`."""

    def __init__(self, value: Value) -> None:
        self.value = value

    def get(self) -> Scalar:
        """The present value."""
        tracer = current()
        sym = Sym(tracer.names((f"{self.value.name}_now",))[0], -(2**31), 2**31 - 1)
        tracer.builder.append(GetVariable(sym, self.value, location=here()))
        return Scalar(sym, tracer.region_ids[-1])

    def set(self, value: Index) -> None:
        """Change the value."""
        current().emit(SetVariable, variable=self.value, value=unwrap(value))


def var(initial: Index = 0) -> MutableIndex:
    """A mutable integer that loops and branches carry: ``x = tw.var(0); x.set(x.get() + 1)``."""
    return MutableIndex(current().define(Variable, "variable", initial=unwrap(initial)))
