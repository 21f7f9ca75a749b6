"""The subject of an inspection: the kernel of `matmul`, or one in a file, with arrays for it."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from tilewright.argument_checks import read_whole
from tilewright.checking.sample import normal
from tilewright.dataflow.printer import print_flow
from tilewright.dtypes import DType, dtype
from tilewright.errors import LaunchError, LegalityError, Location, TilewrightError, TraceError
from tilewright.inspect.timeline import Timeline, timeline
from tilewright.ir.kernel import Kernel as IrKernel
from tilewright.ir.printer import print_kernel
from tilewright.ir.verify import violations
from tilewright.lang.source import raised_at
from tilewright.lang.specs import TensorSpec
from tilewright.ops.products import output_dtype, plain
from tilewright.passes.pipeline import Stage, stages
from tilewright.runtime.arrays import describe
from tilewright.runtime.backends import backend_named
from tilewright.runtime.binding import Binding, bind, spec_of
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.executable import Executable
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.runtime.kernel import Bound
from tilewright.runtime.reference import PreparedReference
from tilewright.runtime.specimens import Order, Specimen, like
from tilewright.schedule.schedule import Schedule
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets.reference.asynchronous import REFERENCE
from tilewright.targets.reference.recorder import ExecutionRecorder
from tilewright.targets.reference.report import Report
from tilewright.targets.reference.run import bind_sizes, run
from tilewright.targets.rules import EmittedText
from tilewright.targets.target import CUDA, target_named
from tilewright.targets.target import REFERENCE as ON_HOST

# ----------------------------------------------------------------
# Errors of the author's Python, with the author's line.


DEEPEST = 8
"""Largest number of nested calls that are shown."""


def told(error: Exception, file: str) -> str:
    """Describe an error, and the place where a file raised it."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename != file:
        traceback = traceback.tb_next
    where = raised_at(error, traceback) if traceback is not None else None
    if where is not None and len(where.frames) > DEEPEST:  # endless recursion
        where = Location(where.frames[:DEEPEST])
    return _named(error) + (f"\n{where.excerpt()}" if where else "")


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


# ---------------------------------------------------------------- subjects


Array = npt.NDArray[Any]

FEW = 256
"""Largest extent on the reference, which executes thread by thread."""


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _traces(
    method: Callable[Concatenate[Subject, Parameters], Result],
) -> Callable[Concatenate[Subject, Parameters], Result]:
    """Make a method raise errors of the author's kernel as `TraceError` with the author's line."""

    @functools.wraps(method)
    def run(subject: Subject, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return method(subject, *args, **kwargs)
        except Exception as error:  # the kernel may raise anything
            program, traceback = subject.bound.program, error.__traceback__
            code = getattr(program.function, "__code__", None)
            while traceback is not None and traceback.tb_frame.f_code is not code:
                traceback = traceback.tb_next
            if traceback is None or isinstance(error, TilewrightError | MemoryError):
                raise
            message = f"kernel {program.name}: {_named(error)}"
            raise TraceError(message, raised_at(error, traceback)) from error

    return run


@dataclass(frozen=True)
class Subject:
    """A kernel with its constants, and the arrays and numbers of a call.

    Args:
        bound: the kernel.
        dtypes: the element type of each array, by parameter.
        extents: the extent of each dimension, by name.
        transposed: parameters that are stored column after column.
        numbers: the value of each number, by parameter.
    """

    bound: Bound
    dtypes: Mapping[str, DType]
    extents: Mapping[str, int]
    transposed: frozenset[str] = frozenset()
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @_traces
    def flow(self) -> str:
        """Return the flow of a dataflow kernel as text.

        Raises:
            LaunchError: the kernel is explicit.
        """
        return print_flow(self.bound.flow(*self.specimens()))

    @_traces
    def schedule(self, target: str | None = None, arch: str | None = None) -> Schedule | None:
        """Return the schedule of a dataflow kernel on a target; None for an explicit kernel."""
        return self.bound.schedule_for(*self.specimens(), target=target, arch=arch)

    @_traces
    def trace(self, target: str | None = None, arch: str | None = None) -> str:
        """Return the traced kernel as text; a dataflow kernel as scheduled for a target."""
        return print_kernel(self.bound.trace(*self.specimens(), target=target, arch=arch))

    @_traces
    def compile(self, target: str, arch: str | None = None) -> Executable:
        """Compile the kernel for a target, which need not exist here."""
        return self.bound.compile(*self.specimens(), target=target, arch=arch)

    @_traces
    def listing(self, target: str, arch: str | None = None) -> EmittedText | None:
        """Return the text for a target, and its notes, without a compiler; None if the target has no text.

        Raises:
            LegalityError: the kernel breaks rules.
        """
        return backend_named(target).listing(self._legal(target, arch), arch)

    @_traces
    def stages(self, target: str, arch: str | None = None) -> tuple[Stage, ...]:
        """Return the traced kernel, and the kernel after each of a target's passes.

        Raises:
            LegalityError: the kernel breaks rules.
        """
        backend = backend_named(target)
        chosen = target_named(target).architecture(arch or backend.arch_name())
        return tuple(stages(self._legal(target, arch), chosen, backend.passes))

    def _legal(self, target: str, arch: str | None) -> IrKernel:
        """Return the traced kernel, if it is legal for a target."""
        kernel = self.bound.trace(*self.specimens(), target=target, arch=arch)
        if broken := [*violations(kernel), *backend_named(target).violations(kernel, arch)]:
            raise LegalityError(kernel.name, target, broken)
        return kernel

    def legal_dtype(self) -> str | None:
        """Return a common dtype for which the kernel is legal if all arrays have it, or None."""
        for name in ("f16", "bf16", "f32", "f64", "i8"):
            try:
                made = replace(self, dtypes=dict.fromkeys(self.dtypes, dtype(name)))
                if not violations(made.bound.trace(*made.specs())):
                    return name
            except TilewrightError:
                continue
        return None

    @_traces
    def on_reference(self, target: str | None = None, arch: str | None = None) -> Report:
        """Run the reference on arrays of at most `FEW` along each dimension, and return its findings.

        Args:
            target: the target whose schedule is executed; default: the reference.
            arch: the target's architecture.
        """
        prepared, arrays = self._few(target, arch)
        return prepared.run(self._arguments(arrays))

    def require_numbers(self) -> None:
        """Check that every number of the kernel has a value.

        Raises:
            LaunchError: a number has no value.
        """
        parameters = [p.name for p in self.bound.program.parameters if p.kind != "tensor"]
        if missing := [name for name in parameters if name not in self.numbers]:
            raise LaunchError(
                f"no value for {', '.join(missing)}; give {' '.join(f'--set {name}=…' for name in missing)}"
            )

    def binding(self, kernel: IrKernel) -> Binding:
        """Return the integers of a launch of the traced or lowered kernel on these arrays and numbers."""
        self.require_numbers()
        return bind(kernel, {name: self._specimen(name).info for name in self._tensors()}, self.numbers)

    @_traces
    def launch(self) -> Executable:
        """Run the kernel once on the GPU, on normal random numbers, to its end.

        Raises:
            LaunchError: a number has no value, or the driver refuses, e.g. the memory.
        """
        self.require_numbers()
        rng = np.random.default_rng(0)
        arrays = {}
        for name in self._tensors():
            array = self._array(name, self.extents)
            array[...] = normal(rng, array.shape, self.dtypes[name])
            arrays[name] = DeviceArray.of(array)
        executable = self.bound(*self._arguments(arrays), target=CUDA.name)
        CUDA_DRIVER.synchronize()
        return executable

    @_traces
    def timeline(self, block: tuple[int, ...] | None = None, target: str | None = None) -> Timeline:
        """Return the events of each agent of a block, on arrays of at most `FEW` along each dimension.

        Args:
            block: its index in the grid, x first; default: the first.  All blocks of its cluster run.
            target: the target whose schedule is executed; default: the reference.

        Raises:
            LaunchError: the block is outside of the grid.
            HazardError: the checker found hazards in the block.
        """
        prepared, arrays = self._few(target)
        kernel = prepared.executable.kernel
        env = bind_sizes(kernel, arrays, prepared.binding.sizes)
        grid = [int(evaluate(axis.extent, env)) for axis in kernel.grid]
        place = (0,) * len(grid) if block is None else block
        nearest = [min(at, extent - 1) for at, extent in itertools.zip_longest(place, grid, fillvalue=0)]
        if list(place) != nearest:
            legal = ",".join(map(str, nearest[: len(grid)]))
            raise LaunchError(f"block {place} is outside of the grid", legal)
        recorder = ExecutionRecorder(REFERENCE)
        report = run(kernel, arrays, prepared.binding.sizes, self.numbers, rules=recorder, blocks=[place])
        report.raise_if_any()
        return timeline(kernel.name, recorder.executions, kernel.lanes)

    def _few(self, target: str | None, arch: str | None = None) -> tuple[PreparedReference, dict[str, Array]]:
        """Return the kernel on the reference, with a target's schedule for full arrays, and small arrays."""
        self.require_numbers()
        arrays = self.small_arrays(FEW)
        bound = self.bound
        if target is not None and (schedule := self.schedule(target, arch)) is not None:
            bound = Bound(bound.program, bound.constants, schedule=schedule)
        kernel = bound.trace(*self._arguments(arrays))
        infos = {name: describe(array, name) for name, array in arrays.items()}
        executable = backend_named(ON_HOST.name).compile(kernel, None)
        binding = bind(kernel, infos, self.numbers)
        return PreparedReference(executable, binding, self.bound.program.parameters), arrays

    def small_arrays(self, most: int) -> dict[str, Array]:
        """Return arrays of small random integers of at most ``most`` along each dimension, by parameter."""
        few = {name: min(extent, most) for name, extent in self.extents.items()}
        rng = np.random.default_rng(0)
        arrays: dict[str, Array] = {}
        for name in self._tensors():
            array = self._array(name, few)
            array[...] = rng.integers(-4, 5, array.shape).astype(array.dtype)
            arrays[name] = array
        return arrays

    def _tensors(self) -> list[str]:
        return [parameter.name for parameter in self.bound.program.parameters if parameter.kind == "tensor"]

    def _arguments(self, arrays: Mapping[str, Any]) -> list[Any]:
        """Return the arguments of a call in the order of the parameters."""
        given = {**self.numbers, **arrays}
        return [given[parameter.name] for parameter in self.bound.program.parameters]

    def _array(self, name: str, extents: Mapping[str, int]) -> Array:
        order: Literal["F", "C"] = "F" if name in self.transposed else "C"
        return np.empty(self._shape(name, extents), self.dtypes[name].numpy, order=order)

    def _shape(self, name: str, extents: Mapping[str, int]) -> tuple[int, ...]:
        dims = next(p.named for p in self.bound.program.parameters if p.name == name)
        return tuple(extents[dim] for dim in dims)

    def specs(self) -> list[TensorSpec | None]:
        """Return the class of each array, None for a number; no memory is taken."""
        named = zip(self.specimens(), self.bound.program.parameters, strict=True)
        return [None if one is None else spec_of(one.info, parameter.name) for one, parameter in named]

    def specimens(self) -> list[Specimen | None]:
        """Return a specimen of each array, None for a number."""
        return [
            self._specimen(parameter.name) if parameter.kind == "tensor" else None
            for parameter in self.bound.program.parameters
        ]

    def _specimen(self, name: str) -> Specimen:
        order: Order = "F" if name in self.transposed else "C"
        return like(self.dtypes[name], self._shape(name, self.extents), order=order)


def library_gemm(
    dtype_name: str,
    shape: str,
    layout: str = "nn",
    precision: str = "exact",
    schedule: Schedule | None = None,
) -> Subject:
    """Return the kernel of `matmul`, which takes A (M, K) and B (K, N).

    Args:
        dtype_name: element type of A and B.
        shape: extents in the notation of `read_shape`.
        layout: how A and B are stored: ``"n"`` or ``"t"`` for each.
        precision: ``"exact"`` or ``"tf32"``.
        schedule: the schedule; default: the choice of `matmul`.

    Raises:
        LaunchError: the shape or the layout cannot be read.
    """
    if layout not in ("nn", "nt", "tn", "tt"):
        raise LaunchError(f"unknown layout {layout!r}; choose one of nn, nt, tn, tt")
    element = dtype(dtype_name)
    extents = read_shape(shape)
    require_extents(extents, ("M", "N", "K"))
    bound = plain(0).bind(precision=precision, schedule=schedule)
    stored = frozenset(name for name, letter in zip("AB", layout, strict=True) if letter == "t")
    return Subject(bound, {"A": element, "B": element, "D": output_dtype(element)}, extents, stored)


def read_shape(text: str) -> dict[str, int]:
    """Read extents by name.

    Raises:
        LaunchError: neither ``MxNxK`` nor ``NAME=extent,…``, or an extent of 0.

    Example:
        >>> read_shape("3x4x5"), read_shape("H=7,W=9")
        ({'M': 3, 'N': 4, 'K': 5}, {'H': 7, 'W': 9})
    """
    if re.fullmatch(r"\d+x\d+x\d+", text):
        pairs = list(zip("MNK", text.split("x"), strict=True))
    elif re.fullmatch(r"\w+=\d+(,\w+=\d+)*", text):
        pairs = [(name, extent) for name, extent in (part.split("=") for part in text.split(","))]
    else:
        raise LaunchError(f"shape {text!r} means nothing; give e.g. 512x512x512, or M=512,N=512,K=512")
    found = {name: read_whole(name, extent, "512x512x512") for name, extent in pairs}
    if 0 in found.values():
        raise LaunchError(f"shape {text!r} has an extent of 0; extents must be positive")
    return found


def require_extents(extents: Mapping[str, int], names: Sequence[str]) -> None:
    """Check that every dimension has an extent.

    Raises:
        LaunchError: a dimension has no extent.
    """
    missing = [name for name in names if name not in extents]
    if missing:
        raise LaunchError(
            f"no extent for {', '.join(missing)}; give --shape {','.join(f'{n}=…' for n in names)}"
        )
