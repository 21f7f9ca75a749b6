"""Loops over the elements of a fragment, in which operands may be broadcast and coordinates be asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tilewright.ir.fragment_ops import Coordinates
from tilewright.ir.types import Value
from tilewright.symbolic.expr import ceil_div
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.cpu.emitter import CpuEmitter
from tilewright.targets.cpu.fuse import Pointwise, made_by
from tilewright.targets.statements import Code, code, joined
from tilewright.threads.distribution import Distribution
from tilewright.threads.registers import Digit, broadcast


class Loops:
    """One loop over all elements if all operands have one map, else one for each stretch of them.

    Args:
        emitter: where the text goes.
        op: the operations on single elements.
    """

    def __init__(self, emitter: CpuEmitter, op: Pointwise) -> None:
        self.emitter = emitter
        self.spread = op.distribution
        spread = op.distribution
        self.steps: dict[Distribution | int, list[int]] = {spread: _weights(spread)}
        for one in op.ops:
            for value in one.read:
                if value.is_fragment:
                    self.steps.setdefault(value.fragment.distribution, self._broadcast(value))
            if isinstance(one, Coordinates):
                along = [mode.step if mode.dim == one.dim else 0 for mode in spread.values]
                self.steps.setdefault(one.dim, along)
        self.counts: list[Code | int] = [mode.extent for mode in spread.values]
        self._limits = self._limited([value for one in op.ops if (value := made_by(one)).is_fragment])
        self._merge()
        self.names = [emitter.local("e" if not depth else f"e{depth}") for depth in range(len(self.counts))]
        self._held: dict[Value, Code] = {}
        self._repeated = [value for one in op.ops for value in one.read if self._is_repeated(value)]

    def _is_repeated(self, value: Value) -> bool:
        """Whether all turns of the innermost loop read the same element of a fragment."""
        steps = self.steps.get(value.fragment.distribution) if value.is_fragment else None
        return steps is not None and steps[:1] == [0]

    def _broadcast(self, value: Value) -> list[int]:
        digits = broadcast(self.spread, value.fragment.distribution)
        assert digits is not None, "verified"
        if digits == (Digit(self.spread.size_values, 1),):
            return _weights(self.spread)
        return [digit.weight for digit in digits]

    def _limited(self, made: Sequence[Value]) -> dict[int, Code]:
        """How often the loops of each dimension's largest steps turn for what reaches memory."""
        found: dict[int, Code] = {}
        for dim in range(self.spread.rank):
            bounds = {self.emitter.reach.get((value, dim)) for value in made}
            modes = [(mode.step, at) for at, mode in enumerate(self.spread.values) if mode.dim == dim]
            if len(bounds) == 1 and (bound := bounds.pop()) is not None and modes:
                step, at = max(modes)
                needed = self.emitter.spell(ceil_div(bound, step))
                found[at] = self.emitter.within(needed, self.spread.values[at].extent)
        return found

    def _merge(self) -> None:
        """Join loops that continue each other on every side; none continues one that may end early."""
        kept: list[int] = []
        counts: list[int] = []
        limits: dict[int, Code] = {}
        for at, mode in enumerate(self.spread.values):
            count, limit = mode.extent, self._limits.get(at)
            if count == 1:
                continue
            last = len(kept) - 1
            if (
                kept
                and last not in limits
                and all(steps[at] == steps[kept[-1]] * counts[-1] for steps in self.steps.values())
            ):
                if limit is not None:
                    limits[last] = code("{} * {}", counts[-1], limit)
                counts[-1] *= count
            else:
                if limit is not None:
                    limits[len(kept)] = limit
                kept.append(at)
                counts.append(count)
        self.counts = [limits.get(at, count) for at, count in enumerate(counts)]
        self.steps = {side: [steps[at] for at in kept] for side, steps in self.steps.items()}

    @contextmanager
    def open(self) -> Iterator[None]:
        """The heads of the loops, the slowest first; the innermost one carries no element."""
        with ExitStack() as stack:
            for depth in reversed(range(len(self.counts))):
                name = self.names[depth]
                if depth == 0:
                    self._hold()
                stack.enter_context(self.emitter.turns(name, self.counts[depth], independent=depth == 0))
            if not self.counts:
                stack.enter_context(self.emitter.indented())
            yield

    def _hold(self) -> None:
        """Read once what all turns read: compilers make no vector code of a truth value read in each."""
        for value in dict.fromkeys(self._repeated):
            name = self.emitter.local(f"{self.emitter.name(value)}_all")
            self.emitter.constant(STORAGE[value.dtype.name], name, self.element(value))
            self._held[value] = name

    def element(self, value: Value) -> Code:
        """The element of a fragment that belongs to this turn."""
        if value in self._held:
            return self._held[value]
        return code("{}[{}]", self.emitter.name(value), self._sum(value.fragment.distribution))

    def coordinate(self, dim: int) -> Code:
        """The coordinate along a dimension."""
        return self._sum(dim)

    def _sum(self, side: Distribution | int) -> Code:
        return sum_of(self.names, self.steps.get(side, self.steps[self.spread]))


def sum_of(names: Sequence[Code], steps: Sequence[int]) -> Code:
    """``name * step + ...`` with the largest step first."""
    parts = [n if s == 1 else code("{} * {}", n, s) for n, s in zip(names, steps, strict=True) if s]
    return joined(" + ", reversed(parts)) if parts else Code("0")


def _weights(spread: Distribution) -> list[int]:
    found, weight = [], 1
    for mode in spread.values:
        found.append(weight)
        weight *= mode.extent
    return found
