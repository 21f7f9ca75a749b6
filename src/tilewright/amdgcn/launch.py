"""Execute a grid of a kernel: set up its arguments and registers, and advance its waves."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.amdgcn.decode import BarrierStep, Jump, decode, family_of
from tilewright.amdgcn.faults import (
    DeadlockError,
    ListingError,
    ListingParseError,
    MissedBarrierError,
    OutOfBoundsError,
)
from tilewright.amdgcn.machine_rules import LDS_BYTES
from tilewright.amdgcn.memory import GlobalStep
from tilewright.amdgcn.operands import EXEC, SGPR
from tilewright.amdgcn.space import BASE, Arrays, Lds, Space, Watch, unknown_space
from tilewright.amdgcn.state import Array, InstructionSet, Waves
from tilewright.amdgcn.steps import DecodedStep
from tilewright.amdgcn.text import KernelArgument, KernelListing, Listing, read_listing
from tilewright.argument_checks import is_whole

# ---------------------------------------------------------------- choice of the waves that advance
#
# The waves at the lowest instruction advance together, so that waves that diverged meet again.


RUNNING, WAITING, DONE = range(3)
FAIR = 64
"""Every 64th turn advances the waves that have waited longest, so that waves in a waiting loop starve no
others."""


class WaveRunner:
    """Executes the waves of some blocks.

    Args:
        waves: the waves, before their first instruction.
        steps: decoded instructions of the kernel.
        block_of: block of each wave.
        all_meet: refuse a barrier at which a wave waits after another wave of its block has ended.
    """

    def __init__(
        self, waves: Waves, steps: list[DecodedStep], block_of: Array, *, all_meet: bool = False
    ) -> None:
        self.waves, self.steps, self.block_of, self.all_meet = waves, steps, block_of, all_meet
        self.at = np.zeros(waves.count, np.int64)
        self.state = np.zeros(waves.count, np.int64)
        self.turn = np.zeros(waves.count, np.int64)
        self.counts = [0] * len(steps)

    def run(self, most: int) -> int:
        """Execute all waves to their end.

        Args:
            most: limit of the instructions of all waves.

        Returns:
            The rest of this limit.

        Raises:
            DeadlockError: no wave can go on, or too many instructions.
        """
        turn, left = 0, most
        while True:
            running = np.flatnonzero(self.state == RUNNING)
            if not len(running):
                if (self.state == DONE).all():
                    return left
                raise DeadlockError("waves wait at a barrier that others of their block never reach")
            turn += 1
            places = self.at[running]
            lowest = int(places.min())
            if turn % FAIR == 0:
                lowest = int(places[np.argmin(self.turn[running])])
            chosen = running[places == lowest]
            others = places[places > lowest]
            until = int(others.min()) if len(others) else len(self.steps)
            self.turn[chosen] = turn
            left -= self._go(chosen, lowest, until) * len(chosen)
            if left < 0:
                raise DeadlockError(
                    f"{most} instructions were executed and the kernel has not ended",
                    *self.steps[lowest].position,
                )

    def _go(self, chosen: Array, place: int, until: int) -> int:
        """Execute waves until they branch, wait, end or meet others; return the number of instructions."""
        waves, steps, counts = self.waves, self.steps, self.counts
        waves.select(chosen)
        first, size = place, len(chosen)
        while True:
            if place >= len(steps):
                raise DeadlockError(
                    f"the kernel runs beyond its end, after line {steps[-1].line}", *steps[-1].position
                )
            step = steps[place]
            counts[place] += size
            if not waves.waits.pending.keys().isdisjoint(step.touched):
                waves.waits.check(step, waves.at)
            if step.ends:
                break
            if waves.undefined.isdisjoint(step.touched):
                step.run(waves)
            else:
                step.run_tracked(waves)
            place += 1
            if place == until:
                self.at[chosen] = place
                return place - first
        self._end(chosen, place, step)
        return place - first + 1

    def _end(self, chosen: Array, place: int, step: DecodedStep) -> None:
        self.at[chosen] = place + 1
        if isinstance(step, Jump):
            step.check(self.waves)
            self.at[chosen[step.jumps(self.waves)]] = step.target
            return
        if isinstance(step, BarrierStep):
            self.waves.lds.arrive(self.waves, self.waves.waits.on_way, step)
            self.state[chosen] = WAITING
        else:
            self.state[chosen] = DONE
        blocks = int(self.block_of.max()) + 1
        busy = np.bincount(self.block_of[self.state == RUNNING], minlength=blocks)
        free = (self.state == WAITING) & (busy[self.block_of] == 0)
        if self.all_meet and free.any() and (self.state == DONE).any():
            # Other waves of the block have ended and can no longer arrive.
            ended = np.isin(self.block_of, self.block_of[free]) & (self.state == DONE)
            if ended.any():
                among = np.isin(self.block_of, self.block_of[ended])
                first = self.steps[int(self.at[free & among].min()) - 1]
                raise MissedBarrierError(
                    f"{int((free & among).sum())} waves wait at a barrier that {int(ended.sum())} others of "
                    "their block ended without",
                    *first.position,
                )
        self.state[free] = RUNNING


# ---------------------------------------------------------------- launch


Dimensions = tuple[int, int, int]
PACKET = 64
"""Bytes of the dispatch packet, which lies before the arguments."""
MOST_THREADS = 1024
"""Largest number of threads of a block."""


@dataclass(slots=True)
class ListingExecution:
    """The record of an execution.

    Args:
        waves: number of waves.
        mnemonics: number of executions of each mnemonic, by all waves.
        lines: number of executions of each line of the listing, by all waves.
    """

    waves: int = 0
    mnemonics: Counter[str] = field(default_factory=Counter)
    lines: Counter[int] = field(default_factory=Counter)


def execute(
    listing: Listing | str,
    arguments: Sequence[Any],
    grid: Sequence[int],
    block: Sequence[int],
    *,
    kernel: str = "",
    lds_bytes: int = 0,
    together: int = 64,
    most: int = 20_000_000,
    stores_once: bool = False,
    all_meet: bool = False,
    watch: Watch | None = None,
) -> ListingExecution:
    """Execute a grid of a kernel from its listing, and store its results in the arrays.

    Blocks are executed in the order of their numbers; about `together` waves advance at once.  Instructions
    of a wave, loads included, take effect one by one.  The waits of the listing are checked separately.

    Args:
        listing: text of a compiler's listing for gfx11 or gfx9.4, or the result of `read_listing`.
        arguments: an array, a NumPy number or bytes for each argument of the kernel that the runtime does
            not pass itself.
        grid: blocks along x, y and z.
        block: threads of a block along x, y and z.
        kernel: name of the kernel, if the listing has several.
        lds_bytes: dynamic LDS of the launch, in bytes.
        together: number of waves that advance at once.
        most: limit of executed instructions, over all waves.
        stores_once: refuse a second plain store to the same byte of an array.
        all_meet: refuse a barrier at which a wave waits after another wave of its block has ended; hardware
            does not count ended waves.
        watch: observer of the accesses to LDS.  Its arguments: the line, the bytes that a lane accesses, the
            offsets of all lanes (-1 for inactive lanes), and whether they store.

    Returns:
        Number of executions of each instruction.

    Raises:
        UnknownInstructionError: an instruction is not known.
        MissingWaitError: a register is used before a wait for the load into it.
        LdsRaceError: two waves access the same bytes of LDS with no barrier between.
        OutOfBoundsError: an access beyond the arrays, LDS or scratch memory.
        StoredTwiceError: two lanes store to the same bytes, under `stores_once`.
        MissedBarrierError: a wave waits at a barrier after others have ended, under `all_meet`.
        UninitialisedError: a result, an address or a branch depends on bits that were never written.
        WaitStateError: an instruction follows another one sooner than hardware permits.
        RegisterError: a register beyond the declared ones, or a tuple that begins at an odd register.
        MisalignedError: 16 bytes of LDS at an address that is no multiple of 16.
        UnreplicatedLanesError: the halves of a wave hold different WMMA operands, or a lane is inactive.
        DeadlockError: waves wait for each other, or `most` was reached.
        ListingError: the arguments do not fit the kernel.

    Example:
        >>> text = '''
        ... .amdgcn_target "amdgcn-amd-amdhsa--gfx942"
        ... seven:
        ...   s_load_dwordx2 s[2:3], s[0:1], 0x0
        ...   v_lshlrev_b32_e32 v0, 2, v0
        ...   v_mov_b32_e32 v1, 7
        ...   s_waitcnt lgkmcnt(0)
        ...   global_store_dword v0, v1, s[2:3]
        ...   s_endpgm
        ... .amdhsa_kernel seven
        ...   .amdhsa_user_sgpr_count 2
        ...   .amdhsa_user_sgpr_kernarg_segment_ptr 1
        ... .end_amdhsa_kernel
        ... .amdgpu_metadata
        ... amdhsa.kernels:
        ...   - .args:
        ...       - .offset: 0
        ...         .size: 8
        ...         .value_kind: global_buffer
        ...     .name: seven
        ... .end_amdgpu_metadata
        ... '''
        >>> out = np.zeros(64, np.int32)
        >>> execute(text, [out], (1,), (64,)).mnemonics["v_mov_b32_e32"], int(out.sum())
        (1, 448)
    """
    read = read_listing(listing) if isinstance(listing, str) else listing
    family, of = family_of(read.arch), read.kernel(kernel)
    if not of.instructions:
        raise ListingParseError(f"kernel {of.name!r} has no instructions")
    blocks_of, threads_of = _three(grid), _three(block)
    if math.prod(threads_of) > MOST_THREADS:
        raise ListingError(
            f"a block has at most {MOST_THREADS} threads, not {' x '.join(map(str, threads_of))}"
        )
    if any(count * size >= 1 << 32 for count, size in zip(blocks_of, threads_of, strict=True)):
        raise ListingError(
            f"a grid of {blocks_of} blocks of {threads_of} threads has 2**32 threads or more in a dimension"
        )
    launch = _Launch(of, family, decode(of, family), blocks_of, threads_of, arguments, lds_bytes)
    if stores_once:
        launch.arrays.stored = np.zeros(len(launch.arrays.octets), np.bool_)
    done = ListingExecution()
    waves_of_block = -(-int(np.prod(launch.block)) // family.lanes)
    at_once = max(together // waves_of_block, 1)
    blocks = int(np.prod(launch.grid))
    left = most
    with np.errstate(all="ignore"):
        for first in range(0, blocks, at_once):
            engine = launch.engine(range(first, min(first + at_once, blocks)), waves_of_block, all_meet)
            engine.waves.lds.watch = watch
            left = engine.run(left)
            done.waves += engine.waves.count
            for step, count in zip(launch.steps, engine.counts, strict=True):
                if count:
                    done.mnemonics[step.instruction.mnemonic] += count
                    done.lines[step.line] += count
    launch.arrays.take_back()
    return done


def _three(extents: Sequence[int]) -> Dimensions:
    x, y, z = (*extents, 1, 1, 1)[:3]
    if not all(map(is_whole, (x, y, z))) or min(x, y, z) < 1 or len(extents) > 3:
        raise ListingError(f"a grid or a block has one to three extents of at least 1, not {tuple(extents)}")
    return int(x), int(y), int(z)


class _Launch:
    """One launch: its device memory, and the initial state of its waves."""

    def __init__(
        self,
        kernel: KernelListing,
        family: InstructionSet,
        steps: list[DecodedStep],
        grid: Dimensions,
        block: Dimensions,
        arguments: Sequence[Any],
        lds_bytes: int,
    ) -> None:
        self.kernel, self.family, self.steps = kernel, family, steps
        self.grid, self.block = grid, block
        self.lds_bytes = kernel.directives.get("group_segment_fixed_size", 0) + lds_bytes
        most = LDS_BYTES.get(family.arch, 64 * 1024)
        if self.lds_bytes > most:
            rule = f"a block on {family.arch} has {most}"
            text = f"kernel {kernel.name!r} asks for {self.lds_bytes} bytes of LDS; {rule}"
            raise OutOfBoundsError(text)
        self.scratch_bytes = kernel.directives.get("private_segment_fixed_size", 0)
        given = [argument for argument in kernel.arguments if not argument.kind.startswith("hidden_")]
        if len(given) != len(arguments):
            raise ListingError(f"kernel {kernel.name!r} takes {len(given)} arguments, not {len(arguments)}")
        arrays = {
            _name(place, argument): value
            for place, (argument, value) in enumerate(zip(given, arguments, strict=True))
            if argument.kind == "global_buffer" and value is not None
        }
        size = max([argument.offset + argument.size for argument in kernel.arguments], default=0)
        more = (max(kernel.directives.get("kernarg_size", 0), size) // 64 + 1) * 64 + PACKET
        self.arrays = Arrays(arrays, more, bytes(kernel.constants.octets))
        self.arguments = self.arrays.more + PACKET
        extents = [count * size for count, size in zip(grid, block, strict=True)]
        packet = struct.pack("<HHHHHHIII", 0, 0, *block, 0, *extents)
        self.arrays.octets[self.arrays.more : self.arrays.more + len(packet)] = list(packet)
        for place, (argument, value) in enumerate(zip(given, arguments, strict=True)):
            self._put(argument, self._spelled(place, argument, value))
        hidden = {"hidden_grid_dims": 3}
        for number, letter in enumerate("xyz"):
            hidden[f"hidden_block_count_{letter}"] = grid[number]
            hidden[f"hidden_group_size_{letter}"] = block[number]
        for argument in kernel.arguments:
            if argument.kind.startswith("hidden_"):
                value = hidden.get(argument.kind, 0)
                if value >= 1 << (8 * argument.size):
                    raise ListingError(f"{argument.kind} is {value}, which {argument.size} bytes do not hold")
                self._put(argument, value.to_bytes(argument.size, "little"))
        sizes = [
            step.access.size
            for step in steps
            if isinstance(step, GlobalStep) and step.instruction.mnemonic.startswith(("ds_", "flat_"))
        ]
        self.granule = min([4, *sizes])  # the narrowest access to LDS

    def _put(self, argument: KernelArgument, octets: bytes) -> None:
        first = self.arguments + argument.offset
        self.arrays.octets[first : first + argument.size] = np.frombuffer(octets, np.uint8)

    def _spelled(self, place: int, argument: KernelArgument, value: Any) -> bytes:
        name = _name(place, argument)
        if argument.kind == "global_buffer":
            return (0 if value is None else self.arrays.address(name)).to_bytes(8, "little")
        if isinstance(value, bytes | bytearray):
            octets = bytes(value)
        elif isinstance(value, np.generic | np.ndarray):
            octets = value.tobytes()
        else:
            # The metadata has the size of an argument, but not its dtype.
            examples = {
                2: "np.float16(2) or np.int16(2)",
                4: "np.float32(2) or np.int32(2)",
                8: "np.float64(2) or np.int64(2)",
            }
            raise ListingError(
                f"{name} takes a number of {argument.size} bytes, and the listing does not say whether an "
                f"integer or a float; {value!r} of type {type(value).__name__} is either; "
                f"nearest: {examples.get(argument.size, 'bytes')}"
            )
        if len(octets) != argument.size:
            raise ListingError(f"{name} takes {argument.size} bytes, not {len(octets)}")
        return octets

    def engine(self, blocks: range, waves_of_block: int, all_meet: bool) -> WaveRunner:
        """Return the waves of some blocks before their first instruction."""
        used = {register for step in self.steps for register in step.touched if register < SGPR}
        waves = Waves(self.family, len(blocks) * waves_of_block, sorted(used | {0}))
        block_of = np.repeat(np.arange(len(blocks)), waves_of_block)
        waves.arrays = self.arrays
        waves.lds = Lds(self.lds_bytes, block_of, self.granule)
        waves.scratch_size = self.scratch_bytes
        size = waves.count * waves.lanes * self.scratch_bytes
        waves.scratch, waves.scratch_unknown = Space(size), unknown_space(size)
        self._threads(waves, np.tile(np.arange(waves_of_block), len(blocks)))
        self._scalars(waves, np.array(blocks)[block_of])
        return WaveRunner(waves, self.steps, block_of, all_meet=all_meet)

    def _threads(self, waves: Waves, wave_in_block: Array) -> None:
        x, y, _ = self.block
        thread = wave_in_block[:, None] * waves.lanes + np.arange(waves.lanes)
        active = thread < int(np.prod(self.block))
        packed = thread % x | (thread // x % y << 10) | (thread // (x * y) << 20)
        waves.vector[0][...] = packed.astype(np.uint32)
        waves.undefined.discard(0)
        words = np.packbits(active, axis=-1, bitorder="little").view(np.uint32)
        waves.scalar[EXEC : EXEC + waves.words] = words.T
        for register in range(EXEC, EXEC + 2):
            waves.undefined.discard(SGPR + register)
        waves.select(np.arange(waves.count))

    def _scalars(self, waves: Waves, number: Array) -> None:
        says = self.kernel.directives
        places = [
            number % self.grid[0],
            number // self.grid[0] % self.grid[1],
            number // (self.grid[0] * self.grid[1]),
        ]
        values: list[Any] = []
        for name, count, address in (
            ("private_segment_buffer", 4, None),
            ("dispatch_ptr", 2, BASE + self.arrays.more),
            ("queue_ptr", 2, None),
            ("kernarg_segment_ptr", 2, BASE + self.arguments),
            ("dispatch_id", 2, None),
            ("flat_scratch_init", 2, None),
            ("private_segment_size", 1, None),
        ):
            if says.get(f"user_sgpr_{name}", 0):
                known = [] if address is None else [address & 0xFFFFFFFF, address >> 32]
                values += known or [None] * count
        length = says.get("user_sgpr_kernarg_preload_length", 0)
        first = says.get("user_sgpr_kernarg_preload_offset", 0)
        words = self.arrays.octets[self.arguments : self.arguments + 4 * (first + length)].view(np.uint32)
        values += [int(word) for word in words[first:]]
        values += [None] * (says.get("user_sgpr_count", len(values)) - len(values))
        for place, letter in zip(places, "xyz", strict=True):
            if says.get(f"system_sgpr_workgroup_id_{letter}", 1 if letter == "x" else 0):
                values.append(place)
        for register, value in enumerate(values):
            if value is not None:
                waves.scalar[register] = np.asarray(value).astype(np.uint32)
                waves.undefined.discard(SGPR + register)


def _name(place: int, argument: KernelArgument) -> str:
    return f"argument {place}" + (f" ({argument.name})" if argument.name else "")
