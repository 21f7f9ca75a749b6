"""Instructions that move numbers between the lanes of a wave."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tilewright.amdgcn.faults import UnknownInstructionError
from tilewright.amdgcn.operands import ListingOperand
from tilewright.amdgcn.readers import OperandReader
from tilewright.amdgcn.state import Array, Waves
from tilewright.amdgcn.steps import Compute1, DecodedStep
from tilewright.amdgcn.text import Instruction

DPP = (
    *(
        "quad_perm",
        "row_shl",
        "row_shr",
        "row_ror",
        "row_mirror",
        "row_half_mirror",
        "row_share",
        "row_xmask",
    ),
    *("row_newbcast", "row_bcast", "wave_shl", "wave_shr", "wave_ror", "wave_rol", "dpp8"),
)
"""Modifiers that select the lane from which an operand is read."""


def sources(modifiers: dict[str, str], lanes: int) -> tuple[Array, Array]:
    """Return the lane that each lane reads by a DPP modifier, and whether it exists.

    Example:
        >>> which, there = sources({"row_shr": "1"}, 32)
        >>> which[:3].tolist(), there[:3].tolist()
        ([0, 0, 1], [False, True, True])
    """
    lane = np.arange(lanes)
    row, place = lane & ~15, lane & 15
    for name in DPP:
        if name not in modifiers:
            continue
        value = modifiers[name]
        if name in ("quad_perm", "dpp8"):
            picks = np.array([int(word) for word in value.strip("[]").split(",")])
            return (lane & ~(len(picks) - 1)) + picks[lane & (len(picks) - 1)], np.ones(lanes, np.bool_)
        by = int(value)
        to = {
            "row_shl": place + by,
            "row_shr": place - by,
            "row_ror": (place - by) & 15,
            "row_mirror": 15 - place,
            "row_half_mirror": place ^ 7,
            "row_share": np.full(lanes, by),
            "row_newbcast": np.full(lanes, by),
            "row_xmask": place ^ by,
        }.get(name)
        if name == "row_bcast":
            which = row - 1 if by == 15 else (lane & ~31) - 1
            return np.maximum(which, 0), which >= 0
        if to is None:
            break
        there = (to >= 0) & (to < 16)
        return np.where(there, row + to, 0), there
    raise UnknownInstructionError(f"no meaning is known for the lanes of {modifiers}")


class MovedReader(OperandReader):
    """Reads an operand from the registers of other lanes.

    Args:
        of: the reader of the operand in a lane's own registers.
        which: the lane that each lane reads.
        there: whether that lane exists.
        inactive: whether inactive lanes are read, too.
    """

    def __init__(self, of: OperandReader, which: Array, there: Array, inactive: bool) -> None:
        super().__init__(of.item, of.kind, of.vector, of.high, of.select)
        self.which, self.there, self.inactive = which, there, inactive

    def readable(self, waves: Waves) -> Array:
        """Return the lanes whose source exists and can be read."""
        return np.asarray((waves.mask[:, self.which] | self.inactive) & self.there)

    def __call__(self, waves: Waves) -> Array:
        """The numbers of the operand in the selected waves."""
        found = np.broadcast_to(super().__call__(waves), waves.mask.shape)[:, self.which]
        return np.where(self.readable(waves), found, found.dtype.type(0))

    def undefined(self, waves: Waves) -> Array | None:
        """Return the undefined bits of the numbers."""
        found = super().undefined(waves)
        if found is None:
            return None
        return np.where(self.readable(waves), found[:, self.which], found.dtype.type(0))


class Dpp(Compute1):
    """An instruction that reads its first operand from other lanes.

    If the other lane is missing, or inactive without ``fi``, a lane keeps its result, or reads 0 with
    ``bound_ctrl``.
    """

    def __init__(self, of: Compute1, modifiers: dict[str, str], lanes: int) -> None:
        which, there = sources(modifiers, lanes)
        first = MovedReader(of.readers[0], which, there, modifiers.get("fi", "0") == "1")
        super().__init__(of.instruction, [first, *of.readers[1:]], of.writers, of.compute, of.track)
        self.first, self.bound = first, "bound_ctrl" in modifiers
        lane = np.arange(lanes)
        rows, banks = int(modifiers.get("row_mask", "0xf"), 0), int(modifiers.get("bank_mask", "0xf"), 0)
        self.enabled = ((rows >> (lane // 16)) & 1 == 1) & ((banks >> (lane % 16 // 4)) & 1 == 1)

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves."""
        self._act(waves, tracks=False)

    def run_tracked(self, waves: Waves) -> None:
        """Execute the instruction, and track undefined bits of its results."""
        self._act(waves, tracks=True)

    def _act(self, waves: Waves, tracks: bool) -> None:
        results = self.results(waves)
        undefined = self.undefined_results(waves, results) if tracks else []
        why = self.why(waves) if tracks else ""
        with waves.masked(waves.mask & self.enabled & (self.bound | self.first.readable(waves))):
            self.write(waves, results)
            for writer, bits in zip(self.writers, undefined, strict=False):
                writer.put_undefined(waves, bits, why)


class ReadLane(DecodedStep):
    """Copies a number to a scalar register, from a given lane or from the first active one."""

    def __init__(
        self,
        instruction: Instruction,
        to: ListingOperand,
        source: ListingOperand,
        lane: ListingOperand | None,
    ) -> None:
        self.to, self.source = to, OperandReader(source, "u32", vector=True)
        self.lane = None if lane is None else OperandReader(lane, "u32", vector=False)
        reads = (*self.source.registers, *(() if self.lane is None else self.lane.registers))
        super().__init__(instruction, reads, to.registers)

    def _pick(self, waves: Waves, value: Array) -> Array:
        if self.lane is None:
            lane = np.argmax(waves.mask, 1)
        else:
            lane = self.lane(waves).astype(np.int64) & (waves.lanes - 1)
        whole = np.broadcast_to(value, waves.mask.shape)
        return np.asarray(whole[np.arange(len(whole)), lane])

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves."""
        waves.put_scalar(self.to.index, self._pick(waves, self.source(waves)))

    def run_tracked(self, waves: Waves) -> None:
        """Execute the instruction, and track undefined bits of its results."""
        if self.lane is not None:
            waves.require_defined(self.lane.registers, "the number of a lane", self)
        bits = self.source.undefined(waves)
        picked = None if bits is None else self._pick(waves, bits)
        why = "" if bits is None else waves.why(self.source.registers[0])
        self.run(waves)
        waves.put_undefined(self.to.registers[0], picked, why)


class WriteLane(DecodedStep):
    """Copies a scalar to one lane of a vector register, active or not."""

    def __init__(
        self, instruction: Instruction, to: ListingOperand, source: ListingOperand, lane: ListingOperand
    ) -> None:
        self.to = to
        self.source = OperandReader(source, "u32", vector=False)
        self.lane = OperandReader(lane, "u32", vector=False)
        super().__init__(instruction, (*self.source.registers, *self.lane.registers), to.registers)

    def _at(self, waves: Waves) -> tuple[Array, Array]:
        picked = self.lane(waves).astype(np.int64) & (waves.lanes - 1)
        return waves.selected(), np.broadcast_to(picked, (len(waves.mask),))

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves."""
        waves.vector[self.to.index][self._at(waves)] = self.source(waves)

    def run_tracked(self, waves: Waves) -> None:
        """Execute the instruction, and track undefined bits of its results."""
        waves.require_defined(self.lane.registers, "the number of a lane", self)
        bits = self.source.undefined(waves)
        at = self._at(waves)
        self.run(waves)
        with waves.masked(np.arange(waves.lanes) == at[1][:, None]):
            spread = None if bits is None else np.broadcast_to(bits[:, None], waves.mask.shape)
            waves.put_undefined(self.to.registers[0], spread, self.text)


class Exchange(DecodedStep):
    """Moves numbers between lanes through the LDS unit: ``ds_bpermute``, ``ds_permute``, ``ds_swizzle``."""

    def __init__(self, instruction: Instruction, form: str) -> None:
        to, *operands = instruction.operands
        self.form, self.to = form, to
        self.readers = [OperandReader(item, "u32", vector=True) for item in operands]
        self.offset = swizzle_bits(instruction.modifiers.get("offset", "0"))
        super().__init__(instruction, [r for reader in self.readers for r in reader.registers], to.registers)
        self.loads = ("lds", tuple(r for r in self.writes if r not in self.reads))

    def _moved(self, waves: Waves, values: Array, lanes: Array | None) -> Array:
        count = waves.lanes
        values = np.broadcast_to(values, waves.mask.shape)
        values = np.where(waves.mask, values, values.dtype.type(0))
        rows = np.arange(len(values))[:, None]
        if self.form == "swizzle":
            return np.asarray(values[:, swizzled(self.offset, count)])
        assert lanes is not None
        which = ((np.broadcast_to(lanes, values.shape).astype(np.int64) + self.offset) >> 2) & (count - 1)
        if self.form == "bpermute":
            return np.asarray(values[rows, which])
        pushed = np.zeros_like(values)
        for lane in range(count):
            active = np.flatnonzero(waves.mask[:, lane])
            pushed[active, which[active, lane]] = values[active, lane]
        return pushed

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves."""
        values = [reader(waves) for reader in self.readers]
        waves.put(self.to.index, self._moved(waves, values[-1], values[0] if len(values) > 1 else None))
        waves.waits.issue("lds", waves.at, self.writes, self)

    def run_tracked(self, waves: Waves) -> None:
        """Execute the instruction, and track undefined bits of its results."""
        lanes = None
        if len(self.readers) > 1:
            waves.require_defined(self.readers[0].registers, "the number of a lane", self)
            lanes = self.readers[0](waves)
        bits = self.readers[-1].undefined(waves)
        moved = None if bits is None else self._moved(waves, bits, lanes)
        why = "" if bits is None else waves.why(self.readers[-1].registers[0])
        self.run(waves)
        waves.put_undefined(self.to.registers[0], moved, why)


def swizzle_bits(spelled: str) -> int:
    """Return the 16 bits of a swizzle's offset, from a number or a form like ``swizzle(SWAP,…)``."""
    if not spelled.startswith("swizzle"):
        return int(spelled, 0)
    words = [word.strip().strip("\"'") for word in spelled[len("swizzle(") : -1].split(",")]
    if words[0] == "QUAD_PERM":
        return 0x8000 | sum(int(word) << (2 * i) for i, word in enumerate(words[1:]))
    if words[0] == "BITMASK_PERM":
        keep, set_to, flip = 0, 0, 0
        for place, letter in enumerate(reversed(words[1])):
            keep |= (letter in "pi") << place
            set_to |= (letter == "1") << place
            flip |= (letter == "i") << place
        return keep | (set_to << 5) | (flip << 10)
    if words[0] in ("SWAP", "REVERSE"):
        size = int(words[1])
        return 0x1F | ((size if words[0] == "SWAP" else size - 1) << 10)
    if words[0] == "BROADCAST":
        return (0x1F & ~(int(words[1]) - 1)) | (int(words[2]) << 5)
    raise UnknownInstructionError(f"no meaning is known for {spelled}")


def swizzled(bits: int, lanes: int) -> Array:
    """Return the lane that each lane reads by a swizzle, among its 4 or its 32 lanes."""
    lane = np.arange(lanes)
    if bits & 0x8000:
        return (lane & ~3) | ((bits >> (2 * (lane & 3))) & 3)
    within = (((lane & 31) & (bits & 31)) | ((bits >> 5) & 31)) ^ ((bits >> 10) & 31)
    return (lane & ~31) | within


def counted(lanes: int, upper: bool) -> Any:
    """``v_mbcnt``: count the bits of a mask that belong to earlier lanes, and add a number.

    The mask has a bit for each lane from 0 to 31, or from 32 on (`upper`).
    """
    earlier = [((1 << lane) - 1) >> (32 if upper else 0) & 0xFFFFFFFF for lane in range(lanes)]
    below = np.array([earlier], np.uint32)
    return lambda a, b: np.bitwise_count(a & below).astype(np.uint32) + b


class Permute16(DecodedStep):
    """Lanes read another lane of their row, or of the other row; 4 bits of a pair of scalars select it.

    ``op_sel:[1,0]`` reads inactive lanes, too; with ``op_sel:[0,1]`` a lane whose source is inactive reads 0,
    otherwise it keeps its result.
    """

    def __init__(self, instruction: Instruction, other: bool) -> None:
        to, source, low, high = instruction.operands[:4]
        self.to, self.source, self.other = to, OperandReader(source, "u32", vector=True), other
        self.picks = [OperandReader(low, "u32", vector=False), OperandReader(high, "u32", vector=False)]
        reads = [*self.source.registers, *(r for pick in self.picks for r in pick.registers)]
        super().__init__(instruction, reads, to.registers)
        flags = [*re.findall(r"[01]", instruction.modifiers.get("op_sel", "")), "0", "0"]
        self.inactive, self.bound = flags[0] == "1", flags[1] == "1"

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves."""
        self._act(waves, tracks=False)

    def run_tracked(self, waves: Waves) -> None:
        """Execute the instruction, and track undefined bits of its results."""
        for pick in self.picks:
            waves.require_defined(pick.registers, "the number of a lane", self)
        self._act(waves, tracks=True)

    def _act(self, waves: Waves, tracks: bool) -> None:
        low, high = (
            np.broadcast_to(pick(waves), (len(waves.mask),)).astype(np.uint64) for pick in self.picks
        )
        both = low | (high << np.uint64(32))
        lane = np.arange(waves.lanes)
        pick = (both[:, None] >> (np.uint64(4) * (lane & 15).astype(np.uint64))) & np.uint64(15)
        which = ((lane & ~15) ^ (16 if self.other else 0)) + pick.astype(np.int64)
        rows = np.arange(len(which))[:, None]
        readable = waves.mask[rows, which] | self.inactive

        def moved(numbers: Array) -> Array:
            found = np.broadcast_to(numbers, waves.mask.shape)[rows, which]
            return np.where(readable, found, np.uint32(0))

        value, bits = moved(self.source(waves)), self.source.undefined(waves) if tracks else None
        undefined = None if bits is None else moved(bits)
        why = "" if bits is None else waves.why(self.source.registers[0])
        with waves.masked(waves.mask & (self.bound | readable)):
            waves.put(self.to.index, value)
            if tracks:
                waves.put_undefined(self.to.registers[0], undefined, why)
