"""Loads, stores and atomics of global, scratch and flat memory, buffer accesses, and scalar loads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.amdgcn.faults import OutOfBoundsError, UninitialisedError, UnknownInstructionError
from tilewright.amdgcn.floats import bf16_bits, from_bf16, larger, smaller
from tilewright.amdgcn.operands import APERTURES, ListingOperand
from tilewright.amdgcn.readers import OperandReader, words_of
from tilewright.amdgcn.space import BASE, GUARD_PLACE, NONE_UNKNOWN, Space
from tilewright.amdgcn.state import Array, Waves
from tilewright.amdgcn.steps import DecodedStep
from tilewright.amdgcn.text import Instruction

# ---------------------------------------------------------------- atomics
#
# The lanes act one after another, in the order of waves and lanes.  This order is an assumption.


def _per_half(function: Any) -> Any:
    """Apply a function to the lower and to the upper 16 bits of words."""

    def both(old: Any, value: Any) -> Any:
        low, high = (
            function(*((x >> np.uint32(s)).astype(np.uint16) for x in (old, value))).astype(np.uint32)
            for s in (0, 16)
        )
        return low | (high << np.uint32(16))

    return both


_INTEGER: dict[str, Any] = {
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


def swap_if_equal(old: Any, new: Any, compared: Any) -> Any:
    """Return the new number where the old one equals the comparand, else the old one (compare-and-swap)."""
    return np.where(old == compared, new, old)


def _atomics() -> dict[str, tuple[str, Any]]:
    table: dict[str, tuple[str, Any]] = {}
    for size in (4, 8):
        bits, x2 = 8 * size, "_x2" if size == 8 else ""
        unsigned = f"u{size}"
        for name, function in _INTEGER.items():
            for form in (f"{name}{x2}", *(f"{name}_{letter}{bits}" for letter in "ubi")):
                table[form] = (unsigned, function)
        for name, function, of_floats in (("min", np.minimum, smaller), ("max", np.maximum, larger)):
            table[f"u{name}{x2}"] = table[f"{name}_u{bits}"] = (unsigned, function)
            table[f"s{name}{x2}"] = table[f"{name}_i{bits}"] = (f"i{size}", function)
            table[f"{name}_f{bits}"] = (f"f{size}", of_floats)
        table[f"add_f{bits}"] = (f"f{size}", np.add)
        table[f"storexchg_b{bits}"] = table[f"wrxchg_b{bits}"] = (unsigned, _INTEGER["swap"])
        for form in (f"cmpswap{x2}", *(f"{name}_b{bits}" for name in ("cmpswap", "cmpst", "cmpstore"))):
            table[form] = (unsigned, swap_if_equal)
    add_f16 = _per_half(lambda a, b: (a.view(np.float16) + b.view(np.float16)).view(np.uint16))
    add_bf16 = _per_half(lambda a, b: bf16_bits(from_bf16(a) + from_bf16(b)))
    table["pk_add_f16"], table["pk_add_bf16"] = ("u4", add_f16), ("u4", add_bf16)
    return table


ATOMICS = _atomics()
"""Dtype and function of each operation, by its name after ``atomic_`` or ``ds_``."""


def apply(space: Space, places: Array, dtype: str, function: Any, values: list[Array], mask: Array) -> Array:
    """Perform an operation in each active lane in turn, and return the old numbers.

    Args:
        space: the memory.
        places: byte of each lane's number in it.
        dtype: type of the numbers.
        function: the new number, from the old one and the lane's operands.
        values: operands, each an array over lanes.
        mask: active lanes.
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
        signed: sign-extend fewer than 4 bytes.
        half: ``"l"`` or ``"h"`` if only this half of the register is accessed, else ``""``.
    """

    size: int
    signed: bool = False
    half: str = ""

    @property
    def registers(self) -> int:
        """Number of 32-bit registers."""
        return max(self.size // 4, 1)

    def loaded(self, words: list[Array], old: Array | None) -> list[Array]:
        """Return the new registers, from the loaded words."""
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
        """Return the words whose lower bytes are stored."""
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
    """Return the access of a form such as ``dwordx4``, ``b128``, ``ubyte_d16_hi`` or ``d16_hi_u8``.

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


UNWRITTEN = "loaded from LDS that nothing was stored to"
"""Origin of undefined bits that were loaded from LDS."""

HINTS = {"glc", "slc", "dlc", "sc0", "sc1", "nt", "offset"}
"""Modifiers of any load or store: hints for caches, and the constant offset."""


class Address:
    """The address of each lane: an optional vector operand, an optional scalar operand and a constant.

    Args:
        vector: operand that differs between lanes, or ``off``.
        scalar: operand that all lanes share, or ``off``.
        modifiers: modifiers of the instruction.
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
    """The base of vector loads, stores and atomics.

    Args:
        instruction: the parsed instruction.
        address: addresses of the lanes.
        access: width of one load or store of a lane.
        destination: registers that are loaded.
        data: registers that are stored.
    """

    stream: ClassVar = "vm"
    """The counter by which kernels wait for the loaded registers."""

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
        self.loads = (self.stream, tuple(r for r in self.destination if r not in address.registers))

    def run_tracked(self, waves: Waves) -> None:
        """Refuse an undefined address, then execute the instruction."""
        waves.require_defined(self.address.registers, "an address", self)
        self.run(waves)

    def count(self, waves: Waves) -> None:
        """Count it as outstanding, with the other loads or with the stores."""
        stream = "vs" if not self.destination and waves.family.counts_stores_apart else "vm"
        waves.waits.issue(stream, waves.at, self.destination, self)

    def put(
        self, waves: Waves, words: list[Array], unknown: list[Array] | None = None, why: str = ""
    ) -> None:
        """Write loaded words to the registers.

        Args:
            waves: the waves.
            words: one array of words for each register.
            unknown: undefined bits of the words, if the memory tracks them.
            why: origin of undefined bits.
        """
        if unknown is not None and not any(np.where(waves.mask, word, 0).any() for word in unknown):
            unknown = None
        old = waves.vector[self.destination[0]][waves.at] if self.access.half else None
        for register, word in zip(self.destination, self.access.loaded(words, old), strict=True):
            waves.put(register, word)
        if unknown is None and waves.undefined.isdisjoint(self.destination):
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
        """Return the words to store, from all data registers or from some."""
        registers = self.data if data is None else data
        return self.access.stored([waves.vector[register][waves.at] for register in registers])

    def unknown(self, waves: Waves, data: Sequence[int] | None = None) -> list[Array | None]:
        """Return the undefined bits of the words to store."""
        found = [waves.undefined_bits(register) for register in (self.data if data is None else data)]
        if self.access.half == "h" and found[0] is not None:
            found[0] = found[0] >> np.uint32(16)
        if self.access.size < 4 and found[0] is not None:
            found[0] = found[0] & np.uint32((1 << (8 * self.access.size)) - 1)
        return found

    def require_known(self, waves: Waves) -> None:
        """Refuse to store undefined bits as a result.

        Raises:
            UninitialisedError: a stored number has undefined bits.
        """
        if waves.undefined.isdisjoint(self.data):
            return
        for register, bits in zip(self.data, self.unknown(waves), strict=True):
            if bits is None or not (bad := np.where(waves.mask, bits, 0)).any():
                continue
            wave, lane = np.argwhere(bad)[0]
            raise UninitialisedError(
                f"a stored number depends on v{register}, {waves.why(register)} "
                f"(wave {waves.selected()[wave]}, lane {lane})",
                *self.position,
            )

    def move_scratch(self, waves: Waves, offsets: Array) -> None:
        """Load from the scratch memory of the active lanes, or store to it.

        Raises:
            OutOfBoundsError: an offset beyond the kernel's scratch memory.
        """
        size, mask = self.access.size, waves.mask
        bad = mask & ((offsets < 0) | (offsets + size > waves.scratch_size))
        if bad.any():
            raise OutOfBoundsError(
                f"scratch memory is accessed at bytes {offsets[bad][0]} to {offsets[bad][0] + size - 1} "
                f"of {waves.scratch_size}",
                *self.position,
            )
        lanes = waves.selected()[:, None] * waves.lanes + np.arange(waves.lanes)
        idle = len(waves.scratch.octets) - GUARD_PLACE
        places = np.where(mask, lanes * waves.scratch_size + offsets, idle)
        if self.destination:
            unknown = waves.scratch_unknown.load(places, size)
            why = "loaded from scratch memory that nothing was stored to"
            self.put(waves, waves.scratch.load(places, size), unknown, why)
            return
        waves.scratch.store(places, size, self.words(waves), mask)
        bits = [NONE_UNKNOWN if word is None else word for word in self.unknown(waves)]
        waves.scratch_unknown.store(places, size, bits, mask)


class GlobalLoad(GlobalStep):
    """A load from global memory."""

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves."""
        places = waves.arrays.places(self.address(waves), self.access.size, waves.mask, "a load", self)
        self.put(waves, waves.arrays.load(places, self.access.size))
        self.count(waves)


class GlobalStore(GlobalStep):
    """A store to global memory."""

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves."""
        self.require_known(waves)
        size = self.access.size
        places = waves.arrays.places(self.address(waves), size, waves.mask, "a store", self)
        waves.arrays.store_once(places, size, waves.mask, self)
        waves.arrays.store(places, size, self.words(waves), waves.mask)
        self.count(waves)


class GlobalAtomic(GlobalStep):
    """An atomic on global memory, which may return the old number."""

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
        """Execute the instruction on the selected waves."""
        self.require_known(waves)
        places = waves.arrays.places(self.address(waves), self.access.size, waves.mask, "an atomic", self)
        values = typed_values(self.words(waves), self.dtype)
        old = apply(waves.arrays, places, self.dtype, self.function, values, waves.mask)
        if self.destination:
            self.put(waves, words_of(old))
        self.count(waves)


class ScratchStep(GlobalStep):
    """A load from the scratch memory of each lane, or a store to it."""

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves."""
        self.move_scratch(waves, self.address(waves).astype(np.uint32).astype(np.int64))
        self.count(waves)


class FlatStep(GlobalStep):
    """A load or store whose address selects global memory, LDS or scratch memory."""

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves."""
        addresses = self.address(waves)
        offsets = (addresses & np.uint64(0xFFFFFFFF)).astype(np.int64)
        upper = addresses >> np.uint64(32)
        active = waves.mask
        private = active & (upper == APERTURES["src_private_base"] >> 32)
        shared = active & (upper == APERTURES["src_shared_base"] >> 32)
        device = active & (upper >= BASE >> 32)
        for here, move, where in (
            (private, self.move_scratch, offsets),
            (shared, self.move_lds, offsets),
            (device, self.move_global, addresses),
        ):
            if here.any():
                with waves.masked(here):
                    move(waves, where)
        stray = active & ~(private | shared | device)
        if stray.any():
            raise OutOfBoundsError(
                f"a flat address is {int(addresses[stray][0]):#x}, in no memory", *self.position
            )
        self.count(waves)
        waves.waits.issue("lds", waves.at, self.destination, self)

    def move_lds(self, waves: Waves, offsets: Array) -> None:
        """Load from LDS or store to it."""
        size = self.access.size
        places = waves.lds.places(waves, offsets, size, self)
        flight = waves.waits.issue("lds", waves.at, (), self)
        waves.lds.record(waves, places, size, self, flight, not self.destination)
        if self.destination:
            unknown = waves.lds.unknown.load(places, size)
            self.put(waves, waves.lds.load(places, size), unknown, f"{UNWRITTEN} (line {self.line})")
        else:
            waves.lds.store(places, size, self.words(waves), waves.mask)
            bits = [NONE_UNKNOWN if word is None else word for word in self.unknown(waves)]
            waves.lds.unknown.store(places, size, bits, waves.mask)

    def move_global(self, waves: Waves, addresses: Array) -> None:
        """Load from the arrays or store to them."""
        places = waves.arrays.places(addresses, self.access.size, waves.mask, "a flat access", self)
        if self.destination:
            self.put(waves, waves.arrays.load(places, self.access.size))
        else:
            self.require_known(waves)
            waves.arrays.store_once(places, self.access.size, waves.mask, self)
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
        """Execute the instruction on the selected waves."""
        address = self.base(waves) + np.uint64(self.constant & 0xFFFFFFFFFFFFFFFF)
        for reader in self.offsets:
            address = address + reader(waves).view(np.int32).astype(np.int64).view(np.uint64)
        address = np.broadcast_to(address, (len(waves.selected()),)) & np.uint64(0xFFFFFFFFFFFFFFFC)
        mask = np.ones((len(address), 1), np.bool_)
        places = waves.arrays.places(address[:, None], self.access.size, mask, "a scalar load", self)
        for place, word in enumerate(waves.arrays.load(places, self.access.size)):
            waves.put_scalar(self.destination.index + place, word[:, 0])
        waves.waits.issue("smem", waves.at, self.destination.registers, self)


def typed_values(words: list[Array], dtype: str) -> list[Array]:
    """Return words as numbers of a type of one or two registers."""
    if np.dtype(dtype).itemsize == 4:
        return [np.ascontiguousarray(word).view(dtype) for word in words]
    pairs = zip(words[::2], words[1::2], strict=True)
    return [
        (low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))).view(dtype) for low, high in pairs
    ]


# ---------------------------------------------------------------- accesses through a buffer descriptor
#
# A load beyond the buffer gives 0, and a store beyond it has no effect.  A descriptor takes four scalar
# registers: 48 bits of address, a stride, which must be 0 here, the size in bytes, and a format, which
# these instructions ignore.


class BufferStep(GlobalStep):
    """A load through a descriptor, or a store.

    Args:
        instruction: the parsed instruction.
        vector: operand with each lane's offset, or ``off``.
        descriptor: four scalar registers.
        scalar: offset that all lanes share.
        access: width of one load or store of a lane.
        destination: registers that are loaded.
        data: registers that are stored.
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
        name, modifiers = instruction.mnemonic, instruction.modifiers
        if unknown := set(modifiers) - HINTS - {"offen"}:
            raise UnknownInstructionError(f"no meaning is known for {sorted(unknown)} of {name}")
        if (descriptor.bank, descriptor.count) != ("s", 4) or ("offen" in modifiers) != (vector.bank == "v"):
            raise UnknownInstructionError(f"this form of {name} is not known")
        super().__init__(instruction, Address(vector, None, modifiers), access, destination, data)
        parts = [ListingOperand("", "s", descriptor.index + place, 1) for place in range(4)]
        self.descriptor = [OperandReader(part, "u32", vector=True) for part in parts]
        self.scalar = OperandReader(scalar, "u32", vector=True)
        self.uniform = (*descriptor.registers, *self.scalar.registers)
        self.also_reads(*self.uniform)

    def run_tracked(self, waves: Waves) -> None:
        """Refuse an undefined address or descriptor, then execute the instruction."""
        waves.require_defined((*self.address.registers, *self.uniform), "an address", self)
        self.run(waves)

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves, one word of a lane at a time."""
        low, high, size, _ = (reader(waves) for reader in self.descriptor)
        if np.any((high >> np.uint32(16)) & np.uint32(0x3FFF)):
            raise UnknownInstructionError(
                "a buffer whose elements have a stride is not known", *self.position
            )
        base = low.astype(np.uint64) | ((high & np.uint32(0xFFFF)).astype(np.uint64) << np.uint64(32))
        shared = self.scalar(waves).astype(np.int64)
        offset = self.address(waves).astype(np.int64)
        inside = size.astype(np.int64) - shared
        addresses = base + (offset + shared).astype(np.uint64)
        self.require_known(waves)
        found = []
        each = min(self.access.size, 4)
        words = self.words(waves) if self.data else []
        what = "a store" if self.data else "a load"
        for number in range(self.access.registers):
            mask = waves.mask & (offset + 4 * number + each <= inside)
            places = waves.arrays.places(addresses + np.uint64(4 * number), each, mask, what, self)
            if self.data:
                waves.arrays.store_once(places, each, mask, self)
                waves.arrays.store(places, each, [words[number]], mask)
            else:
                found.append(np.where(mask, waves.arrays.load(places, each)[0], np.uint32(0)))
        if self.destination:
            self.put(waves, found)
        self.count(waves)
