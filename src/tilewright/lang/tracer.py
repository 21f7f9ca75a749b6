"""The tracer: the kernel that it records, the open regions, and decorators of recording functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol, TypeVar

from tilewright.arch import REFERENCE, Arch
from tilewright.calls import Calls
from tilewright.dataflow.nodes import Flow
from tilewright.dtypes import DType
from tilewright.errors import LocatedError, Location, SignatureError, TilewrightError, TraceError, Violation
from tilewright.ir.async_ops import Role
from tilewright.ir.builder import Builder
from tilewright.ir.kernel import ClusterAxis, GridAxis, Param, SizeParam, Workspace
from tilewright.ir.op import Block, Op
from tilewright.ir.ops import Copy, Elementwise, Gather, Mma, Reshape
from tilewright.ir.types import FragmentType, TensorType, Value
from tilewright.lang.source import author_frame, here, is_authors, result_names
from tilewright.symbolic.expr import add, equal, mul, prove
from tilewright.symbolic.nodes import Equal, Int, Sym
from tilewright.symbolic.rebuilding import Guard, elements, substitute, symbols

# ---------------------------------------------------------------- threads of a block


DEFAULT_WARPS = 4
"""Warps of a block if no operation determines the number of threads."""


def threads_of(body: Block, lanes: int) -> int:
    """Return the largest number of threads of any operation, rounded up to whole warps; 1 if none has any.

    Args:
        body: the operations of a block.
        lanes: threads of a warp.
    """
    threads = 1
    for op in body.walk():
        if isinstance(op, Mma):
            threads = max(threads, op.mma.threads)
        elif isinstance(op, Role):
            threads = max(threads, (op.first + op.warps) * lanes)
        elif isinstance(op, Copy) and op.distribution is not None:
            threads = max(threads, op.distribution.size_threads)
        for value in (*op.operands, *op.results):
            kind = value.type if isinstance(value, Value) else None
            spread = kind.distribution if isinstance(kind, TensorType | FragmentType) else None
            threads = max(threads, spread.size_threads if spread is not None else 1)
    return threads if threads < lanes else -(-threads // lanes) * lanes


OpType = TypeVar("OpType", bound=Op)
_current: ContextVar[Tracer] = ContextVar("tracer")


class Construct(Protocol):
    """A loop or branch that is being recorded."""

    what: str
    location: Location

    def left(self) -> TraceError:
        """Return the error if the author's code left the construct before its end."""


class Recording(Protocol):
    """Interface to the recording of a flow in a dataflow kernel."""

    def admit(self, op: type[Op]) -> None:
        """Refuse operations of explicit kernels."""

    def refuse(self, what: str) -> NoReturn:
        """Refuse a call that belongs to explicit kernels."""

    def no_arithmetic(self, tensor: Any) -> Exception:
        """Return the error for arithmetic with a tensor that is not indexed."""

    def enter(self, construct: Construct) -> None:
        """Refuse loops and branches other than loops over spans."""

    def map(self, function: str, operands: Sequence[Any], element: DType | None) -> Any:
        """Record an elementwise function of tiles; None if no operand is a tile."""

    def part(self, tensor: Any, index: tuple[Any, ...]) -> Any:
        """Record an array indexed by spans."""

    def store(self, tensor: Any, index: tuple[Any, ...], value: Any) -> None:
        """Store a tile."""

    def finish(self, name: str, params: Sequence[Param | Sym]) -> Flow:
        """Return the recorded flow."""


class Tracer:
    """Records one kernel.

    Args:
        arch: the target architecture.
        lanes: threads of a warp; default: the architecture's number.
        threads: threads of the block, if known; default: derived from the recorded operations.
    """

    def __init__(self, arch: Arch = REFERENCE, lanes: int | None = None, threads: int | None = None) -> None:
        self.arch = arch
        self.lanes = arch.lanes if lanes is None else lanes
        self.wanted_lanes: int | None = None  # warp size that an atom needs and the architecture supports
        self.threads = threads
        self.assumed_threads: int | None = None  # threads of the block, assumed by a default distribution
        self.builder = Builder()
        self.grid: list[GridAxis] = []
        self.cluster: list[ClusterAxis] = []
        self.cluster_shape: tuple[int, ...] = ()
        self.derived: list[SizeParam] = []
        self.workspaces: list[Workspace] = []
        self.guards: list[Guard] = []
        self.violations: list[Violation] = []
        self.warps = [0]  # warps taken by roles: of the block, and of each open role
        self.roles: list[int] = []  # warps of each open role
        self.groups: list[tuple[int, Sym]] = []  # number of groups of each open role, and the index
        self.numbers: set[int] = set()  # numbers of role barriers
        self.sizes: set[Sym] = set()
        # Integers from memory, variables or arguments, and integers that depend on them.
        self.data: set[Sym] = set()
        self.region_ids: list[int] = [0]
        self.flow: Recording | None = None  # set by the first loop over tiles
        self._regions = 0
        self._open: list[Construct] = []

    def depends_on_data(self, *values: Int) -> bool:
        """Return whether a value depends on an integer from memory, a variable or an argument."""
        return any(bool(elements(value)) or not self.data.isdisjoint(symbols(value)) for value in values)

    def are_equal(self, one: Int, other: Int) -> bool:
        """Return whether two integers are equal, by proof or because the author requires it."""
        equations = [guard.condition for guard in self.guards if isinstance(guard.condition, Equal)]
        for equation in equations:
            sides = equation.left, equation.right
            for size, value in (sides, sides[::-1]):
                if isinstance(size, Sym) and size not in symbols(value):
                    one, other = substitute(one, {size: value}), substitute(other, {size: value})
                    break
        gap = add(one, mul(other, -1))
        required = [add(equation.left, mul(equation.right, -1)) for equation in equations]
        return any(
            prove(equal(sign, zero)) is True for zero in (0, *required) for sign in (gap, mul(gap, -1))
        )

    def names(self, defaults: tuple[str, ...]) -> tuple[str, ...]:
        """Return unique names for the results of a call: the author's variables if they can be found."""
        seen, own = result_names()
        if len(seen) != len(defaults):
            seen, own = defaults, False
        return tuple(self.name(name, own) for name in seen)

    def name(self, wanted: str, own: bool = True) -> str:
        """Return a unique name, by default the author's."""
        names = self.builder.names
        return names.own(wanted) if own else names.unique(wanted)

    def emit(self, op: type[OpType], **attributes: Any) -> OpType:
        """Record an operation without a result at the author's line."""
        self.admit(op)
        return self.builder.append(op(location=here(), **attributes))

    def define(
        self, op: type[OpType], default: str, named: str | None = None, *, shown: str = "", **attributes: Any
    ) -> Value:
        """Record an operation with a result, named by the author or after the author's variable.

        ``shown`` is the source text that makes this view from a tensor.  Messages use it if the result has no
        variable.
        """
        self.admit(op)
        seen, own = result_names()
        name, own = (seen[0], own) if len(seen) == 1 else (default, False)
        shown = shown if len(seen) != 1 else ""
        if named is not None:
            name, own = named, is_authors(author_frame())
            if not name.isidentifier():
                raise TraceError(f"name={named!r} is not a name", here(), f"name={default!r}")
        with located():
            return self.builder.define(op, name, here(), own, shown=shown, **attributes)

    def admit(self, op: type[Op]) -> None:
        """Refuse operations that a dataflow kernel cannot have."""
        if self.flow is not None:
            self.flow.admit(op)

    def explicit(self) -> str | None:
        """Return the first recorded operation of an explicit kernel, or None."""
        ops = (op for op in self.builder.recorded() if not isinstance(op, Reshape | Gather | Elementwise))
        made = [(bool(self.grid), "tw.block_index"), (bool(self.workspaces), "tw.workspace")]
        made += [(bool(self.cluster_shape), "tw.hopper.cluster_index"), (bool(self.derived), "tw.derived")]
        return next((what for there, what in made if there), next((f"tw.{op.name}" for op in ops), None))

    def refuse_in_flow(self, what: str) -> None:
        """Refuse a call of this name in a dataflow kernel."""
        if self.flow is not None:
            self.flow.refuse(what)

    def note_lanes(self, lanes: int) -> None:
        """Note the warp size that an atom needs."""
        if lanes != self.lanes and lanes in self.arch.other_lanes and self.wanted_lanes is None:
            self.wanted_lanes = lanes

    def default_threads(self) -> int:
        """Return the default number of threads for a tile: all of the role, or of the block.

        The number for the block is an assumption from the operations recorded so far.
        """
        if self.roles:
            return self.roles[-1] * self.lanes
        if self.assumed_threads is None:
            said = threads_of(self.builder.so_far(), self.lanes)
            self.assumed_threads = self.threads or (max(said, self.lanes) if said > 1 else 1)
        return self.assumed_threads

    def corrected(self, threads: int) -> Tracer | None:
        """Return a tracer to record the kernel again, if an assumption of this one was wrong; otherwise None.

        Args:
            threads: threads of the block according to its operations; 1 if no operation determines them.
        """
        if self.wanted_lanes is not None and self.lanes == self.arch.lanes:
            return Tracer(self.arch, self.wanted_lanes)
        if self.assumed_threads is None or threads <= self.assumed_threads != 1:
            return None
        needed = max(threads, self.lanes) if threads > 1 else DEFAULT_WARPS * self.lanes
        return Tracer(self.arch, self.lanes, needed)

    def violate(self, rule: str, message: str, nearest: str = "") -> None:
        """Record a violated rule at the author's line and continue tracing."""
        self.violations.append(Violation(rule, message, nearest, here()))

    def enter(self, construct: Construct) -> None:
        """Open a region."""
        if self.flow is not None:
            self.flow.enter(construct)
        self._regions += 1
        self._open.append(construct)
        self.region_ids.append(self._regions)
        self.builder.open()

    def leave(self, construct: Construct) -> Block:
        """Close the innermost region, which must be the construct's, and return its block."""
        if self._open[-1] is not construct:
            raise self._open[-1].left()
        self._open.pop()
        self.region_ids.pop()
        return self.builder.close()

    def finish(self) -> Block:
        """Return the kernel's body; every loop and branch must be closed."""
        if self._open:
            raise self._open[-1].left()
        return self.builder.close()


@contextmanager
def tracing(tracer: Tracer) -> Iterator[None]:
    """Make ``tracer`` the current one."""
    token = _current.set(tracer)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Tracer:
    """Return the tracer of the kernel being recorded.

    Raises:
        TraceError: no kernel is being traced.
    """
    tracer = _current.get(None)
    if tracer is None:
        rule = "decorate the function with @tw.kernel and call that"
        text = f"this belongs inside a kernel: it was called while no kernel is being traced; {rule}"
        raise TraceError(text, here())
    return tracer


def recorded_for() -> Arch:
    """Return the target architecture of the kernel; outside of kernels, the reference."""
    tracer = _current.get(None)
    return REFERENCE if tracer is None else tracer.arch


def lanes_recorded_for() -> int:
    """Return the number of threads in a warp of the recorded kernel; outside of kernels, the reference's."""
    tracer = _current.get(None)
    return REFERENCE.lanes if tracer is None else tracer.lanes


def open_region() -> int:
    """Return the number of the open region; 0 outside of all loops and branches, and outside of kernels."""
    tracer = _current.get(None)
    return 0 if tracer is None else tracer.region_ids[-1]


class located:  # noqa: N801
    """``with located():`` adds the author's line to errors that layouts and types raise."""

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """Raise the error again with a location."""
        if isinstance(error, LocatedError) or not isinstance(error, TilewrightError | TypeError | ValueError):
            return
        raise TraceError(str(error), here()) from error


# ---------------------------------------------------------------- decorators of the language's functions


def _refusal(message: str) -> TraceError:
    return TraceError(message, here())


class _MisfitError(TraceError, SignatureError):
    """The error of a call with unknown arguments, with the author's line; it prints as `SignatureError`."""

    __module__, __qualname__ = SignatureError.__module__, SignatureError.__qualname__


def _misfit(message: str) -> _MisfitError:
    return _MisfitError(message, here())


verb = Calls(_refusal, before=current, misfit=_misfit)
"""Decorator of functions that record operations, and so are legal only inside a kernel."""

inline = Calls(_refusal, misfit=_misfit)
"""Decorator of functions on integers and maps, which are also legal outside of kernels."""
