"""Faults that the interpreter of a listing finds: one class per kind, with the line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from tilewright.errors import TilewrightError


class ListingError(TilewrightError):
    """A fault at a line of an AMD listing.

    Args:
        message: the fault, in one sentence.
        line: number of the line in the listing, from 1; 0 where no line is meant.
        text: the instruction that stands there.
    """

    def __init__(self, message: str, line: int = 0, text: str = "") -> None:
        self.message = message
        self.line = line
        self.text = text
        super().__init__(f"{message}\n  at line {line}: {text}" if line else message)


class ListingParseError(ListingError, ValueError):
    """Text that is not the listing of a kernel, or an operand that is not understood."""


class UnknownInstructionError(ListingError):
    """A mnemonic, or a form of one, that the interpreter has no meaning for."""


class MissingWaitError(ListingError):
    """A register is used while what an instruction before loads into it may still be on its way."""


class LdsRaceError(ListingError):
    """Two waves of a block access the same bytes of LDS, one writes, and no barrier is between them."""


class OutOfBoundsError(ListingError):
    """An access beyond the arrays that were given, the LDS of the block, or the scratch memory of a lane."""


class MisalignedError(ListingError):
    """An access of 16 bytes to LDS at an address that is no multiple of 16."""


class RegisterError(ListingError):
    """A register that the kernel does not declare, or a tuple of registers that begins where none may."""


class WaitStateError(ListingError):
    """An instruction has fewer wait states after another one than hardware needs."""


class StoredTwiceError(ListingError):
    """Two lanes store to the same bytes of an array, though the launch says that none do."""


class UninitialisedError(ListingError):
    """An address, a branch or a stored number depends on what nothing was written to."""


class UnreplicatedLanesError(ListingError):
    """A WMMA whose operand differs between the halves of a wave, or without all lanes."""


class MissedBarrierError(ListingError):
    """A wave waits at a barrier when others of its block have ended, though the launch says that all come."""


class DeadlockError(ListingError):
    """Waves that wait for each other, or that take more instructions than they were given."""


def nearest(name: str, known: Iterable[str]) -> str:
    """``"; nearest known: 'x'"``, or nothing where no known name is alike."""
    close = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f"; nearest known: {close[0]!r}" if close else ""
