"""Parser and interpreter of a compiler's listing for an AMD GPU; no GPU is needed.

`execute` runs a grid of a kernel in NumPy, all waves of several blocks at once.  It raises on faults that
hardware does not report: races in LDS, accesses out of bounds, missing or weak waits, uses of unwritten
numbers, WMMA operands whose lanes are not replicated.  ``docs/amd_listing.md`` lists the assumptions and the
limits of the model.
"""

from tilewright.amdgcn.decode import known_mnemonics
from tilewright.amdgcn.faults import (
    DeadlockError,
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
    WaitStateError,
)
from tilewright.amdgcn.launch import ListingExecution, execute
from tilewright.amdgcn.text import Instruction, KernelListing, Listing, read_listing

__all__ = [
    "DeadlockError",
    "Instruction",
    "KernelListing",
    "LdsRaceError",
    "Listing",
    "ListingError",
    "ListingExecution",
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
    "WaitStateError",
    "execute",
    "known_mnemonics",
    "read_listing",
]
