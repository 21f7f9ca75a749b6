"""Loads and stores through a buffer's descriptor: what lies beyond its bytes reads as 0, and is not stored.

A descriptor is four scalar registers: 48 bits of address, a stride, which must be 0 here, the number of
bytes, and a format, which these instructions do not look at.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.amdgcn.access import Access
from tilewright.amdgcn.faults import UnknownInstructionError
from tilewright.amdgcn.memory import Address, GlobalStep
from tilewright.amdgcn.operands import Operand
from tilewright.amdgcn.readers import Reader
from tilewright.amdgcn.state import Array, Waves
from tilewright.amdgcn.text import Instruction


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
        vector: Operand,
        descriptor: Operand,
        scalar: Operand,
        access: Access,
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
        parts = [Operand("", "s", descriptor.index + place, 1) for place in range(4)]
        self.descriptor = [Reader(part, "u32", vector=True) for part in parts]
        self.scalar = Reader(scalar, "u32", vector=True)
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
