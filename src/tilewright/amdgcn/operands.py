"""Operands of a listing: registers, constants, and their modifiers."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, replace

from tilewright.amdgcn.faults import ListingParseError

AGPR = 512
"""Number of the register ``a0``.  Vector registers have the numbers before it."""
SGPR = 1024
"""Number of the register ``s0``."""
VCC, M0, EXEC, SCC = 106, 124, 126, 128
"""Numbers of special scalar registers; vcc and exec have two."""
SCALARS = 129
"""Number of scalar registers, with the special ones."""
TRAP = 108
"""Number of the scalar register ``ttmp0``."""

SPECIAL = {
    "vcc": (VCC, 2),
    "vcc_lo": (VCC, 1),
    "vcc_hi": (VCC + 1, 1),
    "exec": (EXEC, 2),
    "exec_lo": (EXEC, 1),
    "exec_hi": (EXEC + 1, 1),
    "m0": (M0, 1),
    "scc": (SCC, 1),
    "src_scc": (SCC, 1),
}
"""Number and count of the scalar registers of each name."""
APERTURES = {
    "src_shared_base": 0x1000 << 32,
    "src_private_base": 0x2000 << 32,
    "src_shared_limit": (0x1000 << 32) + 0xFFFFFFFF,
    "src_private_limit": (0x2000 << 32) + 0xFFFFFFFF,
}
"""Flat addresses at which LDS and scratch memory begin and end."""

COUNTS = {"v": 256, "a": 256, "s": VCC, "ttmp": 16}
"""Number of registers of each bank."""
MOST_TOGETHER = 32
"""Largest number of registers of one operand: the accumulators of a lane in a 32 x 32 product."""

_REGISTER = re.compile(r"^(v|s|a|ttmp)(?:(\d+)|\[(\d+)(?::(\d+))?\])(?:\.([lh]))?$")
_INTEGER = re.compile(r"^[+-]?(?:0x[0-9a-f]+|\d+)$", re.IGNORECASE)
_FLOAT = re.compile(r"^[+-]?\d+\.\d*(?:e[+-]?\d+)?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ListingOperand:
    """One operand.

    Args:
        text: its text in the listing.
        bank: ``"v"`` (vector, also accumulation registers), ``"s"`` (scalar), ``"constant"``, ``"float"``,
            ``"null"``, ``"off"``, ``"name"`` (a label or symbol).
        index: number of its first register in the bank, or the value of a constant.
        count: number of registers.
        number: value of a floating-point constant.
        negative: negate the value, after `absolute`.
        absolute: take the absolute value.
        half: ``"l"`` or ``"h"`` for half of a register, else ``""``.
        signed: sign-extend a part of a register (SDWA).
    """

    text: str
    bank: str
    index: int = 0
    count: int = 1
    number: float = 0.0
    negative: bool = False
    absolute: bool = False
    half: str = ""
    signed: bool = False

    @property
    def registers(self) -> tuple[int, ...]:
        """Numbers of its registers, over all banks."""
        if self.bank == "v":
            return tuple(range(self.index, self.index + self.count))
        if self.bank == "s":
            return tuple(range(SGPR + self.index, SGPR + self.index + self.count))
        return ()


def operand(text: str) -> ListingOperand:
    """Parse an operand.

    Raises:
        ListingParseError: the text is no operand.

    Example:
        >>> item = operand("-|v[4:5]|")
        >>> item.bank, item.index, item.count, item.negative, item.absolute
        ('v', 4, 2, True, True)
        >>> operand("vcc_lo").registers == (SGPR + VCC,)
        True
    """
    bare, negative, absolute, signed = text.strip(), False, False, False
    if bare.startswith("-") and not (_INTEGER.match(bare) or _FLOAT.match(bare)):
        bare, negative = bare[1:], True
    for word in ("neg", "abs", "sext"):
        if bare.startswith(f"{word}(") and bare.endswith(")"):
            bare = bare[len(word) + 1 : -1]
            negative, absolute, signed = negative or word == "neg", absolute or word == "abs", word == "sext"
    if bare.startswith("|") and bare.endswith("|"):
        bare, absolute = bare[1:-1], True
    return replace(_plain(bare), text=text, negative=negative, absolute=absolute, signed=signed)


def _plain(text: str) -> ListingOperand:
    if match := _REGISTER.match(text):
        bank, single, first, last, half = match.groups()
        index = int(single or first)
        count = 1 if last is None else int(last) - index + 1
        if not 1 <= count <= MOST_TOGETHER or index + count > COUNTS[bank]:
            raise ListingParseError(
                f"operand {text!r}: registers {bank} have numbers up to {COUNTS[bank] - 1}, an operand "
                f"has 1 to {MOST_TOGETHER} of them"
            )
        index += {"v": 0, "s": 0, "a": AGPR, "ttmp": TRAP}[bank]
        return ListingOperand(text, "v" if bank in "va" else "s", index, count, half=half or "")
    if text in SPECIAL:
        return ListingOperand(text, "s", *SPECIAL[text])
    if text in APERTURES:
        return ListingOperand(text, "constant", APERTURES[text])
    if _INTEGER.match(text):
        value = int(text, 0) if len(text) <= 80 else 1 << 64
        if not -(1 << 63) <= value < 1 << 64:
            raise ListingParseError(f"operand {text[:80]!r} has more than 64 bits")
        return ListingOperand(text, "constant", value)
    if _FLOAT.match(text):
        return ListingOperand(text, "float", number=float(text))
    if text in ("null", "off"):
        return ListingOperand(text, text)
    if re.match(r"^[\w.$@+()/-]+$", text):
        return ListingOperand(text, "name")
    raise ListingParseError(f"operand {text!r} is not understood")


_TWO_PI_INVERSE = {"f16": 0x3118, "f32": 0x3E22F983, "f64": 0x3FC45F306DC9C882}


def constant_bits(item: ListingOperand, kind: str) -> int:
    """Return the bits of a constant, read as an operand of a kind such as ``f32`` or ``u64``.

    A floating-point constant takes the width of the operand; an integer gives its bits.  In an operand of 64
    bits, a literal of 32 bits is the upper half of an ``f64``, and is sign-extended to an ``i64``.
    """
    wide = kind.endswith("64")
    if item.bank == "float":
        if abs(item.number - 0.15915494) < 1e-6:
            return _TWO_PI_INVERSE["f64" if wide else "f16" if kind == "f16" else "f32"]
        if wide:
            return int(struct.unpack("<Q", struct.pack("<d", item.number))[0])
        form, bits = ("<e", "<H") if kind in ("f16", "pk16") else ("<f", "<I")
        return int(struct.unpack(bits, struct.pack(form, item.number))[0])
    value = item.index
    if wide:
        if item.text in APERTURES or -16 <= value <= 64:
            return value & 0xFFFFFFFFFFFFFFFF
        if kind == "f64":
            return (value & 0xFFFFFFFF) << 32
        if kind == "i64" and value & 0x80000000:
            value = (value & 0xFFFFFFFF) - (1 << 32)
        return value & 0xFFFFFFFFFFFFFFFF
    if item.text in APERTURES:
        value >>= 32
    return value & (0xFFFF if kind.endswith("16") and kind != "pk16" else 0xFFFFFFFF)
