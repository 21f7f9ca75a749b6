"""The CPU backend: compiles C++ text with the machine's compiler and runs blocks on threads."""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from tilewright.errors import LaunchError, Violation
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Parameter
from tilewright.runtime.binding import Binding, NumberWriter, check_no_stream
from tilewright.runtime.cache import Cache, key
from tilewright.runtime.environment import settings
from tilewright.runtime.executable import ArgumentLayout, Executable, argument_layout
from tilewright.runtime.libraries import Library
from tilewright.runtime.native import compile_library, host_arch, processor_name, toolchain_id
from tilewright.runtime.shortcut_table import InlineLaunch
from tilewright.runtime.workers import POOL_SOURCE, Launcher, Scratch
from tilewright.targets import cpu
from tilewright.targets.cpu.legality import waits
from tilewright.targets.rules import EmittedText
from tilewright.targets.target import CPU


class CpuBackend:
    """Compiles for the machine it runs on."""

    name = CPU.name
    passes = cpu.PASSES

    def arch_name(self) -> str:
        """Return the machine's architecture."""
        return host_arch()

    def processors(self) -> int:
        """Return how many blocks run in parallel."""
        return int(settings().threads)

    def device_name(self) -> str:
        """Return the processor's name."""
        return processor_name()

    def violations(self, kernel: Kernel, arch: str | None) -> list[Violation]:
        """Return the target's own rules that a kernel breaks."""
        return cpu.violations(kernel, arch or self.arch_name())

    def listing(self, kernel: Kernel, arch: str | None) -> EmittedText:
        """Lower and emit."""
        return cpu.emit(kernel, arch or self.arch_name())

    def compile(self, kernel: Kernel, arch: str | None, listing: EmittedText | None = None) -> Executable:
        """Lower, emit, and compile or find in the cache."""
        start = time.perf_counter()
        chosen = arch or self.arch_name()
        listing = listing or self.listing(kernel, chosen)
        address = key([listing.code, POOL_SOURCE, toolchain_id(), self.name, chosen])
        meta = {"kernel": kernel.name, "target": self.name, "arch": chosen}

        def build() -> bytes:
            data = compile_library(listing.text)
            Library(data, kernel.name).function(listing.entry)  # fails before the artifact is published
            return data

        entry = Cache.default().get_or_build(address, ".so", build, meta)
        launcher = Launcher(Library(entry.data, kernel.name), listing.entry, listing.shared_bytes)
        seconds = time.perf_counter() - start
        return Executable(
            self.name, chosen, kernel, listing, entry.path, entry.hit, seconds, {}, (entry, launcher)
        )

    def prepare(
        self, executable: Executable, binding: Binding, parameters: Sequence[Parameter]
    ) -> PreparedCpu:
        """Prepare a launch for arguments of this exact shape."""
        return PreparedCpu(executable, binding, parameters)


class LaunchImage(NamedTuple):
    """All that code without Python needs for launches of one exact shape.

    Args:
        entry: address of the kernel's function.
        blocks: number of blocks.
        scratch_bytes: scratch memory that each thread needs.
        arguments: the argument buffer; addresses in it are 0.
        addresses: for each array its offset in the buffer; the kernel does not read an array without one.
        workspaces: for each workspace the offset of its address, its bytes, and whether it begins with zeros.
    """

    entry: int
    blocks: int
    scratch_bytes: int
    arguments: bytes
    addresses: Mapping[int, int]
    workspaces: tuple[tuple[int, int, bool], ...]


class PreparedCpu:
    """Launches of one exact shape, each with its own argument buffer.

    A launch takes a buffer and gives it back, so launches on other threads or in a signal handler use others.
    """

    may_be_inlined: ClassVar[bool] = True

    def __init__(self, executable: Executable, binding: Binding, parameters: Sequence[Parameter]) -> None:
        assert executable.listing is not None
        self.executable = executable
        self.seen = 0
        self._used = bytearray(b"\1")  # compiled code sets it too
        self._binding = binding
        self._launcher: Launcher = executable.handle[1]
        self._layout = argument_layout(executable.listing.kernel, parameters)
        self._arrays = sum(parameter.kind == "tensor" for parameter in parameters)
        self._blocks = binding.blocks
        self._idle = [self._new_buffer()]
        executable.launches.add(self)

    def _new_buffer(self) -> _HostBuffer:
        return _HostBuffer(self._binding, self._layout, self._arrays)

    @property
    def recent(self) -> bool:
        """Whether a launch has set this flag since it was cleared."""
        return bool(self._used[0])

    @recent.setter
    def recent(self, value: bool) -> None:
        self._used[0] = value

    def inline(self, numbers: Sequence[Any]) -> InlineLaunch | None:
        """Return the launch for code without Python, with its own argument buffer.

        None if other threads would share the launch, or if it needs cleared memory.

        Args:
            numbers: the scalar arguments of all launches.
        """
        offsets = dict(self._layout.tensors)
        if not self._launcher.stays(self._blocks) or len(offsets) < self._arrays:
            return None
        buffer = self._new_buffer()
        arguments = (*[None] * self._arrays, *numbers)
        are_given = all(number.position < len(arguments) for number in self._layout.numbers)
        if buffer.zeroes or not are_given or waits(self.executable.kernel):
            return None
        buffer.write_more(arguments)
        scratch, guard = self._launcher.inline_scratch(self._blocks)
        used = (ctypes.c_char * 1).from_buffer(self._used)
        return InlineLaunch(
            self,
            self._launcher.address,
            buffer.address,
            scratch.address,
            self._blocks,
            ctypes.addressof(used),
            0 if guard is None else ctypes.addressof(guard),
            tuple(offsets[at] for at in range(self._arrays)),
            (buffer, scratch, used, guard),
        )

    def image(self, arguments: Sequence[Any]) -> LaunchImage:
        """Return the launch for code that makes its own argument buffers and threads.

        Args:
            arguments: the arguments in the order of the kernel's parameters, for its numbers.
        """
        buffer = ctypes.create_string_buffer(max(self._layout.size, 1))
        for number in self._layout.numbers:
            NumberWriter(number).write(buffer, arguments)
        sizes = self._layout.write_sizes(buffer, self._binding)
        spaces = tuple((offset, max(size, 1), bool(param.zeroed)) for param, offset, size in sizes)
        where = self._launcher.address, self._blocks, self._launcher.scratch_bytes
        return LaunchImage(*where, buffer.raw, dict(self._layout.tensors), spaces)

    def launch(self, arguments: Sequence[Any], pointers: Sequence[int], stream: Any) -> None:
        """Run on these arguments and return when they are done."""
        check_no_stream(stream, CPU.name)
        self._used[0] = 1
        try:
            buffer = self._idle.pop()
        except IndexError:
            buffer = self._new_buffer()
        if pointers is not buffer.written:  # a prepared launch passes the same object again
            buffer.write_addresses(*pointers)
            buffer.written = pointers
        if buffer.more:
            buffer.write_more(arguments)
        stuck = self._launcher.launch(buffer.address, self._blocks)
        if stuck:
            assert self.executable.listing is not None
            raise LaunchError(cpu.why_stuck(self.executable.listing.kernel, stuck))
        self._idle.append(buffer)


class _HostBuffer:
    """An argument buffer with its workspaces; only addresses and numbers change between launches."""

    def __init__(self, binding: Binding, layout: ArgumentLayout, arrays: int) -> None:
        self._buffer = ctypes.create_string_buffer(max(layout.size, 1))
        self.address = ctypes.addressof(self._buffer)
        self.write_addresses = layout.address_writer(self._buffer, arrays)
        self.written: Sequence[int] = ()
        self._numbers = tuple(NumberWriter(number) for number in layout.numbers)
        self._zeroed: list[Scratch] = []
        self._workspaces: list[Scratch] = []
        for param, offset, size in layout.write_sizes(self._buffer, binding):
            memory = Scratch(max(size, 1))
            (self._zeroed if param.zeroed else self._workspaces).append(memory)
            struct.pack_into("@P", self._buffer, offset, memory.address)
        self.zeroes = bool(self._zeroed)
        self.more = bool(self._numbers or self._zeroed)

    def write_more(self, arguments: Sequence[Any]) -> None:
        """Write the numbers, and clear the workspaces that start with zeros."""
        for number in self._numbers:
            number.write(self._buffer, arguments)
        for memory in self._zeroed:
            ctypes.memset(memory.address, 0, memory.size_bytes)
