"""The base class of operations: traits, fields, roles, regions, a location.

`Op.roles` gives the role of each field: an operand whose contents the operation ``"reads"``, ``"writes"`` or
``"updates"``, an operand that it only ``"uses"``, or a result that it ``"defines"``.  All other fields are
attributes.  Effects, printing and cloning are derived from the roles.  Operations are immutable, and passes
keep the operations that they do not change, so derived values are cached on the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from tilewright.calls import layouts
from tilewright.errors import Location, Violation
from tilewright.ir.types import TensorType, Value

# ---------------------------------------------------------------- traits of operations
# Traits hold for every target. Passes, checkers and the generated grammar page read them.


REGISTERS, SHARED, GLOBAL = "registers", "shared", "global"
ADDRESSED = (SHARED, GLOBAL)
ANYWHERE = (REGISTERS, SHARED, GLOBAL)

THREADS = "threads"
"""Ordinary instructions of the threads themselves."""
ASYNC = "asynchronous copies"
"""Asynchronous copies that threads issue, element by element."""
BULK = "bulk copies"
"""Copies of a whole box that one thread issues and a separate unit executes."""
MULTIPLIES = "asynchronous multiplies"
"""Asynchronous multiplies that a warpgroup issues; the unit itself reads shared memory."""
ENGINES = (THREADS, ASYNC, BULK, MULTIPLIES)

SCOPES = ("thread", "warp", "role", "block", "cluster", "device", "grid")
"""Scopes of an ordering, the smallest first; ``"grid"`` orders one grid after another."""


class Traits(NamedTuple):
    """Properties of every operation of a class.

    Args:
        memories: memories that the operation may touch; empty if it touches none.
        engines: engines that may execute it; empty if it only declares or names a value.
    """

    memories: tuple[str, ...] = ()
    engines: tuple[str, ...] = (THREADS,)


class Ordering(NamedTuple):
    """Accesses to ``memories`` by ``before`` come before those by ``after``, within a scope.

    Args:
        scope: one of `SCOPES`.
        memories: the memories whose accesses are ordered.
        before: the engines whose earlier accesses are waited for, or made visible.
        after: the engines whose later accesses come after these.
        half: the half of a split ordering: ``"release"`` or ``"acquire"``; empty if it is whole.
    """

    scope: str
    memories: tuple[str, ...]
    before: tuple[str, ...] = (THREADS,)
    after: tuple[str, ...] = (THREADS,)
    half: str = ""


NAMES = Traits((), ())
"""Traits of operations that only declare or name a value: nothing is executed."""
IN_REGISTERS = Traits((REGISTERS,))
CONTROL = Traits()
"""Traits of operations that only control the flow, count or wait."""


Cached = TypeVar("Cached")


@layouts.made("the body of kernel.trace(...) is one")
@dataclass(frozen=True, slots=True)
class Block:
    """A sequence of operations; see `Kernel`.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def look(X):
        ...     for i in tw.range(2):
        ...         tw.copy(X.tile((32,), (i,)), X.tile((32,), (i + 2,)), threads=32)
        >>> traced = look(np.ones(64, np.float32), target="reference").kernel
        >>> [op.name for op in traced.body.ops], [op.name for op in traced.body.walk()]
        (['for'], ['for', 'view', 'view', 'copy'])
    """

    ops: tuple[Op, ...] = ()

    def walk(self) -> Iterator[Op]:
        """Yield every operation, outer before inner, in program order."""
        for op in self.ops:
            yield op
            for region in op.regions:
                yield from region.walk()


@dataclass(frozen=True)
class Op:
    """Base of all operations; see `Kernel`.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def look(X):
        ...     part = X.tile((32,), (0,)).partition((32,))
        ...     tw.copy(tw.load(part) * 2, part)
        >>> traced = look(np.ones(64, np.float32), target="reference").kernel
        >>> op = traced.body.ops[-1]
        >>> op.name, [value.name for value in op.read], [value.name for value in op.written]
        ('copy', ['mul'], ['part'])
    """

    name: ClassVar[str]
    roles: ClassVar[dict[str, str]] = {}
    traits: ClassVar[Traits]
    orders: ClassVar[Ordering | None] = None
    location: Location | None = field(default=None, kw_only=True, compare=False, repr=False)

    @property
    def variant(self) -> str:
        """The name of the target's rule for the operation; empty if the class has only one."""
        return ""

    @property
    def verb(self) -> str:
        """The author's name of the operation."""
        return self.name

    def _with_role(self, *roles: str) -> tuple[Any, ...]:
        found: list[Any] = []
        for name, role in self.roles.items():
            if role in roles:
                value = getattr(self, name)
                found.extend(value if isinstance(value, tuple) else (value,))
        return tuple(found)

    @cached_property
    def results(self) -> tuple[Any, ...]:
        """Values (or, for loops and variable reads, symbols) that the operation defines."""
        return self._with_role("defines")

    @cached_property
    def operands(self) -> tuple[Value, ...]:
        """Values that the operation names."""
        named = self._with_role("reads", "writes", "updates", "uses")
        return tuple(value for value in named if isinstance(value, Value))

    @cached_property
    def read(self) -> tuple[Value, ...]:
        """Values whose contents the operation reads, including the index tensors of accessed views."""
        own = tuple(v for v in self._with_role("reads", "updates") if isinstance(v, Value))
        accessed = self._with_role("reads", "updates", "writes")
        chosen = (v.type.indices for v in accessed if isinstance(v, Value) and isinstance(v.type, TensorType))
        return (*own, *(index for indices in chosen for index in indices))

    @cached_property
    def written(self) -> tuple[Value, ...]:
        """Values whose contents the operation writes."""
        return tuple(v for v in self._with_role("writes", "updates") if isinstance(v, Value))

    @cached_property
    def regions(self) -> tuple[Block, ...]:
        """Nested blocks."""
        kind = type(self)
        if kind not in _REGIONS:
            _REGIONS[kind] = tuple(known.name for known in fields(kind) if known.type in ("Block", Block))
        return tuple([getattr(self, name) for name in _REGIONS[kind]])

    def with_regions(self, change: Callable[[Block], Block]) -> Self:
        """Return the operation with its nested blocks changed; itself if it has none."""
        blocks = [change(region) for region in self.regions]
        made: dict[str, Any] = dict(zip(_REGIONS[type(self)], blocks, strict=True))
        return replace(self, **made) if made else self

    def cached(self, name: str, compute: Callable[[Any], Cached]) -> Cached:
        """Return a cached value of the operation; compute it on first use. Operations never change."""
        known: dict[str, Any] = vars(self)
        if name not in known:
            known[name] = compute(self)
        found: Cached = known[name]
        return found

    def verify(self) -> Iterator[Violation]:
        """Yield violations of the operation's own fields; `tilewright.ir.verify` checks operands."""
        yield from ()

    def violation(self, rule: str, message: str, nearest: str = "") -> Violation:
        """Return a violation at this operation's line."""
        return Violation(rule, message, nearest, self.location)


_REGIONS: dict[type[Op], tuple[str, ...]] = {}
"""Cache of the fields that hold blocks, by operation class; few classes have any."""


EMPTY = Block()
