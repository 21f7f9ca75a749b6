"""Reads and executes the listing that a compiler wrote for an AMD GPU, on a machine without one.

`execute` runs a grid of a kernel in NumPy, all waves of several blocks at once, and finds what hardware
would do wrong without a word: races in LDS, accesses out of bounds, waits that are missing or too weak,
numbers that were never written, WMMA whose lanes are not replicated. See ``docs/amd_listing.md`` for what is
assumed and what is not modelled.
"""

from tilewright.amdgcn.faults import (
    DeadlockError,
    HazardError,
    LdsRaceError,
    ListingError,
    ListingParseError,
    MisalignedError,
    MissedBarrierError,
    MissingWaitError,
    OutOfBoundsError,
    RegisterError,
    StoredTwiceError,
    UninitialisedError,
    UnknownInstructionError,
    UnreplicatedLanesError,
)
from tilewright.amdgcn.known import known_mnemonics
from tilewright.amdgcn.launch import Execution, execute
from tilewright.amdgcn.text import Instruction, KernelListing, Listing, read_listing

__all__ = [
    "DeadlockError",
    "Execution",
    "HazardError",
    "Instruction",
    "KernelListing",
    "LdsRaceError",
    "Listing",
    "ListingError",
    "ListingParseError",
    "MisalignedError",
    "MissedBarrierError",
    "MissingWaitError",
    "OutOfBoundsError",
    "RegisterError",
    "StoredTwiceError",
    "UninitialisedError",
    "UnknownInstructionError",
    "UnreplicatedLanesError",
    "execute",
    "known_mnemonics",
    "read_listing",
]
