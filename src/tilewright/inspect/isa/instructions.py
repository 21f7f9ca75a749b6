"""Kinds, access widths and jumps of AMD's instructions, and the natural loops that the jumps form."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from tilewright.amdgcn import Instruction
from tilewright.amdgcn.memory import access_of


class IsaKind(Enum):
    """Kinds of instructions; the value is the word of reports."""

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
        text: its text.
        mnemonic: its first word.
        kind: its kind.
        bytes: bytes of one lane's access; 0 if it accesses no memory.
        accesses: accesses of one lane.
        jumps: the label of its jump target, or "".
        falls: whether the next instruction may follow it.
    """

    line: int
    text: str
    mnemonic: str
    kind: IsaKind
    bytes: int = 0
    accesses: int = 0
    jumps: str = ""
    falls: bool = True


_KINDS = (
    (r"v_(mfma|wmma|smfmac|swmmac)_", IsaKind.MATRIX),
    (r"v_(read|write)lane_", IsaKind.LANE),
    (r"v_", IsaKind.VECTOR),
    (r"buffer_(gl\d_)?inv|buffer_wb|global_(inv|wb)|s_\w*cache\w*_inv|s_gl1_inv", IsaKind.FLUSH),
    (r"s_barrier(_wait)?$", IsaKind.BARRIER),
    (r"s_wait", IsaKind.WAIT),
    (r"s_(branch|cbranch|setpc|swappc|call|endpgm)", IsaKind.BRANCH),
    (r"s_(buffer_)?load_", IsaKind.CONSTANT_LOAD),
    (r"s_(delay_alu|nop|clause|setprio|sleep|code_end|sched_|set_inst_prefetch|inst_prefetch)", IsaKind.HINT),
    (r"s_", IsaKind.SCALAR),
    (r"(global|buffer)_load_(async_)?(to_)?lds_", IsaKind.TO_SHARED),
    (r"(global|flat|buffer)_atomic_", IsaKind.GLOBAL_ATOMIC),
    (r"(global|flat|buffer)_load_", IsaKind.GLOBAL_LOAD),
    (r"(global|flat|buffer)_store_", IsaKind.GLOBAL_STORE),
    (r"scratch_", IsaKind.STACK),
    (r"ds_(bpermute|permute|swizzle)_", IsaKind.EXCHANGE),
    (r"ds_(read|load)", IsaKind.SHARED_LOAD),
    (r"ds_(write|store)", IsaKind.SHARED_STORE),
    (r"ds_", IsaKind.SHARED_ATOMIC),
)  # fmt: skip
_MATCHES = tuple((re.compile(pattern), kind) for pattern, kind in _KINDS)
_WIDTH = re.compile(
    r"^(?:global|flat|buffer|scratch|ds)_(?:load|store|read|write)"
    r"(?P<two>2(?:st64)?|_2addr(?:_stride64)?)?(?:_lds)?_(?P<form>\w+?)(?:_tr_\w+|_e\d+)?$"
)
_END = re.compile(r"s_(branch|setpc\w*|endpgm\w*)$")


def amd_line(instruction: Instruction) -> IsaLine:
    """Classify an instruction of a listing for an AMD GPU.

    Example:
        >>> from tilewright.amdgcn.text import instruction
        >>> made = amd_line(instruction(7, "ds_read2_b64 v[0:3], v9 offset1:4"))
        >>> made.kind.value, made.bytes, made.accesses
        ('shared load', 8, 2)
    """
    name = instruction.mnemonic
    kind = next((kind for match, kind in _MATCHES if match.match(name)), IsaKind.OTHER)
    size = accesses = 0
    if (found := _WIDTH.match(name)) and (access := access_of(found["form"])):
        size, accesses = access.size, 2 if found["two"] else 1
    jumps = ""
    if kind is IsaKind.BRANCH and instruction.operands and "branch" in name:
        jumps = instruction.operands[0].text
    return IsaLine(
        *(instruction.line, instruction.text, name, kind, size, accesses, jumps), falls=not _END.match(name)
    )


# ---------------------------------------------------------------- loops of a listing


@dataclass(frozen=True)
class Body:
    """Instructions in the order of the listing, and their figures; each instruction counts once.

    Args:
        lines: the instructions.
    """

    lines: tuple[IsaLine, ...]

    @property
    def mix(self) -> Counter[IsaKind]:
        """Number of instructions of each kind."""
        return Counter(line.kind for line in self.lines)

    @property
    def mnemonics(self) -> Counter[str]:
        """Number of instructions of each mnemonic."""
        return Counter(line.mnemonic for line in self.lines)

    def of(self, *kinds: IsaKind) -> tuple[IsaLine, ...]:
        """Return the instructions of some kinds."""
        return tuple(line for line in self.lines if line.kind in kinds)

    def widths(self, *kinds: IsaKind) -> Counter[int]:
        """Return the number of accesses by bytes of one lane; an instruction may have two accesses."""
        found: Counter[int] = Counter()
        for line in self.of(*kinds):
            found[line.bytes] += line.accesses
        return found

    @property
    def matrix_per_load(self) -> float:
        """Matrix instructions per load of global memory; infinite without loads."""
        loads = len(self.of(IsaKind.GLOBAL_LOAD, IsaKind.TO_SHARED))
        return _per(len(self.of(IsaKind.MATRIX)), loads)

    @property
    def matrix_per_shared_load(self) -> float:
        """Matrix instructions per load of shared memory; infinite without loads."""
        return _per(len(self.of(IsaKind.MATRIX)), len(self.of(IsaKind.SHARED_LOAD)))

    @property
    def flushes_per_barrier(self) -> float:
        """Cache invalidations and write-backs per barrier; infinite without barriers."""
        return _per(len(self.of(IsaKind.FLUSH)), len(self.of(IsaKind.BARRIER)))


def _per(count: int, of: int) -> float:
    return count / of if of else float("inf") if count else 0.0


@dataclass(frozen=True)
class ListingLoop(Body):
    """A natural loop.

    Args:
        lines: its instructions, without those of inner loops.
        label: the label of its header.
        first: the line of the listing at which a turn begins.
        depth: 1 for an outermost loop.
        around: the label of the enclosing loop, or "".
    """

    label: str
    first: int
    depth: int
    around: str

    @property
    def turn(self) -> tuple[IsaLine, ...]:
        """Its instructions in the order of execution, from the beginning of a turn."""
        at = next(at for at, line in enumerate(self.lines) if line.line >= self.first)
        return (*self.lines[at:], *self.lines[:at])


def find_loops(lines: Sequence[IsaLine], labels: Mapping[str, int]) -> tuple[ListingLoop, ...]:
    """Return the natural loops of a program, in the order of their headers.

    A back edge leads to an instruction that dominates its source. All back edges to one instruction make one
    loop.

    Args:
        lines: the instructions of the program, from its entry.
        labels: the index of the instruction after each label.

    Example:
        >>> step, back = (IsaLine(n, "", "", IsaKind.VECTOR, jumps=at) for n, at in enumerate(["", "again"]))
        >>> found = find_loops([step, step, back], {"again": 1})
        >>> [(loop.label, len(loop.lines), loop.depth) for loop in found]
        [('again', 2, 1)]
    """
    blocks = _Blocks(lines, labels)
    members = blocks.loops()
    names = {at: name for name, at in labels.items()}
    found = []
    for header, inside in members.items():
        outer = [h for h, others in members.items() if h != header and header in others]
        own = inside - {at for h, others in members.items() if h != header and h in inside for at in others}
        around = min(outer, key=lambda h: len(members[h]), default=None)
        label = names.get(blocks.starts[header], "")
        of = "" if around is None else names.get(blocks.starts[around], "")
        first = lines[blocks.starts[header]].line
        found.append(ListingLoop(tuple(blocks.lines(own)), label, first, len(outer) + 1, of))
    return tuple(found)


class _Blocks:
    """The basic blocks of a program.

    Args:
        lines: the program.
        labels: the index of the instruction after each label.
    """

    def __init__(self, lines: Sequence[IsaLine], labels: Mapping[str, int]) -> None:
        self.program = lines
        places = {at for at in labels.values() if at < len(lines)}
        places |= {at + 1 for at, line in enumerate(lines[:-1]) if line.jumps or not line.falls}
        self.starts = sorted(places | {0})
        number = {at: block for block, at in enumerate(self.starts)}
        ends = [*self.starts[1:], len(lines)]
        self.next: list[list[int]] = [[] for _ in self.starts]
        self.before: list[list[int]] = [[] for _ in self.starts]
        for block, end in enumerate(ends):
            last = lines[end - 1]
            targets = [number[labels[last.jumps]]] if labels.get(last.jumps, len(lines)) < len(lines) else []
            targets += [block + 1] if last.falls and end < len(lines) else []
            self.next[block] = targets
            for target in targets:
                self.before[target].append(block)

    def lines(self, blocks: Iterable[int]) -> Iterable[IsaLine]:
        """Yield the instructions of some blocks, in the order of the program."""
        ends = [*self.starts[1:], len(self.program)]
        for block in sorted(blocks):
            yield from self.program[self.starts[block] : ends[block]]

    def loops(self) -> dict[int, set[int]]:
        """Return the blocks of each loop, by its header."""
        reached: dict[int, None] = {}  # from the entry, in order
        waiting = [0]
        while waiting:
            block = waiting.pop()
            if block not in reached:
                reached[block] = None
                waiting += self.next[block]
        dominators = {block: set(reached) for block in reached} | {0: {0}}
        changed = True
        while changed:
            changed = False
            for block in [*reached][1:]:
                known = [dominators[at] for at in self.before[block] if at in dominators]
                new = {block} | set.intersection(*known)
                if new != dominators[block]:
                    dominators[block], changed = new, True
        found: dict[int, set[int]] = {}
        for block in sorted(dominators):
            for header in dominators[block] & {*self.next[block]}:
                # The loop has all blocks that reach this one without passing the header.
                inside, waiting = found.setdefault(header, {header}), [block]
                while waiting:
                    at = waiting.pop()
                    if at not in inside:
                        inside.add(at)
                        waiting += self.before[at]
        return dict(sorted(found.items()))
