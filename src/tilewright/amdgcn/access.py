"""How a mnemonic spells what it loads or stores: bytes, sign, which half of a register."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.amdgcn.state import Array


@dataclass(frozen=True, slots=True)
class Access:
    """What one lane loads or stores.

    Args:
        size: bytes.
        signed: fewer than 4 bytes are extended by their sign.
        half: ``""``, ``"l"`` or ``"h"``: only this half of the register is written or read.
    """

    size: int
    signed: bool = False
    half: str = ""

    @property
    def registers(self) -> int:
        """How many registers of 32 bits it fills."""
        return max(self.size // 4, 1)

    def loaded(self, words: list[Array], old: Array | None) -> list[Array]:
        """What the registers become, from the loaded words."""
        if self.size >= 4:
            return words
        word = words[0]
        if self.signed:
            bits = 8 * self.size
            wide = word.astype(np.int64)
            word = ((wide ^ (1 << (bits - 1))) - (1 << (bits - 1))).astype(np.uint32)
        if not self.half or old is None:
            return [word]
        word = word & np.uint32(0xFFFF)
        if self.half == "h":
            return [(word << np.uint32(16)) | (old & np.uint32(0xFFFF))]
        return [word | (old & np.uint32(0xFFFF0000))]

    def stored(self, words: list[Any]) -> list[Any]:
        """The words whose lower bytes are stored."""
        return [words[0] >> np.uint32(16)] if self.half == "h" else words


_SIZES = {
    "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16, "dwordx8": 32, "dwordx16": 64,
    "b32": 4, "b64": 8, "b96": 12, "b128": 16, "b256": 32, "b512": 64,
}  # fmt: skip
_SMALL = {
    "ubyte": (1, False), "sbyte": (1, True), "ushort": (2, False), "sshort": (2, True), "byte": (1, False),
    "short": (2, False), "u8": (1, False), "i8": (1, True), "u16": (2, False), "i16": (2, True),
    "b8": (1, False), "b16": (2, False),
}  # fmt: skip
_D16 = re.compile(r"^(?:(\w+?)_d16(_hi)?|d16(_hi)?_(\w+))$")


def access_of(form: str) -> Access | None:
    """What a form as ``dwordx4``, ``b128``, ``ubyte_d16_hi`` or ``d16_hi_u8`` loads or stores.

    Example:
        >>> access_of("short_d16_hi")
        Access(size=2, signed=False, half='h')
    """
    if form in _SIZES:
        return Access(_SIZES[form])
    if form in _SMALL:
        return Access(*_SMALL[form])
    if match := _D16.match(form):
        small = match.group(1) or match.group(4)
        if small in _SMALL:
            return Access(*_SMALL[small], "h" if match.group(2) or match.group(3) else "l")
    return None
