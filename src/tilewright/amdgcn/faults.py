"""Errors of the interpreter of listings: one class per kind of fault, with the line."""

from __future__ import annotations

from tilewright.errors import TilewrightError


class ListingError(TilewrightError):
    """A fault at a line of an AMD listing.

    Args:
        message: the fault, in one sentence.
        line: number of the line in the listing, from 1; 0 without a line.
        text: the instruction in this line.
    """

    def __init__(self, message: str, line: int = 0, text: str = "") -> None:
        self.message = message
        self.line = line
        self.text = text
        super().__init__(f"{message}\n  at line {line}: {text}" if line else message)


class ListingParseError(ListingError, ValueError):
    """Text that is not the listing of a kernel, or an operand that is not understood."""


class UnknownInstructionError(ListingError):
    """A mnemonic, or a form of one, that the interpreter does not know."""


class MissingWaitError(ListingError):
    """A register is used while a load into it may be outstanding."""


class LdsRaceError(ListingError):
    """Two waves of a block access the same bytes of LDS, one writes, and no barrier is between them."""


class OutOfBoundsError(ListingError):
    """An access beyond the arrays of the launch, the LDS of the block, or the scratch memory of a lane."""


class MisalignedError(ListingError):
    """An access of 16 bytes to LDS at an address that is no multiple of 16."""


class RegisterError(ListingError):
    """A register that the kernel does not declare, or a misaligned tuple of registers."""


class WaitStateError(ListingError):
    """An instruction follows another one with fewer wait states than hardware needs."""


class StoredTwiceError(ListingError):
    """Two lanes store to the same bytes of an array, although the launch forbids it."""


class UninitialisedError(ListingError):
    """An address, a branch or a stored number depends on bits that were never written."""


class UnreplicatedLanesError(ListingError):
    """The halves of a wave hold different operands of a WMMA, or a lane is inactive."""


class MissedBarrierError(ListingError):
    """A wave waits at a barrier after others of its block have ended, although the launch forbids it."""


class DeadlockError(ListingError):
    """Waves wait for each other, or exceed the limit of instructions."""
