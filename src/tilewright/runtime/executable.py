"""Executables and prepared launches: what every backend gives back."""

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
from tilewright.ir.kernel import Kernel, ScalarParam, TensorParam, passed_params
from tilewright.ir.printer import print_kernel
from tilewright.lang.program import Parameter
from tilewright.passes.pipeline import Pass
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.binding import Binding, NumberSlot, Packing, packing
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
        listing: the generated text; None where the target executes the kernel itself.
        path: the compiled artifact; None likewise.
        cached: whether the artifact came from the cache.
        seconds: time to lower, emit and compile or load it.
        resources: what the compiler reported, e.g. registers and spills per thread.
        handle: the backend's own loaded form.
        assembly: the compiler's listing of the machine code, where it was asked for one; else empty.
        launches: what was prepared to launch it, as far as somebody still holds it.
        schedule: how it computes what a dataflow kernel says; None of an explicit kernel.
        flow: what that is; None likewise.
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
    schedule: Schedule | None = None
    flow: Flow | None = field(default=None, repr=False)

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
        """Choices that were made while the kernel was traced, and by the target."""
        return self.kernel.notes if self.listing is None else self.listing.notes

    def __repr__(self) -> str:
        return f"<{self.kernel.name} for {self.target} {self.arch}>"


class Prepared(Protocol):
    """A launch for arguments of one exact shape; only pointers and numbers change between calls."""

    recent: bool
    """Set by every launch; cleared when `seen` is set for it."""

    seen: int
    """When a launch was noticed last, as a number of `tilewright.runtime.recent.clock`; 0: never."""

    may_be_inlined: ClassVar[bool]
    """Whether `tilewright.runtime.shortcuts` may run it, if it is short."""

    @property
    def executable(self) -> Executable:
        """What is launched."""

    def inline(self) -> Any:
        """What code without Python needs to launch it; None if that cannot be, or is not worth it."""

    def launch(self, arguments: Sequence[Any], pointers: Sequence[int], stream: Any) -> None:
        """Launch on these arguments; ``pointers`` holds the address of each array, in order."""


class Backend(Protocol):
    """How one target compiles and launches."""

    name: str

    def arch_name(self) -> str:
        """The architecture of this machine."""

    def processors(self) -> int:
        """How many blocks this machine runs side by side, counting one for each processor; 0 without one."""

    def device_name(self) -> str:
        """What this machine is called, of which tables of measured schedules are kept; empty for none."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The target's passes, in their order; none where it executes the kernel as it was traced."""

    def violations(self, kernel: Kernel, arch: str | None) -> list[Violation]:
        """The target's own rules that a kernel breaks."""

    def listing(self, kernel: Kernel, arch: str | None) -> EmittedText | None:
        """Lower and emit, without a compiler; None where the target executes the kernel itself."""

    def compile(self, kernel: Kernel, arch: str | None) -> Executable:
        """Lower, emit, and compile or find in the cache."""

    def prepare(
        self,
        executable: Executable,
        binding: Binding,
        parameters: Sequence[Parameter],
        arrays: Mapping[str, ArrayInfo],
    ) -> Prepared:
        """A launch for arguments of this exact shape."""


MAP_BYTES, MAP_ALIGN = 128, 64
"""Size and alignment of a tensor map."""


@dataclass(frozen=True)
class ArgumentLayout:
    """Where each of the author's arguments goes in the packed buffer.

    Args:
        packing: codes and offsets of all parameters.
        tensors: for each array that is passed by address, its position among the arrays and its offset.
        maps: for each tensor map, the position of its array among the arrays, and its offset.
        size: bytes of the buffer.
        numbers: the author's numbers.
    """

    packing: Packing
    tensors: tuple[tuple[int, int], ...]
    numbers: tuple[NumberSlot, ...]
    maps: tuple[tuple[int, int], ...]
    size: int

    def address_writer(self, buffer: Any, arrays: int) -> Callable[..., None]:
        """A function that takes the addresses of all arrays and writes those that are passed."""
        if self.tensors == tuple((at, 8 * at) for at in range(arrays)):
            # All arrays come first in the buffer when no number stands between them: one pack writes them.
            return partial(struct.Struct("@" + "P" * arrays).pack_into, buffer, 0)

        def write(*addresses: int) -> None:
            for at, offset in self.tensors:
                struct.pack_into("@P", buffer, offset, addresses[at])

        return write


def argument_layout(kernel: Kernel, parameters: Sequence[Parameter]) -> ArgumentLayout:
    """The layout of a lowered kernel's arguments."""
    packed = packing(kernel)
    position = {parameter.name: at for at, parameter in enumerate(parameters)}
    arrays = [parameter.name for parameter in parameters if parameter.kind == "tensor"]
    tensors, numbers = [], []
    for param, offset in zip(passed_params(kernel), packed.offsets, strict=True):
        if isinstance(param, TensorParam):
            tensors.append((arrays.index(param.value.name), offset))
        elif isinstance(param, ScalarParam):
            name = param.value.name
            numbers.append(NumberSlot(position[name], name, param.value.dtype, offset))
    end = -(-struct.calcsize(packed.format) // MAP_ALIGN) * MAP_ALIGN
    maps = tuple((arrays.index(m.tensor), end + MAP_BYTES * i) for i, m in enumerate(kernel.tensor_maps))
    return ArgumentLayout(packed, tuple(tensors), tuple(numbers), maps, end + MAP_BYTES * len(maps))
