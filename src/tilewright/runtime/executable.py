"""Executables and prepared launches, the results of every backend, and the layout of the argument buffer."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

from tilewright.calls import launches
from tilewright.dataflow.nodes import Flow
from tilewright.errors import Violation
from tilewright.ir.kernel import Kernel, Param, ScalarParam, SizeParam, TensorParam, Workspace
from tilewright.ir.printer import print_kernel
from tilewright.lang.program import Parameter
from tilewright.lang.specs import TensorSpec
from tilewright.passes.pipeline import Pass
from tilewright.runtime.binding import Binding, NumberSlot, argument_codes
from tilewright.schedule.schedule import Schedule
from tilewright.targets.rules import EmittedText


@launches.made("a call of a kernel or kernel.compile(...) gives one")
@dataclass(frozen=True, eq=False)
class Executable:
    """A kernel compiled for one target and one class of arguments; made by `Kernel.compile`.

    Args:
        target: the target that runs it: ``"reference"``, ``"cpu"``, ``"cuda"`` or ``"hip"``.
        arch: the architecture it was compiled for.
        kernel: the traced kernel.
        listing: the generated text; None if the target interprets the kernel.
        path: the compiled artifact; None if the target interprets the kernel.
        cached: whether the artifact came from the cache.
        seconds: time to lower, emit and compile or load it.
        resources: figures that the compiler reported, e.g. registers and spills per thread.
        handle: the loaded code; its type depends on the backend.
        assembly: the compiler's listing of the machine code; empty for most targets.
        launches: the prepared launches that are still alive.
        holders: the objects that keep the executable, or launches of it, for later calls.
        schedule: the schedule of a dataflow kernel; None for an explicit kernel.
        flow: the graph of a dataflow kernel; None for an explicit kernel.
        specs: the class of each array that it was traced for, by parameter.
    """

    target: str
    arch: str
    kernel: Kernel
    listing: EmittedText | None = None
    path: Path | None = None
    cached: bool = False
    seconds: float = 0.0
    resources: Mapping[str, Any] = field(default_factory=dict)
    handle: Any = field(default=None, repr=False)
    assembly: str = field(default="", repr=False)
    launches: weakref.WeakSet[Prepared] = field(default_factory=weakref.WeakSet, repr=False)
    holders: weakref.WeakSet[Holder] = field(default_factory=weakref.WeakSet, repr=False)
    schedule: Schedule | None = None
    flow: Flow | None = field(default=None, repr=False)
    specs: Mapping[str, TensorSpec] = field(default_factory=dict, repr=False)

    @property
    def source(self) -> str:
        """The generated text; for the reference, the printed kernel."""
        return print_kernel(self.kernel) if self.listing is None else self.listing.text

    @property
    def ir(self) -> str:
        """The traced kernel as text."""
        return print_kernel(self.kernel)

    @property
    def notes(self) -> tuple[str, ...]:
        """Choices made by the trace and by the target."""
        return self.kernel.notes if self.listing is None else self.listing.notes

    def __repr__(self) -> str:
        return f"<{self.kernel.name} for {self.target} {self.arch}>"


class Holder(Protocol):
    """An object that keeps executables, or launches of them, for later calls."""

    def forget(self, executable: Executable) -> None:
        """Drop an executable and everything that holds it."""


class Prepared(Protocol):
    """A launch for arguments of one exact shape; only pointers and numbers change between calls."""

    recent: bool
    """Set by every launch; cleared when `seen` is set for it."""

    seen: int
    """Time at which a launch was last noticed, in ticks of `tilewright.runtime.recent.clock`; 0: never."""

    may_be_inlined: ClassVar[bool]
    """Whether `tilewright.runtime.plans` may run it, if it is short."""

    @property
    def executable(self) -> Executable:
        """The executable that is launched."""

    def inline(self, numbers: Sequence[Any]) -> Any:
        """Return the `InlineLaunch` that starts it without Python; None if impossible or not worth it.

        Args:
            numbers: the scalar arguments of all its launches.
        """

    def launch(self, arguments: Sequence[Any], pointers: Sequence[int], stream: Any) -> None:
        """Launch on these arguments; ``pointers`` holds the address of each array, in order."""


class Backend(Protocol):
    """Compiles and launches kernels for one target."""

    name: str

    def arch_name(self) -> str:
        """The architecture of this machine."""

    def processors(self) -> int:
        """Return how many blocks this machine runs in parallel, one per processor; 0 without a device."""

    def device_name(self) -> str:
        """Return the machine's name in tables of measured schedules; empty if it has none."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The target's passes, in their order; none if it interprets the traced kernel."""

    def violations(self, kernel: Kernel, arch: str | None) -> list[Violation]:
        """Return the target's own rules that a kernel breaks."""

    def listing(self, kernel: Kernel, arch: str | None) -> EmittedText | None:
        """Lower and emit, without a compiler; None if the target interprets the kernel."""

    def compile(self, kernel: Kernel, arch: str | None, listing: EmittedText | None = None) -> Executable:
        """Lower and emit, unless the kernel's listing is given; then compile, or find in the cache."""

    def prepare(self, executable: Executable, binding: Binding, parameters: Sequence[Parameter]) -> Prepared:
        """Prepare a launch for arguments of this exact shape."""


MAP_BYTES, MAP_ALIGN = 128, 64
"""Size and alignment of a tensor map."""


@dataclass(frozen=True)
class ArgumentLayout:
    """The layout of the argument buffer of a lowered kernel: C struct alignment, in launch order.

    Args:
        params: the parameters that are passed.
        codes: their `struct` codes.
        offsets: their offsets in bytes.
        tensors: position among the arrays, and offset, of each array that is passed by address.
        numbers: the author's numbers.
        maps: position among the arrays, and offset, of the array of each tensor map.
        size: bytes of the buffer.
    """

    params: tuple[Param, ...]
    codes: tuple[str, ...]
    offsets: tuple[int, ...]
    tensors: tuple[tuple[int, int], ...]
    numbers: tuple[NumberSlot, ...]
    maps: tuple[tuple[int, int], ...]
    size: int

    def address_writer(self, buffer: Any, arrays: int) -> Callable[..., None]:
        """Return a function that takes the addresses of all arrays, and writes those the kernel takes."""
        if self.tensors == tuple((at, 8 * at) for at in range(arrays)):
            # If no number stands between the arrays, one call of `struct` writes all addresses.
            return partial(struct.Struct("@" + "P" * arrays).pack_into, buffer, 0)

        def write(*addresses: int) -> None:
            for at, offset in self.tensors:
                struct.pack_into("@P", buffer, offset, addresses[at])

        return write

    def write_sizes(self, buffer: Any, binding: Binding) -> list[tuple[Workspace, int, int]]:
        """Write the sizes of a launch; return each workspace with its offset and its bytes."""
        found = []
        for param, code, offset in zip(self.params, self.codes, self.offsets, strict=True):
            if isinstance(param, SizeParam):
                struct.pack_into("@" + code, buffer, offset, binding.sizes[param.sym.name])
            elif isinstance(param, Workspace):
                size = binding.workspaces[param.value.name] * param.value.dtype.bytes
                found.append((param, offset, size))
        return found


def argument_layout(kernel: Kernel, parameters: Sequence[Parameter]) -> ArgumentLayout:
    """Return the layout of a lowered kernel's arguments."""
    params, codes = kernel.passed, argument_codes(kernel)
    position = {parameter.name: at for at, parameter in enumerate(parameters)}
    arrays = [parameter.name for parameter in parameters if parameter.kind == "tensor"]
    offsets, tensors, numbers, end = [], [], [], 0
    for param, code in zip(params, codes, strict=True):
        size = struct.calcsize(code)
        offset = -(-end // size) * size
        offsets.append(offset)
        end = offset + size
        if isinstance(param, TensorParam):
            tensors.append((arrays.index(param.value.name), offset))
        elif isinstance(param, ScalarParam):
            name = param.value.name
            numbers.append(NumberSlot(position[name], name, param.value.dtype, offset))
    end = -(-end // MAP_ALIGN) * MAP_ALIGN
    maps = tuple((arrays.index(m.tensor), end + MAP_BYTES * i) for i, m in enumerate(kernel.tensor_maps))
    size = end + MAP_BYTES * len(maps)
    return ArgumentLayout(params, codes, tuple(offsets), tuple(tensors), tuple(numbers), maps, size)
