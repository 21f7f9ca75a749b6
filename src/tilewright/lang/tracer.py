"""The tracer: the one kernel that is being recorded, and the regions it is in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from tilewright.errors import LayoutError, TilewrightError, TraceError, Violation
from tilewright.ir.builder import Builder
from tilewright.ir.kernel import ClusterAxis, GridAxis, SizeParam, Workspace
from tilewright.ir.ops import Op
from tilewright.ir.types import Value
from tilewright.lang.source import assigned_names, here

OpType = TypeVar("OpType", bound=Op)
_current: ContextVar[Tracer] = ContextVar("tracer")


class Tracer:
    """Records one kernel."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.grid: list[GridAxis] = []
        self.cluster: list[ClusterAxis] = []
        self.derived: list[SizeParam] = []
        self.workspaces: list[Workspace] = []
        self.violations: list[Violation] = []
        self.region_ids: list[int] = [0]
        self._regions = 0

    def name(self, wanted: str) -> str:
        """A unique name; names that coordinates use are altered."""
        return self.builder.names.unique(wanted + "_" if re.fullmatch(r"[ij]\d+", wanted) else wanted)

    def names(self, defaults: tuple[str, ...]) -> tuple[str, ...]:
        """Unique names for what a call returns: the author's variables where they can be seen."""
        seen = assigned_names()
        return tuple(self.name(n) for n in (seen if len(seen) == len(defaults) else defaults))

    def emit(self, op: type[OpType], **attributes: Any) -> OpType:
        """Record an operation without a result at the author's line."""
        return self.builder.append(op(location=here(), **attributes))

    def define(self, op: type[OpType], default: str, **attributes: Any) -> Value:
        """Record an operation with a result, named after the author's variable."""
        seen = assigned_names()
        wanted = seen[0] if len(seen) == 1 else default
        wanted = wanted + "_" if re.fullmatch(r"[ij]\d+", wanted) else wanted
        with located():
            return self.builder.define(op, wanted, here(), **attributes)

    def violate(self, rule: str, message: str, nearest: str = "") -> None:
        """Note a broken rule at the author's line and go on tracing."""
        self.violations.append(Violation(rule, message, nearest, here()))

    def enter(self) -> None:
        """Open a region."""
        self._regions += 1
        self.region_ids.append(self._regions)
        self.builder.open()

    def leave(self) -> Any:
        """Close the innermost region and give back its block."""
        self.region_ids.pop()
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
            "this can only be used inside a kernel while it is traced: call the @kernel function"
        )
    return tracer


@contextmanager
def located() -> Iterator[None]:
    """Give errors of the layout and type rooms the author's line."""
    try:
        yield
    except TraceError:
        raise
    except (LayoutError, TilewrightError, TypeError) as error:
        raise TraceError(str(error), here()) from error
