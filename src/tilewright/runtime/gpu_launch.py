"""Launching on a GPU of any vendor: tensor maps, loaded machine code, launches of one exact shape.

A subclass of `PreparedGpu` holds the differences of a vendor: how to make a launch for the driver, and how
many blocks are resident at once.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tilewright.errors import LaunchError, Violation
from tilewright.ir.deadlocks import first_wait
from tilewright.ir.kernel import Kernel, TensorMap
from tilewright.lang.program import Parameter
from tilewright.passes.pipeline import Pass
from tilewright.runtime.arrays import stream_handle, stream_reader
from tilewright.runtime.binding import Binding, NumberWriter
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.driver import LEGACY_STREAM, Driver, LoadedFunction
from tilewright.runtime.environment import renew_after_fork
from tilewright.runtime.executable import MAP_BYTES, ArgumentLayout, Executable, argument_layout
from tilewright.runtime.gpu_memory import Clears, DeviceMemory, Workspaces
from tilewright.runtime.recent import Recent
from tilewright.targets.rules import EmittedText

# ----------------------------------------------------------------
# Tensor maps of TMA. The driver encodes one for each address.


KEPT = 64
"""Encoded addresses that we keep for one map; the least recently used is dropped first."""

NOTHING_BYTES = 128
"""Bytes of memory that stand for an array without elements; a bulk store writes at least 16."""

STRIDE_BYTES = 16
"""Unit of the strides of a tensor map."""

_FORMATS = {"f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT32", "f64": "FLOAT64", "i32": "INT32"}


class TensorMaps:
    """The tensor maps of one array shape and one box, by address.

    Args:
        tensor_map: the map that the kernel asks for.
        shape: extents of the array.
        strides: its strides, in elements.
        index: the number of its device.
    """

    def __init__(
        self, tensor_map: TensorMap, shape: tuple[int, ...], strides: tuple[int, ...], index: int
    ) -> None:
        self._map = tensor_map
        self._shape, self._strides, self._index = shape, strides, index
        self._encoded: Recent[int, bytes] = Recent(KEPT)

    @cached_property
    def _nothing(self) -> DeviceMemory:
        """Zeros that stand for an array without elements."""
        made = DeviceMemory(NOTHING_BYTES, self._index)
        zeros = np.zeros(NOTHING_BYTES, np.uint8)
        with CUDA_DRIVER.any_capture():
            made.fill(zeros.ctypes.data, zeros.nbytes)
        return made

    def at(self, address: int) -> bytes:
        """Return the map of the array at an address."""
        found = self._encoded.get(address)
        if found is None:
            shape, strides, start = self._shape, self._strides, address
            if 0 in shape:
                # A map needs at least one element. A sum over nothing still loads one tile: it finds zeros
                # here, and stores go to this memory only.
                steps = 16 // self._map.dtype.bytes
                strides = tuple(1 if dim == self._map.order[-1] else steps for dim in range(len(shape)))
                shape, start = (1,) * len(shape), self._nothing.address
            found = encoded(self._map, shape, strides, start, self._index)
            self._encoded.keep(address, found)
        return found


def encoded(
    tensor_map: TensorMap, shape: Sequence[int], strides: Sequence[int], address: int, index: int
) -> bytes:
    """Encode the tensor map of an array that has elements.

    Args:
        tensor_map: the map that the kernel asks for.
        shape: the array's extents.
        strides: the array's strides in elements.
        address: the array's address.
        index: the device.

    Raises:
        LaunchError: TMA does not move this dtype.
    """
    driver = CUDA_DRIVER.bindings()
    size, rank = tensor_map.dtype.bytes, len(shape)
    kind = "UINT8" if size == 1 else _FORMATS.get(tensor_map.dtype.name)
    if kind is None:
        raise LaunchError(f"TMA does not support {tensor_map.dtype}")
    order = tensor_map.order
    # TMA counts dimensions from the innermost, whose stride is 1 and not passed.
    inwards = [*reversed(order)]
    extents = [driver.cuuint64_t(shape[dim]) for dim in inwards]
    # A dimension of extent 1 may have any stride, even 0; it gets the stride of dense rows.
    dense = -(-shape[inwards[0]] * size // STRIDE_BYTES) * STRIDE_BYTES
    taken = [strides[dim] * size if shape[dim] > 1 else dense for dim in inwards[1:]]
    steps_bytes = [driver.cuuint64_t(stride) for stride in taken]
    box = [driver.cuuint32_t(tensor_map.box[dim]) for dim in inwards]
    steps = [driver.cuuint32_t(tensor_map.steps[dim]) for dim in inwards]

    data_type, *fixed = _choices(kind, is_swizzled=tensor_map.is_swizzled)
    asked = (data_type, rank, address, extents, steps_bytes, box, steps, *fixed)
    with CUDA_DRIVER.current(index):
        made = CUDA_DRIVER.call("cuTensorMapEncodeTiled", *asked)
    return ctypes.string_at(int(made.getPtr()), MAP_BYTES)


@lru_cache(maxsize=16)
def _choices(kind: str, *, is_swizzled: bool) -> tuple[Any, ...]:
    """Return the driver's constants for a dtype: type, interleave, swizzle, L2 promotion, fill."""
    driver = CUDA_DRIVER.bindings()
    names = (
        ("DataType", f"DATA_TYPE_{kind}"),
        ("Interleave", "INTERLEAVE_NONE"),
        ("Swizzle", "SWIZZLE_128B" if is_swizzled else "SWIZZLE_NONE"),
        ("L2promotion", "L2_PROMOTION_L2_256B"),
        ("FloatOOBfill", "FLOAT_OOB_FILL_NONE"),
    )
    return tuple(
        getattr(getattr(driver, f"CUtensorMap{group}"), f"CU_TENSOR_MAP_{name}") for group, name in names
    )


# ---------------------------------------------------------------- a launch of one exact shape


MOST_STARTS = 64
"""Streams for which a launch keeps the prepared call of the driver."""

Start = Callable[[], tuple[Any]]
"""The driver's call with all arguments bound; returns the status."""

Special = Callable[[Any, Any, tuple[int, ...], Any, int], Start]
"""Makes the driver's call of a launch with attributes.

Its arguments: the driver's bindings; the kernel; the extents of the grid and of a block, and the shared
bytes; the stream; the address of the array of argument pointers.
"""


class FixedLaunch:
    """A launch of the driver whose arguments lie in one buffer.

    Args:
        driver: the driver.
        function: the kernel.
        grid: blocks along x, y, z.
        threads: threads per block.
        offsets: byte offset of each argument in the buffer.
        size: bytes of the buffer.
        special: makes the driver's call; default: a plain launch.

    Raises:
        LaunchError: more blocks than a GPU launches.
    """

    def __init__(
        self,
        driver: Driver,
        function: LoadedFunction,
        grid: Sequence[int],
        threads: int,
        offsets: Sequence[int],
        size: int,
        special: Special | None = None,
    ) -> None:
        self._driver, self._special = driver, special
        self._index = function.index
        # A single device is nearly always current. Asking would cost as much as trying.
        self._alone = driver.device_count() <= 1
        self.buffer = ctypes.create_string_buffer(max(size, 1))
        start = ctypes.addressof(self.buffer)
        self._pointers = (ctypes.c_void_p * max(len(offsets), 1))(*(start + offset for offset in offsets))
        self._arguments = ctypes.addressof(self._pointers)
        symbols = driver.symbols
        most_x, *others = symbols.target.architecture(driver.device(self._index).arch).grid
        if symbols.threads_along_x:
            most_x = min(most_x, symbols.threads_along_x // threads)
        for blocks, most, axis in zip(grid, (most_x, *others), "xyz", strict=False):
            if blocks > most:
                raise LaunchError(f"{blocks} blocks along grid axis {axis}; a GPU launches at most {most}")
        x, y, z = (*grid, 1, 1)[:3]
        self._shape = (x, y, z, threads, 1, 1, function.shared_bytes)
        self._handle = function.handle
        self._success = driver.constant(symbols.success)
        self._starts: dict[int, Start] = {}
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the driver's calls in a forked child; the next launch raises the driver's error."""
        self._starts.clear()

    def run(self, stream: int) -> None:
        """Launch with the buffer's contents; the driver copies them before the call returns."""
        start = self._starts.get(stream) or self.start_on(stream)
        if self._alone:
            (status,) = start()
            if status is self._success:
                return
        with self._driver.current(self._index):
            (status,) = start()
            if status != self._success:
                raise self._driver.failure("the launch", status)

    def start_on(self, stream: int) -> Start:
        """Make and keep the driver's call for a stream."""
        if len(self._starts) >= MOST_STARTS:
            self._starts.clear()
        bindings, symbols = self._driver.bindings(), self._driver.symbols
        handle = symbols.stream(bindings, stream)
        if self._special is not None:
            made = self._special(bindings, self._handle, self._shape, handle, self._arguments)
        else:
            plain = getattr(bindings, symbols.launch)
            made = partial(plain, self._handle, *self._shape, handle, self._arguments, 0)
        self._starts[stream] = made
        return made


# ---------------------------------------------------------------- backends and prepared launches


class GpuBackend:
    """The part of a backend that GPUs of all vendors share.

    A subclass gives the driver, the default architecture for machines without a GPU, the package that lowers
    to its target, the class of its launches, and a suffix of architectures that a launch ignores.
    """

    driver: ClassVar[Driver]
    default_arch: ClassVar[str]
    lowering: ClassVar[Any]
    prepared: ClassVar[type[PreparedGpu]]
    variant: ClassVar[str] = ""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The target's passes, in their order."""
        found: tuple[Pass, ...] = self.lowering.PASSES
        return found

    def violations(self, kernel: Kernel, arch: str | None) -> list[Violation]:
        """Return the target's own rules that a kernel breaks."""
        found: list[Violation] = self.lowering.violations(kernel, arch or self.arch_name())
        return found

    def listing(self, kernel: Kernel, arch: str | None) -> EmittedText:
        """Lower and emit."""
        made: EmittedText = self.lowering.emit(kernel, arch or self.arch_name())
        return made

    def prepare(
        self, executable: Executable, binding: Binding, parameters: Sequence[Parameter]
    ) -> PreparedGpu:
        """Prepare a launch for arguments of this exact shape.

        Raises:
            LaunchError: the executable is for another architecture than the device.
        """
        index = 0 if isinstance(binding.device, str) else binding.device[1]
        wanted, variant = self.driver.device(index).arch, self.variant
        if executable.arch.removesuffix(variant) != wanted.removesuffix(variant):
            raise LaunchError(f"compiled for {executable.arch}, but device {index} is {wanted}")
        return self.prepared(executable, binding, parameters, index)

    def arch_name(self) -> str:
        """Return the architecture of device 0, or the default one without a GPU."""
        return self.driver.device(0).arch if self.driver.device_count() else self.default_arch

    def processors(self) -> int:
        """Return the number of multiprocessors of device 0; 0 without a GPU."""
        return self.driver.device(0).multiprocessors if self.driver.device_count() else 0

    def device_name(self) -> str:
        """Return the name of device 0; empty without a GPU."""
        return self.driver.device(0).name if self.driver.device_count() else ""


class Loaded:
    """The machine code of a kernel, loaded once on each device that launches it.

    Args:
        driver: the driver that loads it.
        image: returns the machine code; called when a device loads it.
        entry: the kernel's name in the machine code.
        shared_bytes: dynamic shared memory of a launch.
    """

    def __init__(self, driver: Driver, image: Callable[[], bytes], entry: str, shared_bytes: int) -> None:
        self._driver, self.image = driver, image
        self._entry, self._shared_bytes = entry, shared_bytes
        self._functions: dict[int, LoadedFunction] = {}

    def on(self, index: int) -> LoadedFunction:
        """Return the kernel, loaded on a device."""
        if index not in self._functions:
            made = self._driver.load(self.image(), self._entry, index, self._shared_bytes)
            self._functions[index] = made
        return self._functions[index]


class GpuImage(NamedTuple):
    """All that code without Python needs for launches of one exact shape.

    Args:
        code: the machine code.
        entry: the kernel's name in it.
        shared_bytes: dynamic shared memory of a block.
        kernel: the lowered kernel.
        together: whether all blocks must be resident at once.
        grid: blocks along x, y, z.
        offsets: byte offset of each argument in the argument buffer; tensor maps come last.
        arguments: the argument buffer, without addresses and tensor maps.
        addresses: for each array that is passed its position among the arrays, and its offset in the buffer.
        workspaces: for each workspace the offset of its address, its bytes, and whether it begins with zeros.
        maps: for each tensor map the position of its array, and the array's extents and strides.
        first_map: the offset of the first tensor map.
    """

    code: bytes
    entry: str
    shared_bytes: int
    kernel: Kernel
    together: bool
    grid: tuple[int, ...]
    offsets: tuple[int, ...]
    arguments: bytes
    addresses: tuple[tuple[int, int], ...]
    workspaces: tuple[tuple[int, int, bool], ...]
    maps: tuple[tuple[int, TensorMap, tuple[int, ...], tuple[int, ...]], ...]
    first_map: int


_in_graphs: set[object] = set()
"""Launches that a graph captured. They stay alive, because the graph may launch them at any time."""


class PreparedGpu(ABC):
    """Launches of one exact shape, each with its own argument buffer.

    A launch takes a buffer and gives it back, so launches on other threads or in a signal handler use others.
    """

    may_be_inlined: ClassVar[bool] = False
    driver: ClassVar[Driver]

    def __init__(
        self, executable: Executable, binding: Binding, parameters: Sequence[Parameter], index: int
    ) -> None:
        assert executable.listing is not None
        kernel = executable.listing.kernel
        self.executable = executable
        self.recent, self.seen = True, 0
        self._index = index
        # The first array's framework gives the current stream.
        self._first_array = next(at for at, parameter in enumerate(parameters) if parameter.kind == "tensor")
        self._reader: tuple[type | None, Any] = (None, None)
        self._empty = binding.blocks == 0
        self._binding, self._layout = binding, (layout := argument_layout(kernel, parameters))
        self._names = names = [parameter.name for parameter in parameters if parameter.kind == "tensor"]
        maps = tuple(
            (at, offset, TensorMaps(tensor_map, *binding.layouts[names[at]], index))
            for (at, offset), tensor_map in zip(layout.maps, kernel.tensor_maps, strict=True)
        )
        function = executable.handle.on(index)
        self._together = self._waits_for_all(kernel, binding, function)
        self._offsets = offsets = (*layout.offsets, *(offset for _, offset in layout.maps))
        special = self.special_of(kernel, self._together)
        launch = partial(
            FixedLaunch, self.driver, function, binding.grid, kernel.threads, offsets, layout.size, special
        )
        self._new_buffer = partial(_GpuBuffer, launch, binding, layout, maps, len(names), index, self.driver)
        self._first = self._new_buffer()
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
            if type(array) is not known:
                current, shared = stream_reader(array, self._index)
                if shared:  # it serves all arrays of the type
                    self._reader = (type(array), current)
            handle = current() or 0
        else:
            handle = stream_handle(stream)
        captured = handle not in LEGACY_STREAM and self.driver.is_capturing(handle)
        if captured:
            _in_graphs.add(self)
        buffer = self._first
        if pointers is buffer.written and not buffer.more:
            # Only a prepared launch passes the same object again, and then no other call writes the buffer.
            buffer.run(handle)
            return
        try:
            buffer = self._idle.pop()
        except IndexError:
            buffer = self._new_buffer()
        if pointers != buffer.written:
            buffer.write_arrays(pointers)
        if buffer.more:
            buffer.write_more(arguments, handle, captured)
        buffer.run(handle)
        if captured:
            _in_graphs.add(buffer)  # its workspaces belong to the graph
        else:
            self._idle.append(buffer)

    def inline(self, numbers: Sequence[Any]) -> None:  # noqa: B027 - the answer of every GPU
        """Return None: a GPU launch always goes through Python."""

    def image(self, arguments: Sequence[Any]) -> GpuImage:
        """Return the launch for code that makes its own argument buffers.

        Args:
            arguments: the arguments in the order of the kernel's parameters, for its numbers.
        """
        listing, layout = self.executable.listing, self._layout
        assert listing is not None
        buffer = ctypes.create_string_buffer(max(layout.size, 1))
        for number in layout.numbers:
            NumberWriter(number).write(buffer, arguments)
        sizes = layout.write_sizes(buffer, self._binding)
        maps = zip(layout.maps, listing.kernel.tensor_maps, strict=True)
        return GpuImage(
            self.executable.handle.image(),
            listing.entry,
            listing.shared_bytes,
            listing.kernel,
            self._together,
            (*self._binding.grid, 1, 1)[:3],
            self._offsets,
            buffer.raw,
            layout.tensors,
            tuple((offset, size, bool(param.zeroed or param.resets)) for param, offset, size in sizes),
            tuple((at, one, *self._binding.layouts[self._names[at]]) for (at, _), one in maps),
            layout.maps[0][1] if layout.maps else 0,
        )

    def driver_call(self, stream: int) -> Callable[[], object]:
        """Return the driver's call on the arguments of the last launch, for measuring the least cost."""
        return self._first.launch.start_on(stream)

    @staticmethod
    @abstractmethod
    def special_of(kernel: Kernel, together: bool) -> Special | None:
        """Return the call of a launch with attributes; ``together``: all blocks are resident at once."""

    @staticmethod
    @abstractmethod
    def resident_blocks(function: LoadedFunction, kernel: Kernel) -> int:
        """Return how many blocks of a kernel the device holds at once."""

    def _waits_for_all(self, kernel: Kernel, binding: Binding, function: LoadedFunction) -> bool:
        """Return whether blocks wait for later blocks, so that all must be resident at once.

        Raises:
            LaunchError: the device holds fewer blocks; they would wait for ever.
        """
        sizes = {param.sym: binding.sizes[param.sym.name] for param in kernel.sizes}
        wait = first_wait(kernel, sizes)
        if wait is None:
            return False
        resident = self.resident_blocks(function, kernel)
        if binding.blocks > resident:
            where = "" if wait.location is None else f"\n{wait.location.excerpt()}"
            rule = f"device {function.index} runs only {resident} of them at the same time"
            text = f"kernel {kernel.name}: its {binding.blocks} blocks wait for each other, and {rule}"
            raise LaunchError(text, f"{resident} blocks, and each does the work of several{where}")
        return True


class _GpuBuffer:
    """An argument buffer with its workspaces; only addresses and numbers change between launches."""

    def __init__(
        self,
        launch: Callable[[], FixedLaunch],
        binding: Binding,
        layout: ArgumentLayout,
        maps: Sequence[tuple[int, int, TensorMaps]],
        arrays: int,
        index: int,
        driver: Driver,
    ) -> None:
        self.launch = launch()
        self.run = self.launch.run
        self.written: Sequence[int] = ()
        buffer = self.launch.buffer
        self._bytes = memoryview(buffer).cast("B")
        self._write_addresses = layout.address_writer(buffer, arrays)
        self._maps = maps
        workspaces = [
            (at, size, Clears.LAUNCH if param.zeroed else Clears.ONCE if param.resets else Clears.NEVER)
            for param, at, size in layout.write_sizes(buffer, binding)
        ]
        self._workspaces = Workspaces(workspaces, index, driver) if workspaces else None
        self._numbers = tuple(NumberWriter(number) for number in layout.numbers)
        self.more = bool(self._numbers or workspaces)

    def write_arrays(self, pointers: Sequence[int]) -> None:
        """Write the addresses of arrays, and the tensor maps of those that moved."""
        written, self.written = self.written, ()  # an error below must leave nothing
        self._write_addresses(*pointers)
        for at, offset, tensor_maps in self._maps:
            if not written or pointers[at] != written[at]:
                self._bytes[offset : offset + MAP_BYTES] = tensor_maps.at(pointers[at])
        self.written = pointers

    def write_more(self, arguments: Sequence[Any], stream: int, captured: bool) -> None:
        """Write numbers and the addresses of workspaces."""
        for number in self._numbers:
            number.write(self.launch.buffer, arguments)
        if self._workspaces is not None:
            self._workspaces.prepare(self.launch.buffer, stream, captured)
