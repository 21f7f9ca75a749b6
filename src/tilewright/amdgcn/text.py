"""Parser of a listing: kernels with their instructions, labels, directives, constants and metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilewright.amdgcn.faults import ListingParseError
from tilewright.amdgcn.operands import ListingOperand, operand
from tilewright.errors import close_to

# ----------------------------------------------------------------
#
# Metadata: arguments of each kernel, and the initial state of a wave.


METADATA_BEGIN, METADATA_END = ".amdgpu_metadata", ".end_amdgpu_metadata"
"""The lines before and after the metadata of a listing."""

MOST_METADATA_BYTES = 1 << 16
"""Most bytes of a kernel's arguments."""

_ENTRY = re.compile(r"^(\s*)(- )?\s*(?:(\.?[\w.]+):)?\s*(.*)$")


@dataclass(frozen=True, slots=True)
class KernelArgument:
    """One argument of a kernel, from its metadata.

    Args:
        name: name in the source, or ``""``.
        offset: bytes from the begin of the kernel's arguments.
        size: bytes.
        kind: ``global_buffer``, ``by_value``, or ``hidden_…`` for arguments that the runtime passes.
    """

    name: str
    offset: int
    size: int
    kind: str


@dataclass(slots=True)
class KernelRecord:
    """Metadata of one kernel: its arguments, and its other fields by name."""

    arguments: list[KernelArgument] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)


def read_metadata(text: str) -> dict[str, KernelRecord]:
    """Return the kernels in the metadata of a listing, by name.

    Args:
        text: the whole listing.

    Example:
        >>> text = '''
        ... .amdgpu_metadata
        ... amdhsa.kernels:
        ...   - .args: []
        ...     .name: nothing
        ...     .vgpr_count: 5
        ... .end_amdgpu_metadata
        ... '''
        >>> read_metadata(text)["nothing"].fields[".vgpr_count"]
        '5'
    """
    _, _, after = text.partition(METADATA_BEGIN)
    return kernel_records(after.partition(METADATA_END)[0].splitlines())


def kernel_records(lines: list[str]) -> dict[str, KernelRecord]:
    """Parse the metadata of kernels.

    Args:
        lines: lines between ``.amdgpu_metadata`` and ``.end_amdgpu_metadata``.

    Returns:
        The kernels by name.

    Raises:
        ListingParseError: a kernel has no name.
    """
    records: list[tuple[dict[str, str], list[dict[str, str]]]] = []
    inside, nested = False, 0
    for line in lines:
        if not line.strip() or (match := _ENTRY.match(line)) is None:
            continue
        spaces, dash, key, value = match.groups()
        indent = len(spaces) + (2 if dash else 0)
        value = value.strip().strip("'\"")
        if indent == 0:
            inside = key == "amdhsa.kernels"
            continue
        if not inside:
            continue
        if dash and len(spaces) <= 2:
            records.append(({}, []))
            nested = 0
        if not records:
            raise ListingParseError(f"the metadata has {line.strip()!r} before the first kernel")
        if nested and indent <= nested:
            nested = 0
        if nested:
            if dash:
                records[-1][1].append({})
            if key and records[-1][1]:
                records[-1][1][-1][key] = value
        elif key == ".args":
            nested = indent
        elif key:
            records[-1][0][key] = value
    if any(".name" not in fields for fields, _ in records):
        raise ListingParseError("the metadata has a kernel without .name")
    return {
        fields[".name"]: KernelRecord([_argument(item) for item in arguments], fields)
        for fields, arguments in records
    }


def _argument(item: dict[str, str]) -> KernelArgument:
    name, kind = item.get(".name", ""), item.get(".value_kind", "")
    offset, size = item.get(".offset", ""), item.get(".size", "")
    for key, text in ((".offset", offset), (".size", size)):
        if not (text.isascii() and text.isdigit() and len(text) < 9 and int(text) <= MOST_METADATA_BYTES):
            raise ListingParseError(
                f"the metadata has an argument with {key} {text!r}; "
                f"it is an integer up to {MOST_METADATA_BYTES}"
            )
    if kind == "global_buffer" and int(size) != 8:
        raise ListingParseError(f"the metadata has an array with .size {int(size)}; an address has 8 bytes")
    return KernelArgument(name, int(offset), int(size), kind)


# ----------------------------------------------------------------
#
# Constants: bytes at labels, and operands that give a distance to them.
#
# A kernel finds a constant from the address of an instruction (``s_getpc_b64``), to which it adds a
# distance (``name@rel32@lo+4``, ``name@rel32@hi+12``).  Here all instructions have the same address, and the
# constants lie before the arrays of a launch.


PLACE = 0x4000_0000_0100
"""Address of the first constant."""

PROGRAM = 0x5000_0000_0000
"""Address of every instruction."""

_BYTES = {".byte": 1, ".short": 2, ".long": 4, ".quad": 8}
_DISTANCE = re.compile(r"^([\w.$]+)@rel32@(lo|hi)\+(4|12)$")
_ALIGN = 16


MOST_BYTES = 1 << 24
"""Most bytes of one constant."""


@dataclass(slots=True)
class Constants:
    """The bytes of a listing's constants.

    Args:
        octets: bytes of all constants.
        places: first byte of each label's constant.
    """

    octets: bytearray = field(default_factory=bytearray)
    places: dict[str, int] = field(default_factory=dict)

    def take(self, label: str, word: str, rest: str) -> bool:
        """Append the bytes of a directive to a label's constant.

        Returns:
            Whether the directive defines bytes.

        Raises:
            ListingParseError: the bytes are no plain numbers.

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


# ---------------------------------------------------------------- instructions and kernels


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
        line: number of its line in the listing, from 1.
        text: its text in the listing.
        mnemonic: its first word.
        operands: its operands.
        modifiers: words and ``name:value`` after the operands.
        second: the other half of a ``v_dual_…``, or None.
    """

    line: int
    text: str
    mnemonic: str
    operands: tuple[ListingOperand, ...]
    modifiers: dict[str, str] = field(default_factory=dict)
    second: Instruction | None = None

    @property
    def position(self) -> tuple[int, str]:
        """Line and text, for errors."""
        return self.line, self.text


@dataclass(slots=True)
class KernelListing:
    """The instructions and directives of one kernel.

    Args:
        name: name of the kernel.
        instructions: its instructions in order.
        labels: number of the instruction after each label.
        directives: values of ``.amdhsa_…`` directives, by their names without this prefix.
        record: its metadata.
        constants: constants of the whole listing.
    """

    name: str
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    directives: dict[str, int] = field(default_factory=dict)
    record: KernelRecord = field(default_factory=KernelRecord)
    constants: Constants = field(default_factory=Constants)

    @property
    def arguments(self) -> list[KernelArgument]:
        """The kernel's arguments, from its metadata."""
        return self.record.arguments


@dataclass(frozen=True, slots=True)
class Listing:
    """The listing of a compiled program.

    Args:
        arch: name of its architecture, e.g. ``gfx1151``.
        kernels: kernels by their names.
    """

    arch: str
    kernels: dict[str, KernelListing]

    def kernel(self, name: str = "") -> KernelListing:
        """Return a kernel by its name, or the only kernel.

        Raises:
            ListingParseError: no kernel has this name.
        """
        if not name and len(self.kernels) == 1:
            return next(iter(self.kernels.values()))
        if name not in self.kernels:
            near = close_to(name, self.kernels)
            raise ListingParseError(f"the listing has no kernel {name!r}, but {sorted(self.kernels)}{near}")
        return self.kernels[name]


def read_listing(text: str) -> Listing:
    """Parse the assembly that a compiler wrote for ``amdgcn-amd-amdhsa``.

    Args:
        text: the whole listing, with its directives and its metadata.

    Returns:
        Its kernels.  Functions without ``.amdhsa_kernel`` are left out.

    Raises:
        ListingParseError: the text names no target, or an operand is not understood.

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
    reader = _ListingReader()
    for number, line in enumerate(text.splitlines(), 1):
        reader.take(number, line)
    if not reader.arch:
        raise ListingParseError("no .amdgcn_target: this is not a listing for AMD")
    for name, record in kernel_records(reader.metadata).items():
        if name in reader.kernels:
            reader.kernels[name].record = record
    for kernel in reader.kernels.values():
        kernel.constants = reader.constants
        kernel.instructions = [_placed(one, reader.constants.places) for one in kernel.instructions]
    return Listing(reader.arch, reader.kernels)


def _placed(made: Instruction, places: Mapping[str, int]) -> Instruction:
    """Return an instruction, with distances to constants replaced by numbers."""
    operands = list(made.operands)
    for number, item in enumerate(operands):
        if item.bank != "name" or (found := _DISTANCE.match(item.text)) is None:
            continue
        name, half, _ = found.groups()
        if name not in places:
            raise ListingParseError(f"unknown constant {name!r}", *made.position)
        apart = PLACE + places[name] - PROGRAM
        index = apart >> 32 if half == "hi" else apart & 0xFFFFFFFF
        operands[number] = replace(item, bank="constant", index=index)
    return replace(made, operands=tuple(operands)) if operands != [*made.operands] else made


MOST = {
    "kernarg_size": 1 << 16,
    "private_segment_fixed_size": 1 << 17,
    "user_sgpr_count": 32,
    "user_sgpr_kernarg_preload_length": 32,
    "user_sgpr_kernarg_preload_offset": 1 << 10,
}
"""Largest values of some directives: bytes, bytes of a lane, registers, and words of arguments."""
MOST_OF_OTHERS = (1 << 32) - 1
"""Largest value of all other directives."""


class _ListingReader:
    """Parses a listing line by line."""

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
            name = match[1]
            if name.startswith(".L"):
                if self.current is not None:
                    self.current.labels[name] = len(self.current.instructions)
            else:
                self.current = self.functions[name] = KernelListing(name)
            bare = match[2].strip()
        if bare and not bare.startswith("."):
            if self.current is not None:
                self.current.instructions.append(instruction(number, bare))
            return
        word, _, rest = bare.partition(" ") if " " in bare else bare.partition("\t")
        rest = rest.strip()
        if match := _TARGET.match(bare):
            self.arch = match[1]
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
    """Parse one instruction, or both halves of a ``v_dual_…``, which ``::`` separates."""
    first, _, second = text.partition("::")
    made = _half(line, first.strip(), text)
    return replace(made, second=_half(line, second.strip(), text)) if second else made


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
        return Instruction(line, whole, mnemonic, (ListingOperand(rest, "name"),), {"all": rest})
    try:
        operands = tuple(operand(piece) for piece in pieces if piece)
    except ListingParseError as error:
        raise ListingParseError(error.message, line, whole) from None
    return Instruction(line, whole, mnemonic, operands, modifiers)


def _split(text: str, at: str) -> list[str]:
    """Split a text at separators outside brackets."""
    pieces, depth, piece = [], 0, ""
    for letter in text:
        depth += (letter in "[(") - (letter in "])")
        if letter == at and depth == 0:
            pieces.append(piece)
            piece = ""
        else:
            piece += letter
    return [*pieces, piece] if piece.strip() or pieces else []
