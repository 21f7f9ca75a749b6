"""What an instruction is there for, how wide its accesses are, and where it jumps: for AMD's instructions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from tilewright.amdgcn import Instruction
from tilewright.amdgcn.access import access_of


class Kind(Enum):
    """What an instruction is there for; the value is what a report calls it."""

    MATRIX = "matrix"
    VECTOR = "vector"
    SCALAR = "scalar"
    GLOBAL_LOAD = "global load"
    GLOBAL_STORE = "global store"
    GLOBAL_ATOMIC = "global atomic"
    TO_SHARED = "global load into shared memory"
    SHARED_LOAD = "shared load"
    SHARED_STORE = "shared store"
    SHARED_ATOMIC = "shared atomic"
    EXCHANGE = "exchange between lanes"
    CONSTANT_LOAD = "scalar load"
    STACK = "stack access"
    LANE = "scalar kept in a lane"
    BARRIER = "barrier"
    FLUSH = "cache invalidation"
    WAIT = "wait"
    BRANCH = "branch"
    HINT = "hint"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class IsaLine:
    """One instruction of a listing.

    Args:
        line: its number in the listing, from 1.
        text: as it stands there.
        mnemonic: its first word.
        kind: what it is there for.
        bytes: of one lane's access; 0 if it accesses no memory.
        accesses: of one lane.
        jumps: the label that it may go on at; empty for the next instruction.
        falls: whether it may go on at the next instruction.
    """

    line: int
    text: str
    mnemonic: str
    kind: Kind
    bytes: int = 0
    accesses: int = 0
    jumps: str = ""
    falls: bool = True


_KINDS = (
    (r"v_(mfma|wmma|smfmac|swmmac)_", Kind.MATRIX),
    (r"v_(read|write)lane_", Kind.LANE),
    (r"v_", Kind.VECTOR),
    (r"buffer_(gl\d_)?inv|buffer_wb|global_(inv|wb)|s_\w*cache\w*_inv|s_gl1_inv", Kind.FLUSH),
    (r"s_barrier(_wait)?$", Kind.BARRIER),
    (r"s_wait", Kind.WAIT),
    (r"s_(branch|cbranch|setpc|swappc|call|endpgm)", Kind.BRANCH),
    (r"s_(buffer_)?load_", Kind.CONSTANT_LOAD),
    (r"s_(delay_alu|nop|clause|setprio|sleep|code_end|sched_|set_inst_prefetch|inst_prefetch)", Kind.HINT),
    (r"s_", Kind.SCALAR),
    (r"(global|buffer)_load_(async_)?(to_)?lds_", Kind.TO_SHARED),
    (r"(global|flat|buffer)_atomic_", Kind.GLOBAL_ATOMIC),
    (r"(global|flat|buffer)_load_", Kind.GLOBAL_LOAD),
    (r"(global|flat|buffer)_store_", Kind.GLOBAL_STORE),
    (r"scratch_", Kind.STACK),
    (r"ds_(bpermute|permute|swizzle)_", Kind.EXCHANGE),
    (r"ds_(read|load)", Kind.SHARED_LOAD),
    (r"ds_(write|store)", Kind.SHARED_STORE),
    (r"ds_", Kind.SHARED_ATOMIC),
)  # fmt: skip
_MATCHES = tuple((re.compile(pattern), kind) for pattern, kind in _KINDS)
_WIDTH = re.compile(
    r"^(?:global|flat|buffer|scratch|ds)_(?:load|store|read|write)"
    r"(?P<two>2(?:st64)?|_2addr(?:_stride64)?)?(?:_lds)?_(?P<form>\w+?)(?:_tr_\w+|_e\d+)?$"
)
_END = re.compile(r"s_(branch|setpc\w*|endpgm\w*)$")


def amd_line(instruction: Instruction) -> IsaLine:
    """An instruction of a listing for an AMD GPU.

    Example:
        >>> from tilewright.amdgcn.text import instruction
        >>> made = amd_line(instruction(7, "ds_read2_b64 v[0:3], v9 offset1:4"))
        >>> made.kind.value, made.bytes, made.accesses
        ('shared load', 8, 2)
    """
    name = instruction.mnemonic
    kind = next((kind for match, kind in _MATCHES if match.match(name)), Kind.OTHER)
    size = accesses = 0
    if (found := _WIDTH.match(name)) and (access := access_of(found["form"])):
        size, accesses = access.size, 2 if found["two"] else 1
    jumps = ""
    if kind is Kind.BRANCH and instruction.operands and "branch" in name:
        jumps = instruction.operands[0].text
    return IsaLine(
        *(instruction.line, instruction.text, name, kind, size, accesses, jumps),
        falls=not _END.match(name),
    )
