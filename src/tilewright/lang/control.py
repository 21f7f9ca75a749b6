"""Recorded control flow: loops, branches, mutable integers, integers in memory, and rebound variables."""

from __future__ import annotations

import builtins
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NoReturn

from tilewright.argument_checks import Count
from tilewright.errors import Location, TraceError
from tilewright.ir.integer_ops import COUNTED, VARIABLE, is_product, loop_index, named_integer
from tilewright.ir.ops import Block, For, GetVariable, If, Let, Op, ReadIndex, SetVariable, Variable
from tilewright.ir.types import Value
from tilewright.lang.dataflow.tiles import Tile
from tilewright.lang.scalars import Condition, Index, Scalar, constant, undecided, unwrap, unwrap_condition
from tilewright.lang.source import (
    InstructionRange,
    author_frame,
    author_frames,
    code_here,
    here,
    instruction_at,
    is_authors,
    is_statement_loop,
    leaving,
    loop_body,
    stored_names,
)
from tilewright.lang.tensors import Fragment, Number, Tensor
from tilewright.lang.tracer import current, inline, located, verb
from tilewright.layout.limits import COPIES, UNROLLED
from tilewright.symbolic.expr import less
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import Guard, symbols

# ---------------------------------------------------------------- rebound variables
# The body is traced once. A variable that the author rebinds inside would keep that value afterwards, for
# any loop count or condition at run time, and an iteration would never see the value of the previous one.


SYMBOLIC = (Scalar, Condition, Tensor, Fragment, Tile, Number)
_PLAIN = (bool, int, float, str, bytes, type(None))
_ABSENT = object()


@dataclass(frozen=True)
class _Variable:
    """The old value of a variable: the object, and the contents of a list, a dictionary or an object."""

    value: Any
    parts: dict[Any, Any]

    @staticmethod
    def of(value: Any) -> _Variable:
        if isinstance(value, SYMBOLIC):
            return _Variable(value, {})
        if type(value) is list:
            return _Variable(value, dict(enumerate(value)))
        if type(value) is dict:
            return _Variable(value, dict(value))
        own = not isinstance(value, type | ModuleType | FunctionType)
        return _Variable(value, dict(getattr(value, "__dict__", {})) if own else {})

    def replaced(self, now: _Variable) -> Any:
        """Return the key or attribute of the first part that has changed, or `_ABSENT`."""
        if self.value is not now.value:
            return _ABSENT
        shared = [key for key in self.parts if key in now.parts]
        return next((key for key in shared if not _same(self.parts[key], now.parts[key])), _ABSENT)


class Watch:
    """The author's variables at the start of a loop or branch."""

    def __init__(self, what: str, location: Location) -> None:
        self.what = what
        self.location = location
        self.regions = tuple(current().region_ids)
        self.scopes = [_Scope(frame) for frame in author_frames()]

    def check(self) -> None:
        """Refuse rebound variables; call it at the end of the body.

        Raises:
            TraceError: names the variable, at the line that binds it.
        """
        for depth, scope in enumerate(self.scopes):
            body = scope.body(self.what)
            for name, now in scope.variables().items():
                old = scope.before.get(name)
                if complaint := self._complaint(name, old, now, body):
                    place, frames = body.store(name), self.location.frames
                    outer = max(depth + 1 - (len(self.scopes) - len(frames)), 0)
                    raise TraceError(complaint, Location((place, *frames[outer:]) if place else frames))
        self.scopes.clear()

    def _complaint(self, name: str, old: _Variable | None, now: _Variable, body: InstructionRange) -> str:
        after = InstructionRange(body.frame, body.stop - 1, sys.maxsize)
        if old is None:
            lost = self.what != "loop" and after.reads_first(name)
            return (
                f"{name} is bound inside the {self.what} and used after it; {self._hint(name, now.value)}"
                if lost
                else ""
            )
        if (key := old.replaced(now)) is not _ABSENT:
            part = f"{name}[{key!r}]" if isinstance(now.value, list | dict) else f"{name}.{key}"
            return f"{part} is replaced inside the {self.what}; {self._hint(part, now.parts[key])}"
        if _same(old.value, now.value):
            return ""
        lost = (
            self._is_outer(old.value)
            or body.store(name) is None
            or after.reads_first(name)
            or (self.what == "loop" and body.reads_first(name))
        )
        values = (
            f" from {old.value!r} to {now.value!r}" if _is_plain(old.value) and _is_plain(now.value) else ""
        )
        return (
            f"{name} is rebound{values} inside the {self.what}; {self._hint(name, now.value)}" if lost else ""
        )

    def _is_outer(self, value: Any) -> bool:
        """Return whether a value holds a symbolic value made outside of the loop or branch."""
        if isinstance(value, tuple):
            return any(self._is_outer(part) for part in value)
        return isinstance(value, SYMBOLIC) and getattr(value, "region", 0) in self.regions

    def _hint(self, name: str, now: Any) -> str:
        why = {
            "loop": "the body is traced once, so no iteration would see the value of another",
            "branch": "the new value would hold even where the branch is not taken",
            "role": "the new value would hold for the other warps too",
        }[self.what]
        carry = "`tw.var` for an integer"
        if isinstance(now, Fragment):
            carry = f"`{name}.assign(...)` or `{name} += ...` for a fragment"
        elif isinstance(now, Tile):
            carry = f"`{name} += a @ b` for an accumulator of tw.zeros, `{name}.assign(...)` for a fold"
        elif isinstance(now, Tensor):
            carry = "one tensor and an index for a tensor"
        return f"{why}; use {carry} that changes, or another name for a temporary"


class _Scope:
    """One frame and its variables."""

    def __init__(self, frame: FrameType) -> None:
        self.frame = frame
        self.start = frame.f_lasti
        self.before = self.variables()

    def variables(self) -> dict[str, _Variable]:
        """Return the local variables by name."""
        found = dict(self.frame.f_locals)
        return {name: _Variable.of(value) for name, value in found.items() if not name.startswith(".")}

    def body(self, what: str) -> InstructionRange:
        """Return the instructions of the loop or branch body in this frame."""
        return (
            loop_body(self.frame)
            if what == "loop"
            else InstructionRange(self.frame, self.start, self.frame.f_lasti)
        )


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN)


def _same(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if isinstance(old, Scalar) and isinstance(new, Scalar):
        return old.expr == new.expr
    if isinstance(old, Condition) and isinstance(new, Condition):
        return old.cond == new.cond
    if isinstance(old, tuple) and isinstance(new, tuple):
        return len(old) == len(new) and all(map(_same, old, new))
    return _is_plain(old) and type(old) is type(new) and bool(old == new)


@verb(unroll=COPIES)
def range(  # noqa: A001
    *span: Index, unroll: bool | Count = False, provenance: str = ""
) -> Iterable[Index]:
    """``for k in tw.range(stop)``, ``(start, stop)`` or ``(start, stop, step)``: a loop of the kernel.

    The body is traced once with a symbolic index.  The body must not rebind a variable of the enclosing
    function, because the loop would not carry it: use `var`, `Fragment.assign` or ``+=``.

    Args:
        span: start, stop and step as in Python; the step is a positive integer.
        unroll: True copies the body for every iteration.  A number is the unroll factor; the number of
            iterations need not be known.  It does not change results.
        provenance: the purpose of the loop; ``"mainloop"`` for the K loop of a GEMM.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", Y="N")
        ... def column_sums(X, Y):
        ...     total = tw.fragment(tw.blocked((1, 32), (1, 32)), tw.f32, 0)
        ...     for row in tw.range(X.shape[0]):
        ...         total += tw.load(X.tile((1, 32), (row, 0)), total)
        ...     tw.copy(total, Y.unmerge(0, (1, Y.shape[0])).tile((1, 32), (0, 0)))
        >>> x, y = np.ones((5, 3), np.float32), np.empty(3, np.float32)
        >>> column_sums(x, y, target="reference").target, y.tolist()
        ('reference', [5.0, 5.0, 5.0])
    """
    if not 1 <= len(span) <= 3:
        raise TraceError(f"tw.range takes 1 to 3 integers, not {len(span)}", here())
    start, stop = (0, span[0]) if len(span) == 1 else span[:2]
    step = unwrap(span[2] if len(span) == 3 else 1)
    if not isinstance(step, int) or step < 1:
        raise TraceError(f"tw.range with step {step}; the step is a positive integer constant", here())
    current()
    _require_32_bits(unwrap(stop))
    span_, marks, location = (unwrap(start), unwrap(stop), step), (unroll, provenance), here()
    return LoopStatement(lambda: _IndexLoop(span_, marks, location))


class LoopStatement:
    """The result of `range`, `tiles` and `steps`: each ``for`` statement over it records a loop.

    Args:
        make: makes the recorder of one statement.
    """

    def __init__(self, make: Callable[[], RecordedLoop]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        loop = self.make()
        if instruction_at(author_frame()).opname != "GET_ITER":
            raise loop.misused()
        return loop


class RecordedLoop(Iterator[Any]):
    """Records the body of a ``for`` statement between its two calls of ``next``.

    Args:
        text: the call in the head of the statement, for messages.
        location: the author's line.
    """

    what = "loop"

    def __init__(self, text: str, location: Location) -> None:
        self.text = text
        self.location = location
        self.code = code_here()
        self.watch: Watch | None = None

    def __next__(self) -> Any:
        tracer = current()
        if self.watch is not None:
            block = tracer.leave(self)
            self.watch.check()
            self.end(block)
            raise StopIteration
        frame = author_frame()
        if not is_statement_loop(frame):
            raise self.misused()
        self.watch = Watch(self.what, self.location)
        tracer.enter(self)
        return self.begin(frame)

    @abstractmethod
    def begin(self, frame: FrameType) -> Any:
        """Return the values of the loop variables; the frame executes the head of the statement."""

    @abstractmethod
    def end(self, block: Block) -> None:
        """Finish the loop after its body was recorded."""

    def misused(self) -> TraceError:
        """Return the error for iteration by anything other than a ``for`` statement."""
        return TraceError(
            f"{self.text} records the body of a `for` statement; enumerate, zip, list, unpacking or a "
            f"comprehension would run once; write `for ... in {self.text}:`",
            self.location,
        )

    def left(self) -> TraceError:
        """Return the error of a loop whose body was left by break, return or an exception."""
        return _left(self.what, self.code, self.location)


class _IndexLoop(RecordedLoop):
    """A loop of `range`."""

    def __init__(self, span: tuple[Int, Int, int], marks: tuple[bool | int, str], location: Location) -> None:
        super().__init__("tw.range(...)", location)
        self.span = span
        self.marks = marks

    def begin(self, frame: FrameType) -> Index:
        """Return the index of the loop."""
        tracer = current()
        name = (*(stored_names(frame) or ()), "k")[0]
        self.index = loop_index(tracer.name(name, is_authors(frame)), *self.span)
        if tracer.depends_on_data(*self.span[:2]):
            tracer.data.add(self.index)
        return Scalar(self.index)

    def end(self, block: Block) -> None:
        """Record the loop."""
        current().builder.append(For(self.index, *self.span, block, *self.marks, location=self.location))


def _left(what: str, code: CodeType, location: Location) -> TraceError:
    how, place = leaving(code, location) or ("break, return or an exception", location)
    why = {
        "loop": "the traced iteration would be the last; put conditional operations under "
        "`with tw.when(condition):`, or shorten the range",
        "branch": "the operations after it would be skipped whether or not the branch is taken; put them "
        "under `with tw.otherwise():`",
        "role": "the other warps would skip the operations after it, too",
    }
    return TraceError(f"a traced {what} is left by {how}: {why[what]}", place)


@verb
def when(condition: Condition | bool) -> AbstractContextManager[None]:
    """``with tw.when(condition):`` records a branch; `otherwise` may follow.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def mark(X):
        ...     block = tw.block_index(2)
        ...     x = tw.fragment(tw.blocked((32,), (32,)), tw.f32)
        ...     with tw.when(block == 0):
        ...         tw.fill(x, 1.0)
        ...     with tw.otherwise():
        ...         tw.fill(x, 2.0)
        ...     tw.copy(x, X.tile((32,), (block,)))
        >>> x = np.zeros(64, np.float32)
        >>> mark(x, target="reference").target, x[[0, 63]].tolist()
        ('reference', [1.0, 2.0])
    """
    current()
    cond = unwrap_condition(condition)
    return RecordedRegion("branch", lambda block, location: If(cond, block, location=location))


@verb
def otherwise() -> AbstractContextManager[None]:
    """``with tw.otherwise():`` right after a `when` block records its other branch; see `when`.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def long_or_short(X):
        ...     x = tw.fragment(tw.blocked((32,), (32,)), tw.f32, 0)
        ...     with tw.when(X.shape[0] > 2):
        ...         tw.fill(x, 1.0)
        ...     with tw.otherwise():
        ...         tw.fill(x, -1.0)
        ...     tw.copy(x, X.tile((32,), (0,)))
        >>> x = np.zeros(2, np.float32)
        >>> long_or_short(x, target="reference").target, x.tolist()
        ('reference', [-1.0, -1.0])
    """
    last = current().builder.take_last()
    if not isinstance(last, If) or last.otherwise.ops:
        raise TraceError("tw.otherwise() must follow directly on a `with tw.when(...)` block", here())
    first = last
    return RecordedRegion("branch", lambda block, location: replace(first, otherwise=block))


class RecordedRegion(AbstractContextManager[Any]):
    """Records the body of a ``with`` statement as a region of the operation that ``finish`` makes."""

    def __init__(self, what: str, finish: Callable[[Block, Location], Op]) -> None:
        self.what = what
        self.finish = finish
        self.location = here()
        self.code = code_here()

    def __enter__(self) -> Any:
        if leaving(self.code, self.location) is not None:
            raise self.left()
        self.watch = Watch(self.what, self.location)
        current().enter(self)
        return self.enter()

    def enter(self) -> Any:
        """Return the value that ``as`` names."""

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is not None:
            return
        tracer = current()
        block = tracer.leave(self)
        self.watch.check()
        tracer.builder.append(self.finish(block, self.location))

    def left(self) -> TraceError:
        """Return the error of a region whose body leaves it early."""
        return _left(self.what, self.code, self.location)


@inline(stop=UNROLLED)
def unroll(stop: int) -> builtins.range:
    """A Python loop over a static count: the body is traced once per iteration.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def to_the_eighth(X):
        ...     part = X.tile((32,), (0,)).partition((32,))
        ...     x = tw.load(part)
        ...     for _ in tw.unroll(3):
        ...         x = x * x
        ...     tw.copy(x, part)
        >>> x = np.float32([1, 2, -2])
        >>> to_the_eighth(x, target="reference").target, x.tolist()
        ('reference', [1.0, 256.0, 256.0])
    """
    count = unwrap(stop)
    if not isinstance(count, int):
        raise TraceError(f"tw.unroll needs a static count, not {count}; use tw.range", here())
    return builtins.range(count)


@verb
def let(value: Index) -> Index:
    """Compute an integer once, under a name that also appears in the generated text.

    The name is that of the variable it is assigned to.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def back_to_front(X):
        ...     blocks = tw.ceil_div(X.shape[0], 32)
        ...     block = tw.block_index(blocks)
        ...     last_first = tw.let(blocks - 1 - block)
        ...     x = tw.fragment(tw.blocked((32,), (32,)), tw.f32, fill=0)
        ...     tw.copy(x + block, X.tile((32,), (last_first,)))
        >>> x = np.empty(64, np.float32)
        >>> "last_first = " in back_to_front(x, target="reference").ir, x[::32].tolist()
        (True, [1.0, 0.0])
    """
    tracer, known = current(), unwrap(value)
    tracer.refuse_in_flow("tw.let")
    if isinstance(known, int):
        return known
    _require_32_bits(known)
    sym = named_integer(tracer.names(("index",))[0], known)
    if tracer.depends_on_data(known):
        tracer.data.add(sym)
    tracer.builder.append(Let(sym, known, location=here()))
    return Scalar(sym)


def _require_32_bits(value: Int) -> None:
    """Make the launcher refuse sizes whose product exceeds 32 bits, the width of named integers."""
    tracer = current()
    named, wide = symbols(value), {param.sym for param in tracer.derived if param.bits == 64}
    if is_product(value) and named <= tracer.sizes and not named & wide:
        message = f"`{value}` is {{}}, and does not fit 32 bits; nearest legal choice: tw.derived({value})"
        tracer.guards.append(Guard(less(value, COUNTED), message, (value,)))


@inline.made("tw.var(0) in a kernel makes one")
class MutableIndex:
    """A mutable integer; see `var`."""

    def __init__(self, value: Value) -> None:
        self.value = value

    def __bool__(self) -> NoReturn:
        raise undecided(f"{self.value.name}.get() != 0")

    def __repr__(self) -> str:
        return f"variable {self.value.name} (its value is {self.value.name}.get())"

    @verb
    def get(self) -> Scalar:
        """Return the current value."""
        tracer = current()
        sym = Sym(tracer.names((f"{self.value.name}_now",))[0], *VARIABLE)
        tracer.data.add(sym)  # a later loop iteration may set it from memory
        tracer.builder.append(GetVariable(sym, self.value, location=here()))
        return Scalar(sym)

    @verb
    def set(self, value: Index) -> None:
        """Change the value."""
        _require_32_bits(unwrap(value))
        current().emit(SetVariable, variable=self.value, value=unwrap(value))


@verb
def var(initial: Index = 0) -> MutableIndex:
    """A mutable integer of 64 bits that loops and branches carry: ``x = tw.var(0); x.set(x.get() + 1)``.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def doublings(X):
        ...     power, steps = tw.var(1), tw.var()
        ...     for _ in tw.range(X.shape[0]):
        ...         power.set(2 * power.get())
        ...         steps.set(steps.get() + 1)
        ...     x = tw.fragment(tw.blocked((32,), (32,)), tw.f32, 0)
        ...     tw.copy(x + power.get() + steps.get(), X.tile((32,), (0,)))
        >>> x = np.zeros(5, np.float32)
        >>> doublings(x, target="reference").target, float(x[0])
        ('reference', 37.0)
    """
    return MutableIndex(current().define(Variable, "variable", initial=unwrap(initial)))


# ---------------------------------------------------------------- integers in memory


@verb
def index(source: Tensor, low: Index | None = None, stop: Index | None = None, *, multiple: int = 1) -> Index:
    """``n = source``: load an integer from memory, as an index, a loop bound or a condition.

    All threads read the same element at the place of the call, after the barriers and waits before it.  The
    declared range and divisor are known wherever the integer is used (``X.tile((64, 64), (n, 0))`` needs no
    check for n < 0).  The reference reports a value that violates them.

    Args:
        source: one element of a tensor of integers, in global or shared memory: ``sizes[g]``.
        low: smallest legal value; default: the smallest of its dtype.
        stop: one more than the largest legal value; default: as large as its dtype allows.
        multiple: a divisor of the value.

    Raises:
        TraceError: the source has dimensions, or is not of integers.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", sizes="M", Y="M")
        ... def sums(X, sizes, Y):
        ...     row = tw.block_index(X.shape[0])
        ...     one = tw.blocked((1,), (1,))
        ...     total = tw.fragment(one, tw.f32, 0)
        ...     for column in tw.range(tw.index(sizes[row], 0, X.shape[1] + 1)):
        ...         total += tw.load(X[row, column:column + 1], one)
        ...     tw.copy(total, Y[row:row + 1])
        >>> x, y = np.ones((3, 8), np.float32), np.zeros(3, np.float32)
        >>> sums(x, np.array([2, 0, 7], np.int32), y, target="reference").target, y.tolist()
        ('reference', [2.0, 0.0, 7.0])
    """
    tracer = current()
    name = tracer.names(("index",))[0]
    least, end = (None if value is None else unwrap(value) for value in (low, stop))
    divisor = constant("multiple", multiple)
    with located():
        sym = ReadIndex.symbol(name, source.value, least, end, divisor)
    tracer.data.add(sym)
    tracer.builder.append(ReadIndex(sym, source.value, least, end, divisor, location=here()))
    return Scalar(sym)
