"""Construction of kernels: unique names, results typed by their operation, nested regions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeVar

from tilewright.errors import Location
from tilewright.ir.ops import Block, Op
from tilewright.ir.types import Value
from tilewright.views.reading import WORDS

OpType = TypeVar("OpType", bound=Op)


# Names of coordinates, and of the shared parts of a printed kernel.
_RESERVED = re.compile(r"[ij]\d+|(d|mma|atom)\d+")


def is_reserved(name: str) -> bool:
    """Return whether a printed kernel would confuse the name with a coordinate, a word or a shared part."""
    return not name.isascii() or name in WORDS or _RESERVED.fullmatch(name) is not None


class Names:
    """Makes unique names that have no other meaning in a printed kernel.

    Args:
        reserved: names that the author may use later.
    """

    def __init__(self, reserved: frozenset[str] = frozenset()) -> None:
        self.reserved = reserved
        self._taken: set[str] = set()
        self._lent: dict[str, Value] = {}

    def lend(self, value: Value) -> None:
        """Mark a name as generated: the value is renamed if the author wants the name."""
        self._lent[value.name] = value

    def own(self, wanted: str) -> str:
        """Return a unique form of an author's name; a value that has it as a generated name is renamed."""
        if value := self._lent.pop(wanted, None):
            object.__setattr__(value, "name", self.unique(wanted, own=True))
            self.lend(value)
            self._taken.discard(wanted)
        return self.unique(wanted, own=True)

    def unique(self, wanted: str, own: bool = False) -> str:
        """Return the first free name of ``wanted``, ``wanted_1``, ...; ``own`` allows a reserved name."""
        if is_reserved(wanted):
            wanted = f"{''.join(c for c in wanted if c.isascii()).lstrip('0123456789')}_"
        name, count = wanted, 0
        while name in self._taken or (name in self.reserved and not (own and count == 0)):
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


def make(
    op: type[OpType], name: str, location: Location | None = None, *, shown: str = "", **attributes: Any
) -> OpType:
    """Make an operation with a result: infer the type, name it, and set the buffer of a view.

    The result of an operation with a function ``symbol`` is an integer of the kernel.
    """
    if symbol := getattr(op, "symbol", None):
        return op(result=symbol(name, **attributes), location=location, **attributes)  # type: ignore[call-arg]
    kind = op.infer(**attributes)  # type: ignore[attr-defined]
    source = attributes.get("source")
    root = source.buffer if isinstance(source, Value) and hasattr(kind, "memory") else None
    written = (source, shown) if shown and isinstance(source, Value) else None
    return op(result=Value(name, kind, root, written), location=location, **attributes)  # type: ignore[call-arg]


class Builder:
    """Collects operations into nested regions."""

    def __init__(self) -> None:
        self.names = Names()
        self._open: list[list[Op]] = [[]]

    def append(self, op: OpType) -> OpType:
        """Add an operation to the innermost region."""
        self._open[-1].append(op)
        return op

    def define(
        self,
        op: type[OpType],
        name: str,
        location: Location | None = None,
        own: bool = False,
        *,
        shown: str = "",
        **attributes: Any,
    ) -> Value:
        """Add an operation with a result and return the result; ``own``: the name is the author's."""
        unique = self.names.own(name) if own else self.names.unique(name, own=True)
        made = self.append(make(op, unique, location, shown=shown, **attributes))
        result: Value = made.results[0]
        if not own and isinstance(result, Value):
            self.names.lend(result)
        return result

    def defining(self, value: Value) -> Op | None:
        """Return the operation with this result in an open region; None for parameters."""
        return next((op for op in self.recorded() if value in op.results), None)

    def recorded(self) -> Iterator[Op]:
        """Yield the operations of the open regions, in order."""
        for block in self._open:
            yield from block

    def so_far(self) -> Block:
        """Return all operations so far as one block."""
        return Block(tuple(self.recorded()))

    def take_last(self) -> Op | None:
        """Remove and return the last operation of the innermost region, if any."""
        return self._open[-1].pop() if self._open[-1] else None

    @property
    def depth(self) -> int:
        """Number of open regions, including the outermost."""
        return len(self._open)

    def open(self) -> None:
        """Start a region."""
        self._open.append([])

    def close(self) -> Block:
        """End the innermost region and return it."""
        return Block(tuple(self._open.pop()))
