"""Loads, stores and atomics of global, scratch and flat memory, buffer accesses, and scalar loads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.amdgcn.faults import OutOfBoundsError, UninitialisedError, UnknownInstructionError
from tilewright.amdgcn.floats import bf16_bits, from_bf16, larger, smaller
from tilewright.amdgcn.operands import APERTURES, ListingOperand
from tilewright.amdgcn.readers import UNSIGNED, OperandReader
from tilewright.amdgcn.space import BASE, Space
from tilewright.amdgcn.state import Array, Waves
from tilewright.amdgcn.steps import DecodedStep
from tilewright.amdgcn.text import Instruction

# ---------------------------------------------------------------- atomics
#
# The lanes act one after another, in the order of waves and lanes.  This order is an assumption.


def _pair(function: Any) -> Any:
    """A function of the lower and of the upper 16 bits of words."""

    def both(old: Any, value: Any) -> Any:
        low, high = (
            function(*((x >> np.uint32(s)).astype(np.uint16) for x in (old, value))).astype(np.uint32)
            for s in (0, 16)
        )
        return low | (high << np.uint32(16))

    return both


_PLAIN: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "rsub": lambda old, value: value - old,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "swap": lambda old, value: value,
    "inc": lambda old, value: np.where(old >= value, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, value: np.where((old == 0) | (old > value), value, old - old.dtype.type(1)),
}
_ORDERED = {"min": np.minimum, "max": np.maximum}


def _table() -> dict[str, tuple[str, Any]]:
    """The dtype and the meaning of each operation, by what follows ``atomic_`` or ``ds_``."""
    table: dict[str, tuple[str, Any]] = {}
    for name, function in _PLAIN.items():
        table[name], table[f"{name}_x2"] = ("u4", function), ("u8", function)
        for bits, dtype in (("32", "u4"), ("64", "u8")):
            for letter in "ubi":
                table[f"{name}_{letter}{bits}"] = (dtype, function)
    for name, function in _ORDERED.items():
        for letter, sign in (("u", "u"), ("s", "i")):
            table[f"{letter}{name}"], table[f"{letter}{name}_x2"] = (
                (f"{sign}4", function),
                (f"{sign}8", function),
            )
        for letter in "ui":
            table[f"{name}_{letter}32"], table[f"{name}_{letter}64"] = (
                (f"{letter}4", function),
                (f"{letter}8", function),
            )
    for bits, dtype in (("32", "f4"), ("64", "f8")):
        table[f"add_f{bits}"] = (dtype, np.add)
        table[f"max_f{bits}"], table[f"min_f{bits}"] = (dtype, larger), (dtype, smaller)
    table["pk_add_f16"], table["pk_add_bf16"] = (
        ("u4", _pair(lambda a, b: (a.view(np.float16) + b.view(np.float16)).view(np.uint16))),
        ("u4", _pair(lambda a, b: bf16_bits(from_bf16(a) + from_bf16(b)))),
    )
    for name in ("storexchg_b32", "wrxchg_b32"):
        table[name] = ("u4", _PLAIN["swap"])
    for name in ("storexchg_b64", "wrxchg_b64"):
        table[name] = ("u8", _PLAIN["swap"])
    return table


ATOMICS = _table()
COMPARING = {
    "cmpswap": "u4", "cmpswap_x2": "u8", "cmpswap_b32": "u4", "cmpswap_b64": "u8",
    "cmpst_b32": "u4", "cmpst_b64": "u8", "cmpstore_b32": "u4", "cmpstore_b64": "u8",
}  # fmt: skip
"""Compare-and-swap operations."""


def apply(space: Space, places: Array, dtype: str, function: Any, values: list[Array], mask: Array) -> Array:
    """Performs an operation in each active lane in turn.

    Args:
        space: the memory.
        places: of the lanes.
        dtype: of the numbers.
        function: the new number from the old one and those of the lane.
        values: numbers of the lanes.
        mask: which lanes are active.

    Returns:
        The old numbers.
    """
    size = np.dtype(dtype).itemsize
    view = space.octets.view(dtype)
    at = places[mask] // size
    given = [np.broadcast_to(value, mask.shape)[mask] for value in values]
    old = np.zeros(at.shape, dtype)
    left = np.arange(len(at))
    while len(left):
        _, first = np.unique(at[left], return_index=True)
        turn = left[first]
        old[turn] = view[at[turn]]
        view[at[turn]] = function(old[turn], *(value[turn] for value in given))
        left = np.delete(left, first)
    result = np.zeros(mask.shape, dtype)
    result[mask] = old
    return result


# ----------------------------------------------------------------
#
# Width, sign and register half of an access, from its mnemonic.


@dataclass(frozen=True, slots=True)
class AccessForm:
    """Width and registers of one lane's load or store.

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
        """Number of 32-bit registers."""
        return max(self.size // 4, 1)

    def loaded(self, words: list[Array], old: Array | None) -> list[Array]:
        """The new registers, from the loaded words."""
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


def access_of(form: str) -> AccessForm | None:
    """The access of a form such as ``dwordx4``, ``b128``, ``ubyte_d16_hi`` or ``d16_hi_u8``.

    Example:
        >>> access_of("short_d16_hi")
        AccessForm(size=2, signed=False, half='h')
    """
    if form in _SIZES:
        return AccessForm(_SIZES[form])
    if form in _SMALL:
        return AccessForm(*_SMALL[form])
    if match := _D16.match(form):
        small = match.group(1) or match.group(4)
        if small in _SMALL:
            return AccessForm(*_SMALL[small], "h" if match.group(2) or match.group(3) else "l")
    return None


# ---------------------------------------------------------------- steps


GUARD_PLACE = 64


class Address:
    """The addresses of lanes: of a vector register or none, a scalar one or none, and a constant.

    Args:
        vector: the operand that differs between lanes, or ``off``.
        scalar: the operand that does not, or ``off``.
        modifiers: of the instruction.
    """

    def __init__(
        self, vector: ListingOperand, scalar: ListingOperand | None, modifiers: dict[str, str]
    ) -> None:
        self.offset = int(modifiers.get("offset", "0"), 0)
        self.readers = []
        for item in (vector, scalar):
            if item is not None and item.bank not in ("off", "null"):
                self.readers.append(OperandReader(item, "u64" if item.count > 1 else "u32", vector=True))
        self.registers = tuple(register for reader in self.readers for register in reader.registers)

    def __call__(self, waves: Waves) -> Array:
        """Addresses of the lanes of the selected waves."""
        total: Any = np.full((1, 1), self.offset & 0xFFFFFFFFFFFFFFFF, np.uint64)
        for reader in self.readers:
            total = total + reader(waves).astype(np.uint64)
        return np.broadcast_to(total, waves.mask.shape)


class GlobalStep(DecodedStep):
    """The base of loads and stores of global memory.

    Args:
        instruction: as the listing has it.
        address: of the lanes.
        access: what each lane loads or stores.
        destination: the registers that are loaded.
        data: the registers that are stored.
    """

    def __init__(
        self,
        instruction: Instruction,
        address: Address,
        access: AccessForm,
        destination: Sequence[int] = (),
        data: Sequence[int] = (),
    ) -> None:
        keeps = destination if access.half and access.size < 4 else ()
        super().__init__(instruction, (*address.registers, *data), (*destination, *keeps))
        self.address, self.access = address, access
        self.destination, self.data = tuple(destination), tuple(data)
        self.loads = ("vm", tuple(r for r in self.destination if r not in address.registers))

    def run_tracked(self, waves: Waves) -> None:
        """Acts, and says which bits of what it writes are undefined."""
        waves.require_defined(self.address.registers, "an address", self.line, self.text)
        self.run(waves)

    def stream(self, waves: Waves) -> str:
        """Its wait counter."""
        return "vs" if not self.destination and waves.family.counts_stores_apart else "vm"

    def count(self, waves: Waves) -> None:
        """Count it as outstanding."""
        waves.waits.issue(self.stream(waves), waves.at, self.destination, self.line, self.text)

    def put(
        self, waves: Waves, words: list[Array], unknown: list[Array] | None = None, why: str = ""
    ) -> None:
        """Writes the loaded words to the registers."""
        old = waves.vector[self.destination[0]][waves.at] if self.access.half else None
        for register, word in zip(self.destination, self.access.loaded(words, old), strict=True):
            waves.put(register, word)
        if unknown is None and all(register not in waves.undefined for register in self.destination):
            return
        bits: list[Any] = list(unknown) if unknown is not None else [None] * len(self.destination)
        if self.access.half:
            before = waves.undefined_bits(self.destination[0])
            new = np.zeros(waves.mask.shape, np.uint32) if bits[0] is None else bits[0]
            bits = self.access.loaded([new], np.zeros_like(new) if before is None else before)
        elif unknown is not None and self.access.size < 4:
            bits = [np.where(bits[0] != 0, np.uint32(0xFFFFFFFF), np.uint32(0))]
        for register, shadow in zip(self.destination, bits, strict=True):
            waves.put_undefined(register, shadow, why)

    def words(self, waves: Waves, data: Sequence[int] | None = None) -> list[Array]:
        """The words that are stored, of all registers or of some."""
        registers = self.data if data is None else data
        return self.access.stored([waves.vector[register][waves.at] for register in registers])

    def unknown(self, waves: Waves, data: Sequence[int] | None = None) -> list[Array | None]:
        """Undefined bits of the stored number."""
        found = [waves.undefined_bits(register) for register in (self.data if data is None else data)]
        if self.access.half == "h" and found[0] is not None:
            found[0] = found[0] >> np.uint32(16)
        if self.access.size < 4 and found[0] is not None:
            found[0] = found[0] & np.uint32((1 << (8 * self.access.size)) - 1)
        return found

    def require_known(self, waves: Waves) -> None:
        """Refuses to store undefined bits where they would be a result.

        Raises:
            UninitialisedError: there are some.
        """
        for register, bits in zip(self.data, self.unknown(waves), strict=True):
            if bits is None or not (bad := np.where(waves.mask, bits, 0)).any():
                continue
            wave, lane = np.argwhere(bad)[0]
            raise UninitialisedError(
                f"a stored number depends on v{register}, {waves.why(register)} "
                f"(wave {waves.selected()[wave]}, lane {lane})",
                self.line,
                self.text,
            )


class GlobalLoad(GlobalStep):
    """A load from global memory."""

    def run(self, waves: Waves) -> None:
        """Acts on the selected waves."""
        places = waves.arrays.places(
            self.address(waves), self.access.size, waves.mask, "a load", self.line, self.text
        )
        self.put(waves, waves.arrays.load(places, self.access.size))
        self.count(waves)


class GlobalStore(GlobalStep):
    """A store to global memory."""

    def run(self, waves: Waves) -> None:
        """Acts on the selected waves."""
        if not waves.undefined.isdisjoint(self.data):
            self.require_known(waves)
        places = waves.arrays.places(
            self.address(waves), self.access.size, waves.mask, "a store", self.line, self.text
        )
        waves.arrays.store_once(places, self.access.size, waves.mask, self.line, self.text)
        waves.arrays.store(places, self.access.size, self.words(waves), waves.mask)
        self.count(waves)


class GlobalAtomic(GlobalStep):
    """An atomic on global memory, which gives the old number back or not."""

    def __init__(
        self,
        instruction: Instruction,
        address: Address,
        dtype: str,
        function: Any,
        destination: Sequence[int],
        data: Sequence[int],
    ) -> None:
        super().__init__(instruction, address, AccessForm(np.dtype(dtype).itemsize), destination, data)
        self.dtype, self.function = dtype, function

    def run(self, waves: Waves) -> None:
        """Acts on the selected waves."""
        if not waves.undefined.isdisjoint(self.data):
            self.require_known(waves)
        size = self.access.size
        places = waves.arrays.places(self.address(waves), size, waves.mask, "an atomic", self.line, self.text)
        values = typed_values(self.words(waves), self.dtype)
        old = apply(waves.arrays, places, self.dtype, self.function, values, waves.mask)
        if self.destination:
            self.put(waves, words_of(old))
        self.count(waves)


class ScratchStep(GlobalStep):
    """A load from the scratch memory of each lane, or a store to it."""

    def run(self, waves: Waves) -> None:
        """Acts on the selected waves."""
        offsets = self.address(waves).astype(np.uint32).astype(np.int64)
        move_scratch(self, waves, offsets, waves.mask)
        self.count(waves)


def move_scratch(step: GlobalStep, waves: Waves, offsets: Array, mask: Array) -> None:
    """Loads from scratch memory, or stores to it, in the lanes of a mask.

    Raises:
        OutOfBoundsError: an offset beyond what the kernel has of it.
    """
    size = step.access.size
    bad = mask & ((offsets < 0) | (offsets + size > waves.scratch_size))
    if bad.any():
        raise OutOfBoundsError(
            f"scratch memory is accessed at bytes {offsets[bad][0]} to {offsets[bad][0] + size - 1} "
            f"of {waves.scratch_size}",
            step.line,
            step.text,
        )
    lanes = waves.selected()[:, None] * waves.lanes + np.arange(waves.lanes)
    places = np.where(mask, lanes * waves.scratch_size + offsets, len(waves.scratch.octets) - GUARD_PLACE)
    if step.destination:
        unknown = waves.scratch_unknown.load(places, size)
        some = any(np.where(mask, word, 0).any() for word in unknown)
        step.put(
            waves,
            waves.scratch.load(places, size),
            unknown if some else None,
            "loaded from scratch memory that nothing was stored to",
        )
        return
    waves.scratch.store(places, size, step.words(waves), mask)
    bits = [np.uint32(0) if word is None else word for word in step.unknown(waves)]
    waves.scratch_unknown.store(places, size, [np.asarray(word) for word in bits], mask)


class FlatStep(GlobalStep):
    """A load or store whose address says whether it is of global memory, LDS or scratch memory."""

    def run(self, waves: Waves) -> None:
        """Acts on the selected waves."""
        addresses = self.address(waves)
        upper = addresses >> np.uint64(32)
        active, full = waves.mask, waves.full
        for name, where in (("scratch", "src_private_base"), ("lds", "src_shared_base"), ("global", "")):
            here = active & ((upper == APERTURES[where] >> 32) if where else (upper >= BASE >> 32))
            if not here.any():
                continue
            waves.mask, waves.full = here, bool(here.all())
            low = (addresses & np.uint64(0xFFFFFFFF)).astype(np.int64)
            if name == "scratch":
                move_scratch(self, waves, low, here)
            elif name == "lds":
                self.move_lds(waves, low)
            else:
                self.move_global(waves, addresses)
        waves.mask, waves.full = active, full
        stray = (
            active
            & (upper < BASE >> 32)
            & (upper != APERTURES["src_private_base"] >> 32)
            & (upper != APERTURES["src_shared_base"] >> 32)
        )
        if stray.any():
            raise OutOfBoundsError(
                f"a flat address is {int(addresses[stray][0]):#x}, in no memory", self.line, self.text
            )
        self.count(waves)
        waves.waits.issue("lds", waves.at, self.destination, self.line, self.text)

    def move_lds(self, waves: Waves, offsets: Array) -> None:
        """Loads from LDS or stores to it."""
        places = waves.lds.places(waves, offsets, self.access.size, self)
        flight = waves.waits.issue("lds", waves.at, (), self.line, self.text)
        waves.lds.record(waves, places, self.access.size, self, flight, not self.destination)
        if self.destination:
            self.put(waves, waves.lds.load(places, self.access.size))
        else:
            waves.lds.store(places, self.access.size, self.words(waves), waves.mask)
            waves.lds.unknown.store(
                places, self.access.size, [np.zeros((1, 1), np.uint32)] * self.access.registers, waves.mask
            )

    def move_global(self, waves: Waves, addresses: Array) -> None:
        """Loads from the arrays or stores to them."""
        places = waves.arrays.places(
            addresses, self.access.size, waves.mask, "a flat access", self.line, self.text
        )
        if self.destination:
            self.put(waves, waves.arrays.load(places, self.access.size))
        else:
            self.require_known(waves)
            waves.arrays.store(places, self.access.size, self.words(waves), waves.mask)


class ScalarLoad(DecodedStep):
    """A load into scalar registers."""

    def __init__(self, instruction: Instruction, access: AccessForm) -> None:
        destination, base, *offsets = instruction.operands
        self.base = OperandReader(base, "u64", vector=False)
        self.offsets = [OperandReader(item, "u32", vector=False) for item in offsets]
        self.constant = int(instruction.modifiers.get("offset", "0"), 0)
        reads = [register for reader in (self.base, *self.offsets) for register in reader.registers]
        super().__init__(instruction, reads, destination.registers)
        self.access, self.destination = access, destination

    def run(self, waves: Waves) -> None:
        """Acts on the selected waves."""
        address = self.base(waves) + np.uint64(self.constant & 0xFFFFFFFFFFFFFFFF)
        for reader in self.offsets:
            address = address + reader(waves).view(np.int32).astype(np.int64).view(np.uint64)
        address = (np.broadcast_to(address, (len(waves.selected()),)) & np.uint64(0xFFFFFFFFFFFFFFFC))[
            :, None
        ]
        mask = np.ones(address.shape, np.bool_)
        places = waves.arrays.places(address, self.access.size, mask, "a scalar load", self.line, self.text)
        for place, word in enumerate(waves.arrays.load(places, self.access.size)):
            waves.put_scalar(self.destination.index + place, word[:, 0])
        waves.waits.issue("smem", waves.at, self.destination.registers, self.line, self.text)


def typed_values(words: list[Array], dtype: str) -> list[Array]:
    """Words as numbers of a type, of one or two registers each."""
    if np.dtype(dtype).itemsize == 4:
        return [np.ascontiguousarray(word).view(dtype) for word in words]
    pairs = zip(words[::2], words[1::2], strict=True)
    return [
        (low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))).view(dtype) for low, high in pairs
    ]


def words_of(values: Array) -> list[Array]:
    """Numbers as words of 32 bits."""
    bits = np.ascontiguousarray(values).view(UNSIGNED[values.dtype.itemsize])
    if bits.dtype.itemsize == 4:
        return [bits]
    return [bits.astype(np.uint32), (bits >> np.uint64(32)).astype(np.uint32)]


# ---------------------------------------------------------------- accesses through a buffer descriptor
#
# A load beyond the buffer gives 0, and a store beyond it has no effect.  A descriptor takes four scalar
# registers: 48 bits of address, a stride, which must be 0 here, the size in bytes, and a format, which
# these instructions ignore.


class BufferStep(GlobalStep):
    """A load through a descriptor, or a store.

    Args:
        instruction: as the listing has it.
        vector: the operand of each lane's offset, or ``off``.
        descriptor: four scalar registers.
        scalar: an offset that all lanes share.
        access: what each lane loads or stores.
        destination: the registers that are loaded.
        data: the registers that are stored.
    """

    def __init__(
        self,
        instruction: Instruction,
        vector: ListingOperand,
        descriptor: ListingOperand,
        scalar: ListingOperand,
        access: AccessForm,
        destination: Sequence[int] = (),
        data: Sequence[int] = (),
    ) -> None:
        if unknown := set(instruction.modifiers) - {
            "offen",
            "offset",
            "glc",
            "slc",
            "dlc",
            "sc0",
            "sc1",
            "nt",
        }:
            raise UnknownInstructionError(
                f"no meaning is known for {sorted(unknown)} of {instruction.mnemonic}"
            )
        if (
            descriptor.bank != "s"
            or descriptor.count != 4
            or ("offen" in instruction.modifiers) != (vector.bank == "v")
        ):
            raise UnknownInstructionError(f"this form of {instruction.mnemonic} is not known")
        super().__init__(instruction, Address(vector, None, instruction.modifiers), access, destination, data)
        parts = [ListingOperand("", "s", descriptor.index + place, 1) for place in range(4)]
        self.descriptor = [OperandReader(part, "u32", vector=True) for part in parts]
        self.scalar = OperandReader(scalar, "u32", vector=True)
        self.uniform = more = (*descriptor.registers, *self.scalar.registers)
        self.reads = (*self.reads, *more)
        self.touched = frozenset((*self.touched, *more))

    def run_tracked(self, waves: Waves) -> None:
        """Refuses an undefined address or descriptor, then acts."""
        waves.require_defined((*self.address.registers, *self.uniform), "an address", self.line, self.text)
        self.run(waves)

    def run(self, waves: Waves) -> None:
        """Acts on the selected waves, one word of a lane at a time."""
        low, high, size, _ = (reader(waves) for reader in self.descriptor)
        if np.any((high >> np.uint32(16)) & np.uint32(0x3FFF)):
            raise UnknownInstructionError(
                "a buffer whose elements have a stride is not known", self.line, self.text
            )
        base = low.astype(np.uint64) | ((high & np.uint32(0xFFFF)).astype(np.uint64) << np.uint64(32))
        shared = self.scalar(waves).astype(np.int64)
        offset = self.address(waves).astype(np.int64)
        inside = size.astype(np.int64) - shared
        addresses = base + (offset + shared).astype(np.uint64)
        if self.data and not waves.undefined.isdisjoint(self.data):
            self.require_known(waves)
        found = []
        each = min(self.access.size, 4)
        words = self.words(waves) if self.data else []
        for place in range(max(self.access.size // 4, 1)):
            mask = waves.mask & (offset + 4 * place + each <= inside)
            found.append(
                self._word(waves, addresses + np.uint64(4 * place), each, mask, words[place : place + 1])
            )
        if self.destination:
            self.put(waves, found)
        self.count(waves)

    def _word(self, waves: Waves, addresses: Array, size: int, mask: Array, words: list[Array]) -> Array:
        what = "a store" if self.data else "a load"
        places: Array = waves.arrays.places(addresses, size, mask, what, self.line, self.text)
        if not self.data:
            loaded: Array = waves.arrays.load(places, size)[0]
            return np.asarray(np.where(mask, loaded, np.uint32(0)))
        waves.arrays.store_once(places, size, mask, self.line, self.text)
        waves.arrays.store(places, size, words, mask)
        return places
