"""The tracer: the one kernel that is being recorded, and the regions it is in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol, TypeVar

from tilewright.arch import REFERENCE, Arch
from tilewright.dataflow.nodes import Flow
from tilewright.dtypes import DType
from tilewright.errors import LocatedError, Location, TilewrightError, TraceError, Violation
from tilewright.ir.builder import Builder
from tilewright.ir.kernel import ClusterAxis, GridAxis, Param, SizeParam, Workspace
from tilewright.ir.ops import Block, Elementwise, Op, Reshape
from tilewright.ir.types import Value
from tilewright.lang.block_threads import UNSAID_WARPS, threads_of
from tilewright.lang.source import author_frame, here, is_authors
from tilewright.lang.syntax import result_names
from tilewright.symbolic.guards import Guard
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import elements, symbols

OpType = TypeVar("OpType", bound=Op)
_current: ContextVar[Tracer] = ContextVar("tracer")


class Construct(Protocol):
    """A loop or branch that is being recorded."""

    what: str
    location: Location

    def left(self) -> TraceError:
        """What to raise when the author's code left it before its end."""


class Recording(Protocol):
    """A flow that is being recorded, in a kernel that says what is computed and not how."""

    def admit(self, op: type[Op]) -> None:
        """Refuse operations that say how."""

    def refuse(self, what: str) -> NoReturn:
        """Refuse what says how."""

    def takes_no(self, tensor: Any) -> Exception:
        """What to raise where arithmetic is done with a tensor that is not indexed."""

    def enter(self, construct: Construct) -> None:
        """Refuse loops and branches that are none over spans."""

    def map(self, function: str, operands: Sequence[Any], element: DType | None) -> Any:
        """An elementwise function of tiles; None if there is no tile among its operands."""

    def part(self, tensor: Any, index: tuple[Any, ...]) -> Any:
        """An array along some spans."""

    def store(self, tensor: Any, index: tuple[Any, ...], value: Any) -> None:
        """Store a tile."""

    def finish(self, name: str, params: Sequence[Param | Sym]) -> Flow:
        """The flow."""


class Tracer:
    """Records one kernel.

    Args:
        arch: the architecture that it is recorded for.
        lanes: threads of a warp; default: as many as the architecture's have.
        threads: threads of the block, if they are known; default: as many as what is recorded says.
    """

    def __init__(self, arch: Arch = REFERENCE, lanes: int | None = None, threads: int | None = None) -> None:
        self.arch = arch
        self.lanes = arch.lanes if lanes is None else lanes
        self.wanted_lanes: int | None = None  # by an atom, where the architecture has warps of so many too
        self.threads = threads
        self.assumed_threads: int | None = None  # of the block, by what was shared out to all of them
        self.builder = Builder()
        self.grid: list[GridAxis] = []
        self.cluster: list[ClusterAxis] = []
        self.cluster_shape: tuple[int, ...] = ()
        self.derived: list[SizeParam] = []
        self.workspaces: list[Workspace] = []
        self.guards: list[Guard] = []
        self.violations: list[Violation] = []
        self.warps = [0]  # taken by roles: of the block, and of each role that is open
        self.roles: list[int] = []  # warps of each role that is open
        self.groups: list[tuple[int, Sym]] = []  # how many groups execute such a role, and which of them does
        self.numbers: set[int] = set()  # of numbered barriers
        self.sizes: set[Sym] = set()
        # Integers that memory, a variable or an argument holds, and what follows from them.
        self.data: set[Sym] = set()
        self.region_ids: list[int] = [0]
        self.flow: Recording | None = None  # from the first loop over tiles on
        self._regions = 0
        self._open: list[Construct] = []

    def depends_on_data(self, *values: Int) -> bool:
        """Whether a value follows from an integer that memory, a variable or an argument holds."""
        return any(bool(elements(value)) or not self.data.isdisjoint(symbols(value)) for value in values)

    def names(self, defaults: tuple[str, ...]) -> tuple[str, ...]:
        """Unique names for what a call returns: the author's variables where they can be seen."""
        seen, own = result_names()
        if len(seen) != len(defaults):
            seen, own = defaults, False
        return tuple(self.name(name, own) for name in seen)

    def name(self, wanted: str, own: bool = True) -> str:
        """A unique name, by default one that the author gave."""
        names = self.builder.names
        return names.own(wanted) if own else names.unique(wanted)

    def emit(self, op: type[OpType], **attributes: Any) -> OpType:
        """Record an operation without a result at the author's line."""
        self.admit(op)
        return self.builder.append(op(location=here(), **attributes))

    def define(
        self,
        op: type[OpType],
        default: str,
        named: str | None = None,
        *,
        shown: str = "",
        **attributes: Any,
    ) -> Value:
        """Record an operation with a result, named as the author says, or after the author's variable.

        ``shown`` is what the author wrote behind a tensor to get this view of it: messages call the result so
        if no variable has it.
        """
        self.admit(op)
        seen, own = result_names()
        name, own = (seen[0], own) if len(seen) == 1 else (default, False)
        shown = shown if len(seen) != 1 else ""
        if named is not None:
            name, own = named, is_authors(author_frame())
            if not name.isidentifier():
                raise TraceError(f"name={named!r} is no name; nearest legal choice: name={default!r}", here())
        with located():
            return self.builder.define(op, name, here(), own, shown=shown, **attributes)

    def admit(self, op: type[Op]) -> None:
        """Refuse what a kernel cannot have that says what is computed and not how."""
        if self.flow is not None:
            self.flow.admit(op)

    def explicit(self) -> str | None:
        """The first thing that was recorded of how something is done; None if there is none yet."""
        ops = (op for op in self.builder.recorded() if not isinstance(op, Reshape | Elementwise))
        made = [(bool(self.grid), "tw.block_index"), (bool(self.workspaces), "tw.workspace")]
        made += [(bool(self.cluster_shape), "tw.hopper.cluster_index"), (bool(self.derived), "tw.derived")]
        return next((what for there, what in made if there), next((f"tw.{op.name}" for op in ops), None))

    def place(self, what: str) -> None:
        """Refuse a call of this name in a kernel that says what is computed and not how."""
        if self.flow is not None:
            self.flow.refuse(what)

    def multiplies_by(self, lanes: int) -> None:
        """Note the threads of the warps that an atom is executed by."""
        if lanes != self.lanes and lanes in self.arch.other_lanes and self.wanted_lanes is None:
            self.wanted_lanes = lanes

    def sharing_threads(self) -> int:
        """The threads to which a tile is dealt where the author names none: all of the role, or of the block.

        Those of the block are assumed to be as many as what was recorded so far says.
        """
        if self.roles:
            return self.roles[-1] * self.lanes
        if self.assumed_threads is None:
            said = threads_of(self.builder.so_far(), self.lanes)
            self.assumed_threads = self.threads or (max(said, self.lanes) if said > 1 else 1)
        return self.assumed_threads

    def better_informed(self, threads: int) -> Tracer | None:
        """What records the kernel again, if this one has assumed what turned out to be otherwise.

        Args:
            threads: of the block, as its operations say; 1 if none does.
        """
        if self.wanted_lanes is not None and self.lanes == self.arch.lanes:
            return Tracer(self.arch, self.wanted_lanes)
        if self.assumed_threads is None or threads <= self.assumed_threads != 1:
            return None
        needed = max(threads, self.lanes) if threads > 1 else UNSAID_WARPS * self.lanes
        return Tracer(self.arch, self.lanes, needed)

    def violate(self, rule: str, message: str, nearest: str = "") -> None:
        """Note a broken rule at the author's line and go on tracing."""
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
        """Close the innermost region, which must be the construct's, and give back its block."""
        if self._open[-1] is not construct:
            raise self._open[-1].left()
        self._open.pop()
        self.region_ids.pop()
        return self.builder.close()

    def finish(self) -> Block:
        """The kernel's body; every loop and branch must have come to its end."""
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
    """The tracer of the kernel being recorded.

    Raises:
        TraceError: no kernel is being traced.
    """
    tracer = _current.get(None)
    if tracer is None:
        raise TraceError(
            "this belongs inside a kernel: it was called while no kernel is being traced; decorate the "
            "function with @tw.kernel and call that",
            here(),
        )
    return tracer


def recorded_for() -> Arch:
    """The architecture that the kernel is recorded for; outside of kernels that of the reference."""
    tracer = _current.get(None)
    return REFERENCE if tracer is None else tracer.arch


def lanes_recorded_for() -> int:
    """Threads of a warp of the kernel that is recorded; outside of kernels of the reference's."""
    tracer = _current.get(None)
    return REFERENCE.lanes if tracer is None else tracer.lanes


def open_region() -> int:
    """The region being recorded; 0 outside of all loops and branches, and outside of kernels."""
    tracer = _current.get(None)
    return 0 if tracer is None else tracer.region_ids[-1]


class located:  # noqa: N801
    """``with located():`` gives errors of the layout and type rooms the author's line."""

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """Raise the error again with a location."""
        if isinstance(error, LocatedError) or not isinstance(error, TilewrightError | TypeError | ValueError):
            return
        raise TraceError(str(error), here()) from error
