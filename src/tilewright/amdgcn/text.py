"""A listing as it is read: kernels with their instructions, labels, directives and arguments."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from tilewright.amdgcn.constants import Constants, with_distances
from tilewright.amdgcn.faults import ListingParseError, nearest
from tilewright.amdgcn.metadata import (
    METADATA_BEGIN,
    METADATA_END,
    Argument,
    KernelRecord,
    kernel_records,
)
from tilewright.amdgcn.operands import Operand, operand

_COMMENT = re.compile(r";.*$|//.*$")
_LABEL = re.compile(r"^([\w.$@]+):\s*(.*)$")
_MODIFIER = re.compile(
    r"^(?:[a-z_0-9]+:(?:\[[^\]]*\]|\w*\([^)]*\)|[-\w.]+)|glc|slc|dlc|sc0|sc1|nt|off|idxen|offen|lds|tfe|clamp|gds|"
    r"row_mirror|row_half_mirror|bound_ctrl|wave_shl:1|wave_shr:1|done|vm)$"
)
_TARGET = re.compile(r"^\.amdgcn_target\s+\"amdgcn-amd-amdhsa-[\w.]*-(gfx\w+)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a listing.

    Args:
        line: its number in the listing, from 1.
        text: as it stands there.
        mnemonic: its first word.
        operands: what follows, separated by commas.
        modifiers: words and ``name:value`` after the operands.
        second: the other half of a ``v_dual_…``, if it is one.
    """

    line: int
    text: str
    mnemonic: str
    operands: tuple[Operand, ...]
    modifiers: dict[str, str] = field(default_factory=dict)
    second: Instruction | None = None


@dataclass(slots=True)
class KernelListing:
    """The instructions of one kernel, and what the listing says about it.

    Args:
        name: of the kernel.
        instructions: in the order in which they stand.
        labels: which instruction follows a label.
        directives: what ``.amdhsa_…`` says, by its name without this.
        record: its metadata.
        constants: of the whole listing.
    """

    name: str
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    directives: dict[str, int] = field(default_factory=dict)
    record: KernelRecord = field(default_factory=KernelRecord)
    constants: Constants = field(default_factory=Constants)

    @property
    def arguments(self) -> list[Argument]:
        """What the kernel is called with, as its metadata says."""
        return self.record.arguments


@dataclass(frozen=True, slots=True)
class Listing:
    """The listing of a compiled program.

    Args:
        arch: name of its architecture, e.g. ``gfx1151``.
        kernels: by their names.
    """

    arch: str
    kernels: dict[str, KernelListing]

    def kernel(self, name: str = "") -> KernelListing:
        """A kernel by its name, or the only one there is.

        Raises:
            ListingParseError: there is none of that name.
        """
        if not name and len(self.kernels) == 1:
            return next(iter(self.kernels.values()))
        if name not in self.kernels:
            raise ListingParseError(
                f"the listing has no kernel {name!r}, but {sorted(self.kernels)}{nearest(name, self.kernels)}"
            )
        return self.kernels[name]


def read_listing(text: str) -> Listing:
    """Reads the assembly that a compiler wrote for ``amdgcn-amd-amdhsa``.

    Args:
        text: the whole listing, with its directives and its metadata.

    Returns:
        Its kernels; functions that no ``.amdhsa_kernel`` names are left out.

    Raises:
        ListingParseError: no target is named, or an operand is not understood.

    Example:
        >>> listing = read_listing('''
        ... .amdgcn_target "amdgcn-amd-amdhsa--gfx1151"
        ... nothing:
        ...   s_endpgm
        ... .amdhsa_kernel nothing
        ...   .amdhsa_next_free_vgpr 1
        ... .end_amdhsa_kernel
        ... ''')
        >>> listing.arch, listing.kernels["nothing"].instructions[0].mnemonic
        ('gfx1151', 's_endpgm')
    """
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), 1):
        reader.take(number, line)
    if not reader.arch:
        raise ListingParseError("no .amdgcn_target: this is not a listing for AMD")
    for name, record in kernel_records(reader.metadata).items():
        if name in reader.kernels:
            reader.kernels[name].record = record
    for kernel in reader.kernels.values():
        kernel.constants = reader.constants
        kernel.instructions = [_placed(one, reader.constants) for one in kernel.instructions]
    return Listing(reader.arch, reader.kernels)


def _placed(made: Instruction, constants: Constants) -> Instruction:
    """An instruction, of whose operands those that say how far away a constant lies are numbers."""
    try:
        operands = with_distances(made.operands, constants.places)
    except ListingParseError as error:
        raise ListingParseError(error.message, made.line, made.text) from None
    return made if operands == made.operands else replace(made, operands=operands)


MOST = {
    "kernarg_size": 1 << 16,
    "private_segment_fixed_size": 1 << 17,
    "user_sgpr_count": 32,
    "user_sgpr_kernarg_preload_length": 32,
    "user_sgpr_kernarg_preload_offset": 1 << 10,
}
"""The largest values of some directives: bytes, bytes of a lane, registers, and words of arguments."""
MOST_OF_OTHERS = (1 << 32) - 1


class _Reader:
    """Takes the lines of a listing one by one."""

    def __init__(self) -> None:
        self.arch = ""
        self.kernels: dict[str, KernelListing] = {}
        self.functions: dict[str, KernelListing] = {}
        self.metadata: list[str] = []
        self.constants = Constants()
        self.current: KernelListing | None = None
        self.described: KernelListing | None = None
        self.in_metadata = False

    def take(self, number: int, line: str) -> None:
        if self.in_metadata:
            self.in_metadata = METADATA_END not in line
            if self.in_metadata:
                self.metadata.append(line)
            return
        bare = _COMMENT.sub("", line).strip()
        if match := _LABEL.match(bare):
            self._label(match.group(1))
            bare = match.group(2).strip()
        if not bare:
            return
        if bare.startswith("."):
            self._directive(bare)
        elif self.current is not None:
            self.current.instructions.append(instruction(number, bare))

    def _label(self, name: str) -> None:
        if name.startswith(".L"):
            if self.current is not None:
                self.current.labels[name] = len(self.current.instructions)
        else:
            self.current = self.functions[name] = KernelListing(name)

    def _directive(self, text: str) -> None:
        word, _, rest = text.partition(" ") if " " in text else text.partition("\t")
        rest = rest.strip()
        if match := _TARGET.match(text):
            self.arch = match.group(1)
        elif word == METADATA_BEGIN:
            self.in_metadata = True
        elif word == ".amdhsa_kernel":
            self.described = self.functions.setdefault(rest, KernelListing(rest))
            self.kernels[rest] = self.described
        elif word == ".end_amdhsa_kernel":
            self.described = None
        elif self.described is not None and word.startswith(".amdhsa_") and re.match(r"^\d+$", rest):
            name = word.removeprefix(".amdhsa_")
            most = MOST.get(name, MOST_OF_OTHERS)
            if len(rest) > 10 or int(rest) > most:
                raise ListingParseError(f"{word} {rest[:80]} is more than {most}")
            self.described.directives[name] = int(rest)
        elif word == ".section":
            self.current = None
        elif word == ".comm" or (self.current is not None and not self.current.instructions):
            self.constants.take(self.current.name if self.current else "", word, rest)


def instruction(line: int, text: str) -> Instruction:
    """One instruction from its text; that of both halves of a ``v_dual_…``, which ``::`` separates."""
    first, _, second = text.partition("::")
    made = _half(line, first.strip(), text)
    if not second:
        return made
    other = _half(line, second.strip(), text)
    return Instruction(line, text, made.mnemonic, made.operands, made.modifiers, other)


def _half(line: int, text: str, whole: str) -> Instruction:
    mnemonic, _, rest = text.replace("\t", " ").partition(" ")
    pieces = [piece.strip() for piece in _split(rest, ",")]
    modifiers: dict[str, str] = {}
    if pieces and mnemonic != "s_delay_alu" and not mnemonic.startswith("s_wait"):
        words = [word for word in _split(pieces[-1], " ") if word]
        while len(words) > 1 and _MODIFIER.match(words[-1]):
            name, _, value = words.pop().partition(":")
            modifiers[name] = value or "1"
        if words and len(pieces) == 1 and _MODIFIER.match(words[0]) and words[0] != "off" and ":" in words[0]:
            name, _, value = words.pop().partition(":")
            modifiers[name] = value
        pieces[-1] = " ".join(words)
    if mnemonic.startswith(("s_wait", "s_delay_alu", "s_sendmsg", "s_setreg", "s_getreg")):
        return Instruction(line, whole, mnemonic, (Operand(rest, "name"),), {"all": rest})
    try:
        operands = tuple(operand(piece) for piece in pieces if piece)
    except ListingParseError as error:
        raise ListingParseError(error.message, line, whole) from None
    return Instruction(line, whole, mnemonic, operands, modifiers)


def _split(text: str, at: str) -> list[str]:
    """Pieces of a text between separators that stand in no brackets."""
    pieces, depth, piece = [], 0, ""
    for letter in text:
        depth += (letter in "[(") - (letter in "])")
        if letter == at and depth == 0:
            pieces.append(piece)
            piece = ""
        else:
            piece += letter
    return [*pieces, piece] if piece.strip() or pieces else []
