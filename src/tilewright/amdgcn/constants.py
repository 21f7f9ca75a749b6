"""Constants of a listing: the bytes behind labels, and operands that say how far away they lie.

A kernel finds a constant by the address of an instruction (``s_getpc_b64``), to which it adds the distance
(``name@rel32@lo+4``, ``name@rel32@hi+12``).  Here all instructions have one address, and the constants lie
before the arrays of a launch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.amdgcn.faults import ListingParseError
from tilewright.amdgcn.operands import Operand

PLACE = 0x4000_0000_0100
"""The address of the first constant."""

PROGRAM = 0x5000_0000_0000
"""What every instruction takes for its own address."""

_BYTES = {".byte": 1, ".short": 2, ".long": 4, ".quad": 8}
_DISTANCE = re.compile(r"^([\w.$]+)@rel32@(lo|hi)\+(4|12)$")
_ALIGN = 16


MOST_BYTES = 1 << 24
"""Bytes of one constant, at most."""


@dataclass(slots=True)
class Constants:
    """The bytes of a listing's constants.

    Args:
        octets: all of them, one behind the other.
        places: where each label's begin.
    """

    octets: bytearray = field(default_factory=bytearray)
    places: dict[str, int] = field(default_factory=dict)

    def take(self, label: str, word: str, rest: str) -> bool:
        """Adds what a directive says to the bytes behind a label; whether it is such a directive.

        Raises:
            ListingParseError: bytes that are no plain numbers.

        Example:
            >>> constants = Constants()
            >>> constants.take("pair", ".long", "1, 0x2"), constants.take("pair", ".size", "pair, 8")
            (True, False)
            >>> constants.take("", ".comm", "zeros,8,4"), constants.places
            (True, {'pair': 0, 'zeros': 16})
            >>> constants.octets.hex()
            '010000000200000000000000000000000000000000000000'
        """
        if word == ".comm":
            parts = [part.strip() for part in rest.split(",")]
            if len(parts) != 3:
                raise ListingParseError(f".comm {rest} does not say a name, bytes and an alignment")
            label, rest, word = parts[0], parts[1], ".zero"
        if word != ".zero" and word not in _BYTES:
            return False
        if label not in self.places:
            self.octets.extend(bytes(-len(self.octets) % _ALIGN))
            self.places[label] = len(self.octets)
        try:
            numbers = [int(number, 0) for number in rest.split(",")]
        except ValueError:
            raise ListingParseError(f"the bytes of {label} are not understood: {word} {rest}") from None
        if word == ".zero":
            if not 0 <= numbers[0] <= MOST_BYTES:
                raise ListingParseError(f"{label} has {numbers[0]} bytes; a constant has 0 to {MOST_BYTES}")
            self.octets.extend(bytes(numbers[0]))
            return True
        size = _BYTES[word]
        for number in numbers:
            self.octets.extend((number % (1 << (8 * size))).to_bytes(size, "little"))
        return True


def with_distances(operands: Sequence[Operand], places: Mapping[str, int]) -> tuple[Operand, ...]:
    """Operands, of which those that say how far away a constant lies are numbers.

    Raises:
        ListingParseError: there is no such constant.
    """
    return tuple(_distance(item, places) for item in operands)


def _distance(item: Operand, places: Mapping[str, int]) -> Operand:
    found = _DISTANCE.match(item.text) if item.bank == "name" else None
    if found is None:
        return item
    name, half, _ = found.groups()
    if name not in places:
        raise ListingParseError(f"nothing is known of the constant {name!r}")
    apart = PLACE + places[name] - PROGRAM
    return replace(item, bank="constant", index=apart >> 32 if half == "hi" else apart & 0xFFFFFFFF)
