"""How one member of the C family spells what all of them have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.dtypes import DType


@dataclass(frozen=True)
class Atomic:
    """A function of the prelude that reduces into memory in one step: ``function(address, value)``.

    Args:
        function: its name; one of several elements takes the address of the values.
        width: elements at once.
        feature: what the architecture must have; empty for none.
        memory: ``"global"``, ``"shared"``, or ``"cluster"``: shared memory of whatever block of the cluster.
    """

    function: str
    width: int = 1
    feature: str = ""
    memory: str = "global"


@dataclass(frozen=True)
class Dialect:
    """How one member of the C family spells things.

    Args:
        types: the name of each dtype's storage type.
        function: qualifiers of a helper function in the prelude.
        unroll: the line before a loop that is to be unrolled.
        copied: the same of a loop that has so many copies of its body in each turn.
        bits: what is called with a type and a value of another one for the number that has the same bits.
        reserved: names that the generated text uses itself, besides C++'s keywords.
        atomics: for each kind of reduction and element type, the functions that do it.
    """

    types: dict[str, str]
    function: str = "static inline"
    unroll: str = "#pragma unroll"
    copied: str = "#pragma unroll {}"
    bits: str = "__builtin_bit_cast"
    reserved: frozenset[str] = frozenset()
    atomics: Mapping[tuple[str, str], tuple[Atomic, ...]] = field(default_factory=dict)

    def unrolled(self, copies: bool | int) -> str:
        """The line before a loop: with so many copies of its body in each turn, or with all of them."""
        if copies is True or not copies:
            return self.unroll if copies else ""
        return self.copied.format(copies) if copies > 1 else ""

    def type(self, dtype: DType) -> str:
        """The storage type of a dtype."""
        return self.types[dtype.name]
