"""Operations between fragments of different maps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tilewright.errors import Violation
from tilewright.ir.op import Op
from tilewright.ir.types import FragmentType, Type, Value
from tilewright.layout.distribution import Distribution, registers


@dataclass(frozen=True)
class Redistribute(Op):
    """``result[i] = source[start + i]``: a part of a fragment, or all of it in another order of registers.

    Every thread must hold in ``source`` what it holds in the result.
    """

    name = "redistribute"
    roles: ClassVar = {"result": "defines", "source": "reads"}
    result: Value
    source: Value
    start: tuple[int, ...]
    distribution: Distribution

    @staticmethod
    def infer(source: Value, start: tuple[int, ...], distribution: Distribution) -> Type:
        """Type of the result."""
        return FragmentType(source.dtype, distribution)

    def verify(self) -> Iterator[Violation]:
        """The box lies in the source, and no value must change its thread."""
        held = self.source.fragment.distribution
        shape = self.distribution.shape
        if len(shape) != held.rank or len(self.start) != held.rank:
            yield self.violation("redistribute", f"box of {shape} at {self.start} in a tile of {held.shape}")
        elif any(
            at < 0 or at + extent > whole
            for at, extent, whole in zip(self.start, shape, held.shape, strict=True)
        ):
            yield self.violation(
                "redistribute",
                f"box of {shape} at {self.start} is not inside {self.source}: {held.shape}",
            )
        elif held.size_threads > 1 and registers(held, self.distribution, self.start) is None:
            yield self.violation(
                "redistribute",
                f"a thread does not hold in {self.source} what it must hold in {self.result}",
                "copy through shared memory",
            )
