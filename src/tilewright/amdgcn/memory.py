"""Loads, stores and atomics of global and scratch memory, and flat ones, and scalar loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.amdgcn.access import Access
from tilewright.amdgcn.atomics import apply
from tilewright.amdgcn.faults import OutOfBoundsError, UninitialisedError
from tilewright.amdgcn.operands import APERTURES, Operand
from tilewright.amdgcn.readers import UNSIGNED, Reader
from tilewright.amdgcn.space import BASE
from tilewright.amdgcn.state import Array, Waves
from tilewright.amdgcn.steps import Step
from tilewright.amdgcn.text import Instruction

GUARD_PLACE = 64


class Address:
    """The addresses of lanes: of a vector register or none, a scalar one or none, and a constant.

    Args:
        vector: the operand that differs between lanes, or ``off``.
        scalar: the operand that does not, or ``off``.
        modifiers: of the instruction.
    """

    def __init__(self, vector: Operand, scalar: Operand | None, modifiers: dict[str, str]) -> None:
        self.offset = int(modifiers.get("offset", "0"), 0)
        self.readers = []
        for item in (vector, scalar):
            if item is not None and item.bank not in ("off", "null"):
                self.readers.append(Reader(item, "u64" if item.count > 1 else "u32", vector=True))
        self.registers = tuple(register for reader in self.readers for register in reader.registers)

    def __call__(self, waves: Waves) -> Array:
        """Addresses of the lanes of the selected waves."""
        total: Any = np.full((1, 1), self.offset & 0xFFFFFFFFFFFFFFFF, np.uint64)
        for reader in self.readers:
            total = total + reader(waves).astype(np.uint64)
        return np.broadcast_to(total, waves.mask.shape)


class GlobalStep(Step):
    """What loads and stores of global memory share.

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
        access: Access,
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
        """Which counter it counts in."""
        return "vs" if not self.destination and waves.family.counts_stores_apart else "vm"

    def count(self, waves: Waves) -> None:
        """Counts it among what is on its way."""
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
        """Which bits of what is stored are undefined."""
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
        super().__init__(instruction, address, Access(np.dtype(dtype).itemsize), destination, data)
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


class ScalarLoad(Step):
    """A load into scalar registers."""

    def __init__(self, instruction: Instruction, access: Access) -> None:
        destination, base, *offsets = instruction.operands
        self.base = Reader(base, "u64", vector=False)
        self.offsets = [Reader(item, "u32", vector=False) for item in offsets]
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
