"""The reference backend: runs a kernel on host arrays under the hazard checker, at one size or at many."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from tilewright.argument_checks import is_integer, is_sequence
from tilewright.errors import LaunchError, LegalityError, TilewrightError, Violation, shown
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Parameter, Program, dim_names
from tilewright.runtime.arrays import ArrayInfo, describe, described, elements
from tilewright.runtime.binding import Binding, check_no_stream, integer, number
from tilewright.runtime.check_arguments import WORK, Blocks, asked_blocks, check_lanes
from tilewright.runtime.executable import Executable
from tilewright.runtime.specimens import Specimen, like
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.memory import overlapping
from tilewright.targets.reference.report import Report, Sizes, SizesReport, extents
from tilewright.targets.reference.residues import MODULO_PRIME, PRIME, Residues, Ring
from tilewright.targets.reference.run import run
from tilewright.targets.reference.signals import RESIDENT
from tilewright.targets.reference.trial_sizes import deciding_integers, trial_sizes
from tilewright.targets.target import HOST, REFERENCE

# ----------------------------------------------------------------
# `check_sizes`: sizes to try, arrays for them, and one report.


GRAINS = (1, 8, 16, 64)
"""Of what ragged extents are multiples: the first that the kernel takes."""

ODD = 97
"""An extent that nothing divides: a kernel traced for it counts the iterations of ragged tiles too."""


OUTSIDE = (Kind.OUT_OF_BOUNDS, Kind.DIVISION, Kind.RANGE)
"""What a run shows of an integer that a kernel is not written for."""


def check_sizes(
    program: Program,
    trace: Callable[..., Kernel],
    given: Sequence[Any],
    check: Callable[[Sequence[Any], Collection[str]], Report],
    sizes: Any,
    seconds: float,
    resident: int | None,
) -> SizesReport:
    """One report of a kernel at many sizes; see `tilewright.runtime.kernel.Bound.check_sizes`."""
    infos = _infos(program, given)
    kernel = _traced(trace, program, given, infos)
    pairs = [(p.name, a) for p, a in zip(program.parameters, given, strict=True) if p.kind == "index"]
    numbers = {name: integer(program.name, name, argument) for name, argument in pairs}
    known = dict(numbers)
    known |= _extents(kernel, infos)
    asked = _asked(program.name, kernel, sizes)
    reports: dict[Sizes, Report] = {}
    reasons: dict[Sizes, str] = {}
    refused: dict[Sizes, str] = {}
    left_out: list[Sizes] = []
    broken: LegalityError | None = None
    end = time.monotonic() + seconds
    for trial in trial_sizes(kernel, known, asked, resident or RESIDENT):
        if time.monotonic() > end:
            left_out.append(tuple(trial.sizes.items()))
            continue
        changed = [name for name, value in numbers.items() if trial.sizes.get(name, value) != value]
        for grain in GRAINS:
            fixed = {*asked, *numbers}
            key = tuple((name, _rounded(name, size, grain, fixed)) for name, size in trial.sizes.items())
            if key in reports or key in refused:
                break
            try:
                # With another integer than the one that was given, less of the arrays may be written.
                partial = kernel.written_params if changed else ()
                report = check(_arguments(program, given, infos, dict(key), 0), partial)
            except (LegalityError, LaunchError) as error:
                broken = error if isinstance(error, LegalityError) else broken
                refused.setdefault(key, _why(error))
                continue
            meant = [name for name in changed if name not in asked]
            if meant and (outside := _outside(report)):
                refused[key] = f"{', '.join(meant)} may not be meant to have this value: {outside}"
            else:
                reports[key], reasons[key] = report, trial.why
            break
    if not reports and broken is not None:
        raise broken
    return SizesReport(program.name, tuple(reports.items()), tuple(refused.items()), tuple(left_out), reasons)


def _outside(report: Report) -> str:
    """Why an integer that nobody gave is none that a kernel takes; empty if it may be."""
    found = next((finding for finding in report.findings if finding.kind in OUTSIDE), None)
    return "" if found is None else str(found).splitlines()[0]


def _traced(
    trace: Callable[..., Kernel], program: Program, given: Sequence[Any], infos: Mapping[str, ArrayInfo]
) -> Kernel:
    """The kernel for the least divisible extents that it takes."""
    for grain in GRAINS[:-1]:
        try:
            return trace(*_arguments(program, given, infos, {}, ODD * grain))
        except LegalityError:
            continue
    return trace(*_arguments(program, given, infos, {}, ODD * GRAINS[-1]))


def _infos(program: Program, given: Sequence[Any]) -> dict[str, ArrayInfo]:
    return {
        p.name: argument.info if isinstance(argument, Specimen) else described(program.name, p.name, argument)
        for p, argument in zip(program.parameters, given, strict=True)
        if p.kind == "tensor"
    }


def _extents(kernel: Kernel, infos: Mapping[str, ArrayInfo]) -> dict[str, int]:
    """The extents that the specimens have, by name."""
    return {
        str(extent): size
        for value in kernel.tensors
        for extent, size in zip(value.tensor.shape, infos[value.name].shape, strict=True)
    }


def _asked(name: str, kernel: Kernel, sizes: Any) -> dict[str, list[int]]:
    """The extents and integers that the caller wants tried, by name."""
    known = [sym.name for sym in (*extents(kernel), *deciding_integers(kernel))]
    found = {}
    for dim, wanted in [] if sizes is None else _items(sizes):
        values = list(wanted) if is_sequence(wanted) else [wanted]
        if dim not in known or not values or not all(is_integer(v) and v >= 0 for v in values):
            raise LaunchError(
                f"kernel {name}: sizes={shown(sizes)} names no extents of {shown(dim)}; "
                f"nearest legal choice: extents of {', '.join(known) or 'none'}, as in {{'M': (64, 65)}}"
            )
        found[dim] = [int(v) for v in values]
    return found


def _items(sizes: Any) -> list[tuple[Any, Any]]:
    return list(sizes.items()) if isinstance(sizes, Mapping) else [(sizes, ())]


def _rounded(name: str, size: int, grain: int, fixed: Container[str]) -> int:
    return size if name in fixed else size - size % grain


def _why(error: TilewrightError) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) if isinstance(error, LegalityError) else lines[0]


def _arguments(
    program: Program,
    given: Sequence[Any],
    infos: Mapping[str, ArrayInfo],
    sizes: Mapping[str, int],
    default: int,
) -> list[Any]:
    """The arguments with specimens of other extents, which lie in memory in the same order."""
    made = []
    for parameter, argument in zip(program.parameters, given, strict=True):
        if parameter.kind != "tensor":
            made.append(sizes.get(parameter.name, argument) if parameter.kind == "index" else argument)
            continue
        info = infos[parameter.name]
        names = dim_names(parameter, len(info.shape), program.name)
        shape = [sizes.get(name, default or extent) for name, extent in zip(names, info.shape, strict=True)]
        strides = [0] * len(shape)
        packed = 1
        for dim in sorted(range(len(shape)), key=lambda d: (info.strides[d], -d)):
            strides[dim], packed = packed, packed * max(shape[dim], 1)
        made.append(like(info.dtype, shape, strides=strides))
    return made


# ---------------------------------------------------------------- the backend


HostArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class ReferenceBackend:
    """Executes the traced kernel itself, operation by operation."""

    name = REFERENCE.name
    passes = ()

    def arch_name(self) -> str:
        """There is one."""
        return next(iter(REFERENCE.architectures))

    def processors(self) -> int:
        """How many blocks run side by side."""
        return 1

    def device_name(self) -> str:
        """None: what is executed operation by operation has no speed that a table could tell of."""
        return ""

    def violations(self, kernel: Kernel, arch: str | None) -> list[Violation]:
        """None of its own."""
        return []

    def listing(self, kernel: Kernel, arch: str | None) -> None:
        """There is none."""

    def compile(self, kernel: Kernel, arch: str | None) -> Executable:
        """Nothing to compile."""
        return Executable(self.name, self.arch_name(), kernel)

    check_sizes = staticmethod(check_sizes)

    def prepare(
        self,
        executable: Executable,
        binding: Binding,
        parameters: Sequence[Parameter],
        arrays: Mapping[str, ArrayInfo],
    ) -> PreparedReference:
        """A launch for arguments of this exact shape."""
        return PreparedReference(executable, binding, tuple(parameters))


@dataclass(eq=False)
class PreparedReference:
    """Runs the kernel and raises what the checker finds."""

    may_be_inlined: ClassVar[bool] = False

    executable: Executable
    binding: Binding
    parameters: tuple[Parameter, ...]
    recent: bool = True
    seen: int = 0

    def __post_init__(self) -> None:
        self.executable.launches.add(self)

    def launch(self, arguments: Sequence[Any], pointers: Sequence[int], stream: Any) -> None:
        """Run on these arguments, in place.

        Raises:
            LaunchError: a stream, which this target has not.
            HazardError: the checker found hazards.
        """
        check_no_stream(stream, REFERENCE.name)
        self.recent = True
        self.run(arguments).raise_if_any()

    def inline(self) -> None:
        """It is not launched without Python."""

    def run(self, arguments: Sequence[Any]) -> Report:
        """Run on these arguments, and report."""
        arrays, numbers = self._unpacked(arguments)
        return run(self.executable.kernel, arrays, self.binding.sizes, numbers)

    def check(
        self,
        arguments: Sequence[Any],
        *,
        lanes: int | None = None,
        outputs: str | Sequence[str] = (),
        partial: str | Sequence[str] = (),
        blocks: Blocks | None = None,
        resident: int | None = None,
    ) -> Report:
        """Run on copies of the arrays, and report; see `tilewright.runtime.kernel.Bound.check`.

        Raises:
            LaunchError: ``outputs`` or ``partial`` name what the kernel does not write; blocks that the grid
                does not have, or lanes that no warp has.
        """
        kernel = self.executable.kernel
        check_lanes(kernel, lanes)
        arrays, numbers = self._unpacked(arguments)
        arrays = dict(zip(arrays, copied(list(arrays.values())), strict=True))
        return run(
            kernel,
            arrays,
            self.binding.sizes,
            numbers,
            lanes=lanes,
            outputs=_written("outputs", outputs, kernel),
            whole=kernel.written_params - _written("partial", partial, kernel),
            blocks=asked_blocks(kernel, self.binding.grid, blocks),
            work=WORK if blocks is None else None,
            resident=resident or RESIDENT,
        )

    def residues(
        self, arguments: Sequence[Any], seed: int, given: Mapping[str, Any], ring: Ring
    ) -> dict[str, HostArray]:
        """What the kernel writes if floats are those of a ring; see `runtime.algebra`."""
        kernel = self.executable.kernel
        arrays, numbers = self._unpacked(arguments)
        held = drawn(kernel, arrays, seed, given, ring)
        run(kernel, held, self.binding.sizes, numbers, check=False, numbers=Residues(ring)).raise_if_any()
        floats = {value.name for value in kernel.tensors if value.dtype.is_float}
        written = [name for name in arrays if name in kernel.written_params]
        return {name: ring.told(held[name]) if name in floats else held[name] for name in written}

    def _unpacked(self, arguments: Sequence[Any]) -> tuple[dict[str, HostArray], dict[str, Any]]:
        """The arrays and the numbers among the arguments, by name."""
        arrays, numbers = {}, {}
        for parameter, argument in zip(self.parameters, arguments, strict=True):
            if parameter.kind == "tensor":
                arrays[parameter.name] = host_array(describe(argument))
            elif parameter.kind == "scalar":
                numbers[parameter.name] = number(parameter.name, parameter.dtype, argument)
        return arrays, numbers


def _written(what: str, names: str | Sequence[str], kernel: Kernel) -> frozenset[str]:
    """Names of arrays, all of which a kernel writes."""
    given = (names,) if isinstance(names, str) else tuple(names)
    for name in given:
        if name not in kernel.written_params:
            known = ", ".join(sorted(kernel.written_params)) or "none"
            raise LaunchError(
                f"kernel {kernel.name}: {what}={name!r} is no array that it writes; "
                f"nearest legal choice: {known}"
            )
    return frozenset(given)


ALIGNMENT = 128
"""Copies begin at the same multiple of so many bytes as the arrays that they are of."""


def copied(arrays: Sequence[HostArray]) -> list[HostArray]:
    """Copies with the same strides, which share memory where the arrays do."""
    made = list(arrays)
    bounds = [np.lib.array_utils.byte_bounds(array) if array.size else (0, 0) for array in arrays]
    for group in overlapping(bounds):
        low, high = min(bounds[n][0] for n in group), max(bounds[n][1] for n in group)
        memory = np.empty(high - low + 2 * ALIGNMENT, np.uint8)
        start = (low - memory.ctypes.data) % ALIGNMENT
        for n in group:
            like = arrays[n]
            offset = start + like.ctypes.data - low
            made[n] = np.ndarray(like.shape, like.dtype, memory, offset, like.strides)
            made[n][...] = like
    return made


def host_array(info: ArrayInfo) -> HostArray:
    """A NumPy view of an array in host memory.

    Raises:
        LaunchError: the array lies on a GPU.
    """
    if info.device != HOST:
        raise LaunchError(
            f"the reference runs on host arrays; this one lies on {info.device}: copy it to the host"
        )
    return elements(info).view(info.dtype.numpy)


def drawn(
    kernel: Kernel,
    arrays: Mapping[str, HostArray],
    seed: int,
    given: Mapping[str, Any],
    ring: Ring = MODULO_PRIME,
) -> dict[str, HostArray]:
    """Random residues in place of floats, with the strides that the arrays have; integers as they are.

    Args:
        kernel: whose arguments they are; what it writes alone holds no residues.
        arrays: by name; one memory under two names stays one.
        seed: of the residues, which depend on the names and shapes besides.
        given: residues, by name, which are not random.
        ring: what they are residues of.

    Raises:
        LaunchError: residues are given for what is no array of floats of this shape.
    """
    kinds = {value.name: value.dtype for value in kernel.tensors}
    read = {value.buffer.name for op in kernel.walk() for value in op.read if value.is_tensor}
    if strange := [name for name in given if name not in kinds or not kinds[name].is_float]:
        floats = ", ".join(name for name, kind in kinds.items() if kind.is_float)
        raise LaunchError(f"residues are given for {strange[0]}; nearest legal choice: one of {floats}")
    made: dict[str, HostArray] = {}
    numbers = Residues(ring)
    places: dict[Any, HostArray] = {}
    for name, array in arrays.items():
        place = array.__array_interface__["data"][0], array.strides, array.shape, array.dtype
        if place not in places:
            storage = numbers.storage(kinds[name])
            places[place] = held = _strided_as(array, storage)
            if not kinds[name].is_float:
                held[...] = array
            elif name in given:
                held[...] = ring.word(_residues_of(name, given[name], array.shape))
            elif name in read or name not in kernel.written_params:
                rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
                held[...] = ring.word(rng.integers(0, PRIME, array.shape, np.uint64))
            else:
                held[...] = numbers.poison(kinds[name], ())
        made[name] = places[place]
    return made


def _residues_of(name: str, given: Any, shape: tuple[int, ...]) -> HostArray:
    """The residues that a caller gives.

    Raises:
        LaunchError: another shape, or no integers from 0 to the prime.
    """
    array = np.asarray(given)
    if array.shape != shape or array.dtype != np.uint64 or (array >= PRIME).any():
        raise LaunchError(
            f"residues of {name} are {array.dtype} of shape {array.shape}; they must be uint64 of shape "
            f"{shape}, each less than 2**61 - 1"
        )
    return array


def _strided_as(array: HostArray, storage: np.dtype[Any]) -> HostArray:
    """Memory for as many elements, with the same strides in elements."""
    steps = [stride // array.itemsize for stride in array.strides]
    spans = [(extent - 1) * step for extent, step in zip(array.shape, steps, strict=True)]
    start = sum(-span for span in spans if span < 0)
    memory = np.zeros(1 + sum(map(abs, spans)) if array.size else 1, storage)
    strides = tuple(step * storage.itemsize for step in steps)
    return np.ndarray(array.shape, storage, memory, start * storage.itemsize, strides)
