"""The CUDA backend: compiles CUDA text with NVRTC, launches on the caller's stream."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from tilewright.errors import LaunchError, LegalityError, Violation
from tilewright.ir.kernel import Kernel, SizeParam, Workspace
from tilewright.ir.passed import passed_params
from tilewright.ir.residency import first_wait
from tilewright.lang.program import Parameter
from tilewright.runtime import cuda as driver
from tilewright.runtime import nvrtc
from tilewright.runtime.arguments import NumberWriter
from tilewright.runtime.arrays import ArrayInfo, stream_handle, stream_reader
from tilewright.runtime.binding import Binding
from tilewright.runtime.cache import Cache, key
from tilewright.runtime.executable import MAP_BYTES, ArgumentLayout, Executable, argument_layout
from tilewright.runtime.launch_attributes import launch_attributes
from tilewright.runtime.residents import resident_blocks
from tilewright.runtime.tensor_maps import TensorMaps
from tilewright.runtime.workspaces import Clears, Workspaces
from tilewright.targets import cuda
from tilewright.targets.listing import Listing
from tilewright.targets.target import CUDA


class CudaBackend:
    """Compiles for the GPU of this machine, or, without one, for the architecture asked for."""

    name = CUDA.name

    def arch_name(self) -> str:
        """The architecture of device 0, or the default one where there is no GPU."""
        return driver.device(0).arch if driver.device_count() else CUDA.arch

    def processors(self) -> int:
        """How many blocks run side by side."""
        return driver.device(0).multiprocessors if driver.device_count() else 0

    def device_name(self) -> str:
        """The name of device 0."""
        return driver.device(0).name if driver.device_count() else ""

    def violations(self, kernel: Kernel, arch: str | None) -> list[Violation]:
        """The target's own rules that a kernel breaks."""
        return cuda.violations(kernel, arch or self.arch_name())

    def listing(self, kernel: Kernel, arch: str | None) -> Listing:
        """Lower and emit."""
        return cuda.emit(kernel, arch or self.arch_name())

    def compile(self, kernel: Kernel, arch: str | None) -> Executable:
        """Lower, emit, and compile or find in the cache."""
        start = time.perf_counter()
        chosen = arch or self.arch_name()
        listing = self.listing(kernel, chosen)
        meta: dict[str, Any] = {"kernel": kernel.name, "target": self.name, "arch": chosen}

        def build() -> bytes:
            binary = nvrtc.compile_text(listing.text, chosen, kernel.name)
            meta["resources"] = binary.resources
            return binary.cubin

        address = key([listing.code, nvrtc.toolchain_id(), self.name, chosen])
        entry = Cache.default().get_or_build(address, ".cubin", build, meta)
        resources = {**dict(entry.meta["resources"]), "shared_bytes": listing.shared_bytes}  # type: ignore[call-overload]
        if broken := cuda.too_many_as_compiled(kernel, CUDA.architecture(chosen), resources["registers"]):
            raise LegalityError(kernel.name, self.name, broken)
        seconds = time.perf_counter() - start
        return Executable(
            self.name,
            chosen,
            kernel,
            listing,
            entry.path,
            entry.hit,
            seconds,
            resources,
            _Loaded(entry, listing),
        )

    def prepare(
        self,
        executable: Executable,
        binding: Binding,
        parameters: Sequence[Parameter],
        arrays: Mapping[str, ArrayInfo],
    ) -> PreparedCuda:
        """A launch for arguments of this exact shape."""
        (index,) = {info.device[1] for info in arrays.values() if not isinstance(info.device, str)}
        wanted = driver.device(index).arch
        if executable.arch.rstrip("a") != wanted.rstrip("a"):
            raise LaunchError(f"compiled for {executable.arch}, but device {index} is {wanted}")
        return PreparedCuda(executable, binding, parameters, arrays, index)


class _Loaded:
    """The machine code, loaded once on each device that launches it."""

    def __init__(self, entry: Any, listing: Any) -> None:
        self.entry, self._listing = entry, listing
        self._functions: dict[int, driver.Function] = {}

    def on(self, index: int) -> driver.Function:
        """The kernel on a device."""
        if index not in self._functions:
            cubin = self.entry.data
            listing = self._listing
            self._functions[index] = driver.Function(cubin, listing.entry, index, listing.shared_bytes)
        return self._functions[index]


def _waits_for_all(executable: Executable, binding: Binding, index: int) -> bool:
    """Whether blocks wait for others of higher numbers: all of them must be resident on the device at once.

    Raises:
        LaunchError: it does not hold so many; they would wait for ever.
    """
    assert executable.listing is not None
    kernel = executable.listing.kernel
    sizes = {param.sym: binding.sizes[param.sym.name] for param in kernel.sizes}
    wait = first_wait(kernel, sizes)
    if wait is None:
        return False
    function = executable.handle.on(index)
    most = resident_blocks(function, kernel)
    if binding.blocks > most:
        where = "" if wait.location is None else f"\n{wait.location.excerpt()}"
        raise LaunchError(
            f"kernel {kernel.name}: its {binding.blocks} blocks wait for each other, and device {index} "
            f"holds {most} of them at once; nearest legal choice: {most} blocks, each of which does the work "
            f"of several{where}"
        )
    return True


_in_graphs: set[object] = set()
"""What was launched while a graph was captured: the graph may launch it again at any time."""


class PreparedCuda:
    """Launches of one exact shape, each from a packed argument buffer of its own.

    A buffer is taken for a launch and given back after it, so there are as many as there were launches at the
    same time: on other threads, or in a signal handler.
    """

    may_be_inlined: ClassVar[bool] = False

    def __init__(
        self,
        executable: Executable,
        binding: Binding,
        parameters: Sequence[Parameter],
        arrays: Mapping[str, ArrayInfo],
        index: int,
    ) -> None:
        assert executable.listing is not None
        kernel = executable.listing.kernel
        self.executable = executable
        self.recent, self.seen = True, 0
        self._index = index
        # The first array's framework says which stream is current.
        self._first_array = next(at for at, parameter in enumerate(parameters) if parameter.kind == "tensor")
        self._reader: tuple[type | None, Any] = (None, None)
        self._empty = binding.blocks == 0
        layout = argument_layout(kernel, parameters)
        names = [parameter.name for parameter in parameters if parameter.kind == "tensor"]
        maps = tuple(
            (at, offset, TensorMaps(tensor_map, arrays[names[at]]))
            for (at, offset), tensor_map in zip(layout.maps, kernel.tensor_maps, strict=True)
        )
        together = _waits_for_all(executable, binding, index)
        self._pack = partial(_Packed, executable, binding, layout, maps, len(arrays), index, together)
        self._first = self._pack()
        self._idle = [self._first]
        executable.launches.add(self)

    def launch(self, arguments: Sequence[Any], pointers: Sequence[int], stream: Any) -> None:
        """Launch on these arguments; returns before they are done."""
        if self._empty:
            return
        self.recent = True
        if stream is None:
            array = arguments[self._first_array]
            known, current = self._reader
            handle = (current if type(array) is known else self._find_reader(array))() or 0
        else:
            handle = stream_handle(stream)
        captured = handle not in driver.LEGACY_STREAM and driver.is_capturing(handle)
        if captured:
            _in_graphs.add(self)
        packed = self._first
        if pointers is packed.written and not packed.more:
            # The same ones come again only from a prepared launch, and then no call writes other ones.
            packed.run(handle)
            return
        try:
            packed = self._idle.pop()
        except IndexError:
            packed = self._pack()
        if pointers is not packed.written:
            packed.write_arrays(pointers)
        if packed.more:
            packed.write_more(arguments, handle, captured)
        packed.run(handle)
        if captured:
            _in_graphs.add(packed)  # its workspaces are the graph's own
        else:
            self._idle.append(packed)

    def inline(self) -> None:
        """It is not launched without Python."""

    def driver_call(self, stream: int) -> Callable[[], object]:
        """The driver's call alone, on the arguments of the last launch: what a launch costs at the least."""
        return self._first.launch.start_on(stream)

    def _find_reader(self, array: Any) -> Callable[[], int | None]:
        """How the array's framework tells its current stream; remembered if it serves all of the type."""
        current, shared = stream_reader(array, self._index)
        if shared:
            self._reader = (type(array), current)
        return current


class _Packed:
    """An argument buffer in which only addresses and numbers change, and the workspaces that it names."""

    def __init__(
        self,
        executable: Executable,
        binding: Binding,
        layout: ArgumentLayout,
        maps: Sequence[tuple[int, int, TensorMaps]],
        arrays: int,
        index: int,
        together: bool,
    ) -> None:
        assert executable.listing is not None
        kernel = executable.listing.kernel
        self.launch = driver.Launch(
            executable.handle.on(index),
            binding.grid,
            kernel.threads,
            (*layout.packing.offsets, *(offset for _, offset in layout.maps)),
            layout.size,
            launch_attributes(kernel, driver.driver(), together=together),
        )
        self.run = self.launch.run
        self.written: Sequence[int] = ()
        buffer = self.launch.buffer
        self._bytes = memoryview(buffer).cast("B")
        self._write_addresses = layout.address_writer(buffer, arrays)
        self._maps = maps
        workspaces = []
        for param, code, offset in zip(
            passed_params(kernel), layout.packing.codes, layout.packing.offsets, strict=True
        ):
            if isinstance(param, SizeParam):
                struct.pack_into("@" + code, buffer, offset, binding.sizes[param.sym.name])
            elif isinstance(param, Workspace):
                size = binding.workspaces[param.value.name] * param.value.dtype.bytes
                clears = Clears.LAUNCH if param.zeroed else Clears.ONCE if param.resets else Clears.NEVER
                workspaces.append((offset, size, clears))
        self._workspaces = Workspaces(workspaces, index) if workspaces else None
        self._numbers = tuple(NumberWriter(number) for number in layout.numbers)
        self.more = bool(self._numbers or workspaces)

    def write_arrays(self, pointers: Sequence[int]) -> None:
        """Write the addresses of arrays, and their tensor maps."""
        self._write_addresses(*pointers)
        for at, offset, tensor_maps in self._maps:
            self._bytes[offset : offset + MAP_BYTES] = tensor_maps.at(pointers[at])
        self.written = pointers

    def write_more(self, arguments: Sequence[Any], stream: int, captured: bool) -> None:
        """Write what not every kernel has: numbers and the addresses of workspaces."""
        for number in self._numbers:
            number.write(self.launch.buffer, arguments)
        if self._workspaces is not None:
            self._workspaces.prepare(self.launch.buffer, stream, captured)


def cubin(executable: Executable) -> bytes:
    """The machine code of an executable, as NVRTC made it."""
    found: bytes = executable.handle.entry.data
    return found


def cubin_with_lines(executable: Executable) -> bytes:
    """The same, from which a disassembler tells of what lines of the text it was made.

    Args:
        executable: compiled for the target.
    """
    text, name = executable.source, executable.kernel.name
    address = key([text, nvrtc.toolchain_id(), CUDA.name, executable.arch, nvrtc.LINES])
    meta: dict[str, Any] = {"kernel": name, "target": CUDA.name, "arch": executable.arch}

    def build() -> bytes:
        return nvrtc.compile_text(text, executable.arch, name, lines=True).cubin

    return Cache.default().get_or_build(address, ".cubin", build, meta).data
