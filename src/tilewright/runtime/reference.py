"""The reference backend: interprets a kernel on host arrays under the hazard checker, at one size or many."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from tilewright.argument_checks import is_integer, is_sequence
from tilewright.checking.flows import StepDependence
from tilewright.errors import LaunchError, LegalityError, Violation, shown
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Parameter, Program, dim_names
from tilewright.runtime.arrays import ArrayInfo, describe, elements
from tilewright.runtime.binding import Binding, check_no_stream, integer, number, passed
from tilewright.runtime.executable import Executable
from tilewright.runtime.specimens import like
from tilewright.targets.reference.findings import Access, Finding, Kind
from tilewright.targets.reference.memory import overlapping
from tilewright.targets.reference.report import Report, Sizes, SizesReport, extents
from tilewright.targets.reference.residues import MODULO_PRIME, PRIME, Residues, Ring
from tilewright.targets.reference.run import Arguments, run
from tilewright.targets.reference.signals import RESIDENT
from tilewright.targets.reference.trial_sizes import deciding_integers, trial_sizes
from tilewright.targets.rules import EmittedText
from tilewright.targets.target import HOST, REFERENCE

# ----------------------------------------------------------------
# Arguments of `check`: lanes and blocks.


LANES = (32, 64)
"""Warp sizes of GPUs."""

WORK = 6_000_000
"""Element accesses, some seconds of work, above which `check` runs only a sample of the blocks."""


def check_lanes(kernel: Kernel, lanes: object) -> None:
    """Refuse a warp size that no machine has.

    Raises:
        LaunchError: it is neither 32, nor 64, nor the size that the kernel's MMA atoms need.
    """
    legal = sorted({*LANES, kernel.lanes})
    asked = int(lanes) if is_integer(lanes) else None  # type: ignore[call-overload]
    if lanes is None or asked in legal:
        return
    near = kernel.lanes if asked is None else min(legal, key=lambda n: abs(n - asked))
    text = f"kernel {kernel.name}: lanes={shown(lanes)}; warps have {' or '.join(map(str, legal))} threads"
    raise LaunchError(text, f"lanes={near}")


def asked_blocks(kernel: Kernel, grid: Sequence[int], blocks: Any) -> list[tuple[int, ...]] | None:
    """Return the indices of the blocks to run; None for the default and for all blocks.

    Args:
        kernel: the kernel.
        grid: blocks along each axis.
        blocks: ``"all"``, a number of blocks, a sequence of indices, or None.

    Raises:
        LaunchError: an index outside the grid, or fewer than one block.
    """
    if blocks is None or isinstance(blocks, str):
        return None
    found: list[tuple[int, ...]] = []
    if is_integer(blocks):
        total = math.prod(grid)
        for number in np.linspace(0, total - 1, min(max(int(blocks), 0), total)).round():
            rest, at = int(number), []
            for extent in grid:
                rest, here = divmod(rest, extent)
                at.append(here)
            found.append(tuple(at))
    else:
        for block in blocks if is_sequence(blocks) else ():
            index = tuple(block) if is_sequence(block) else (block,)
            inside = all(is_integer(i) and 0 <= i < extent for i, extent in zip(index, grid, strict=False))
            if len(index) != len(grid) or not inside:
                found = []
                break
            found.append(tuple(map(int, index)))
    if not found:
        last = tuple(extent - 1 for extent in grid)
        raise LaunchError(
            f"kernel {kernel.name}: blocks={shown(blocks)} is no selection of blocks of the grid "
            f"{tuple(grid)}",
            f'"all", a number of them, or indices such as [{last}]',
        )
    return found


# ----------------------------------------------------------------
# `check_sizes`: sizes to try, arrays for them, and one report.


GRAINS = (1, 8, 16, 64)
"""Divisors of ragged extents; the first that the kernel accepts is used."""

ODD = 97
"""A prime extent. A kernel traced for it counts the iterations of ragged tiles too."""


OUTSIDE = (Kind.OUT_OF_BOUNDS, Kind.DIVISION, Kind.RANGE)
"""Findings that a kernel gives for an integer argument that it is not written for."""


def check_sizes(
    program: Program,
    trace: Callable[..., Kernel],
    given: Sequence[Any],
    infos: Mapping[str, ArrayInfo],
    check: Callable[[Sequence[Any], Collection[str]], Report],
    sizes: Any,
    seconds: float,
    resident: int | None,
) -> SizesReport:
    """Check a kernel at many sizes and make one report; see `tilewright.runtime.kernel.Bound.check_sizes`."""
    kernel: Kernel | None = None  # traced for the least divisible extents that it accepts
    for grain in GRAINS[:-1]:
        with suppress(LegalityError):
            kernel = trace(*_arguments(program, given, infos, {}, ODD * grain))
            break
    if kernel is None:
        kernel = trace(*_arguments(program, given, infos, {}, ODD * GRAINS[-1]))
    pairs = [(p.name, a) for p, a in zip(program.parameters, given, strict=True) if p.kind == "index"]
    numbers = {name: integer(program.name, name, argument) for name, argument in pairs}
    known = dict(numbers)
    for value in kernel.tensors:
        shape = infos[value.name].shape
        known |= {str(extent): size for extent, size in zip(value.tensor.shape, shape, strict=True)}
    asked = _asked(program.name, kernel, sizes)
    reports: dict[Sizes, Report] = {}
    reasons: dict[Sizes, str] = {}
    refused: dict[Sizes, str] = {}
    left_out: list[Sizes] = []
    broken: LegalityError | None = None
    end = time.monotonic() + seconds
    fixed = {*asked, *numbers}
    for trial in trial_sizes(kernel, known, asked, resident or RESIDENT):
        if time.monotonic() > end:
            left_out.append(tuple(trial.sizes.items()))
            continue
        changed = [name for name, value in numbers.items() if trial.sizes.get(name, value) != value]
        for grain in GRAINS:
            key = tuple(
                (name, size if name in fixed else size - size % grain) for name, size in trial.sizes.items()
            )
            if key in reports or key in refused:
                break
            try:
                # With another integer argument, the kernel may write less of the arrays.
                partial = kernel.written_params if changed else ()
                report = check(_arguments(program, given, infos, dict(key), 0), partial)
            except (LegalityError, LaunchError) as error:
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                if isinstance(error, LegalityError):
                    broken, lines = error, [" ".join(lines[:2])]
                refused.setdefault(key, lines[0])
                continue
            meant = [name for name in changed if name not in asked]
            outside = next((one for one in report.findings if meant and one.kind in OUTSIDE), None)
            if outside is not None:
                why = str(outside).splitlines()[0]
                refused[key] = f"{', '.join(meant)} may not be meant to have this value: {why}"
            else:
                reports[key], reasons[key] = report, trial.why
            break
    if not reports and broken is not None:
        raise broken
    return SizesReport(program.name, tuple(reports.items()), tuple(refused.items()), tuple(left_out), reasons)


def _asked(name: str, kernel: Kernel, sizes: Any) -> dict[str, list[int]]:
    """Return the extents and integers that the caller wants tried, by name."""
    known = [sym.name for sym in (*extents(kernel), *deciding_integers(kernel))]
    found: dict[str, list[int]] = {}
    if sizes is None:
        return found
    wants: Any = sizes.items() if isinstance(sizes, Mapping) else [(sizes, ())]
    for dim, wanted in wants:
        values = list(wanted) if is_sequence(wanted) else [wanted]
        if dim not in known or not values or not all(is_integer(v) and v >= 0 for v in values):
            raise LaunchError(
                f"kernel {name}: sizes={shown(sizes)} gives extents for {shown(dim)}, which the kernel does "
                "not have",
                f"extents of {', '.join(known) or 'none'}, as in {{{{'M': (64, 65)}}}}",
            )
        found[dim] = [int(v) for v in values]
    return found


def _arguments(
    program: Program,
    given: Sequence[Any],
    infos: Mapping[str, ArrayInfo],
    sizes: Mapping[str, int],
    default: int,
) -> list[Any]:
    """Return the arguments with specimens of other extents, and the same order of dimensions in memory."""
    made = []
    for parameter, argument in zip(program.parameters, given, strict=True):
        if parameter.kind != "tensor":
            made.append(sizes.get(parameter.name, argument) if parameter.kind == "index" else argument)
            continue
        info = infos[parameter.name]
        names = dim_names(parameter, len(info.shape), program.name)
        shape = [sizes.get(name, default or extent) for name, extent in zip(names, info.shape, strict=True)]
        strides, step = [0] * len(shape), 1
        for dim in sorted(range(len(shape)), key=lambda d: (info.strides[d], -d)):
            strides[dim], step = step, step * max(shape[dim], 1)
        made.append(like(info.dtype, shape, strides=strides))
    return made


# ---------------------------------------------------------------- the backend


HostArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class ReferenceBackend:
    """Interprets the traced kernel, operation by operation."""

    name = REFERENCE.name
    passes = ()

    def arch_name(self) -> str:
        """Return the only architecture."""
        return next(iter(REFERENCE.architectures))

    def processors(self) -> int:
        """Return 1: blocks run one after another."""
        return 1

    def device_name(self) -> str:
        """Return no name: no schedules are measured for an interpreter."""
        return ""

    def violations(self, kernel: Kernel, arch: str | None) -> list[Violation]:
        """Return nothing: the target has no rules of its own."""
        return []

    def listing(self, kernel: Kernel, arch: str | None) -> None:
        """Return None: no text is generated."""

    def compile(self, kernel: Kernel, arch: str | None, listing: EmittedText | None = None) -> Executable:
        """Return an executable; nothing is compiled."""
        return Executable(self.name, self.arch_name(), kernel)

    check_sizes = staticmethod(check_sizes)

    def prepare(
        self, executable: Executable, binding: Binding, parameters: Sequence[Parameter]
    ) -> PreparedReference:
        """Prepare a launch for arguments of this exact shape."""
        return PreparedReference(executable, binding, tuple(parameters))


@dataclass(eq=False)
class PreparedReference:
    """Launches of one exact shape; findings of the checker are errors."""

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
            LaunchError: a stream was given.
            HazardError: the checker found hazards.
        """
        check_no_stream(stream, REFERENCE.name)
        self.recent = True
        self.run(arguments).raise_if_any()

    def inline(self, numbers: Sequence[Any]) -> None:
        """Return None: a launch always goes through Python."""

    def bound_to(self, arguments: Sequence[Any]) -> Arguments:
        """Return the kernel with these arguments, for a run together with others."""
        arrays, numbers = self._unpacked(arguments)
        return Arguments.of(self.executable.kernel, arrays, self.binding.sizes, numbers)

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
        blocks: Any = None,
        resident: int | None = None,
    ) -> Report:
        """Run on copies of the arrays, and report; see `tilewright.runtime.kernel.Bound.check`.

        Raises:
            LaunchError: ``outputs`` or ``partial`` name an array that the kernel does not write; blocks
                outside the grid, or a warp size that no machine has.
        """
        kernel = self.executable.kernel
        check_lanes(kernel, lanes)
        arrays, numbers = self._unpacked(arguments)
        given = arrays
        arrays = dict(zip(arrays, copied(list(arrays.values())), strict=True))
        report = run(
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
        flow = self.executable.flow
        named = zip(self.parameters, arguments, strict=True)
        integers = {one.name: int(value) for one, value in named if one.kind == "index"}
        found = None if flow is None else StepDependence.of(flow, given, {**integers, **numbers})
        if found is None:
            return report
        name, (whole, cut), (one, other) = found.store.operand.name, found.lengths, found.values
        writers = (op for op in kernel.walk() if any(value.buffer.name == name for value in op.written))
        op = replace(next(writers), location=found.store.location)
        reason = (
            f"{name}[{', '.join(map(str, found.index))}] is {one:.9g} in steps of {whole} elements, and "
            f"{other:.9g} in steps of {cut}: what a step stores must follow from its elements and from a "
            "state that has those of all earlier steps"
        )
        access = Access("write", op, "", (), -1, None)
        of_steps = Finding(Kind.STEPS, name, "global", found.index, 0, access, None, reason, found.count)
        return replace(report, findings=(*report.findings, of_steps))

    def residues(
        self, arguments: Sequence[Any], seed: int, given: Mapping[str, Any], ring: Ring
    ) -> dict[str, HostArray]:
        """Return the written arrays, computed with the numbers of a ring; see `runtime.algebra`."""
        kernel = self.executable.kernel
        arrays, numbers = self._unpacked(arguments)
        held = drawn(kernel, arrays, seed, given, ring)
        run(kernel, held, self.binding.sizes, numbers, check=False, numbers=Residues(ring)).raise_if_any()
        floats = {value.name for value in kernel.tensors if value.dtype.is_float}
        written = [name for name in arrays if name in kernel.written_params]
        return {name: ring.told(held[name]) if name in floats else held[name] for name in written}

    def _unpacked(self, arguments: Sequence[Any]) -> tuple[dict[str, HostArray], dict[str, Any]]:
        """Return the arrays and the numbers among the arguments, by name."""
        found, numbers = {}, {}
        for parameter, argument in zip(self.parameters, arguments, strict=True):
            if parameter.kind == "tensor":
                found[parameter.name] = describe(argument)
            elif parameter.kind == "scalar":
                numbers[parameter.name] = number(parameter.name, parameter.dtype, argument)
        arrays = passed(self.executable.kernel, found)
        return {name: host_array(info) for name, info in arrays.items()}, numbers


def _written(what: str, names: str | Sequence[str], kernel: Kernel) -> frozenset[str]:
    """Check that a kernel writes the named arrays, and return the names."""
    given = (names,) if isinstance(names, str) else tuple(names)
    for name in given:
        if name not in kernel.written_params:
            known = ", ".join(sorted(kernel.written_params)) or "none"
            raise LaunchError(
                f"kernel {kernel.name}: {what}={name!r} is not an array that the kernel writes", known
            )
    return frozenset(given)


ALIGNMENT = 128
"""A copy has the same address as its array, modulo this many bytes."""


def copied(arrays: Sequence[HostArray]) -> list[HostArray]:
    """Copy arrays with their strides; copies share memory where the arrays do."""
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
    """Return a NumPy view of an array in host memory.

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
    """Return arrays of random residues in place of floats, with the same strides; integers are copied.

    Args:
        kernel: the kernel; arrays that it only writes hold no residues.
        arrays: its arrays by name; two names for one memory stay so.
        seed: seed of the residues, which also depend on names and shapes.
        given: residues by name, instead of random ones.
        ring: the ring of the residues.

    Raises:
        LaunchError: given residues have no array of floats, another shape, or values beyond the prime.
    """
    kinds = {value.name: value.dtype for value in kernel.tensors}
    read = {value.buffer.name for op in kernel.walk() for value in op.read if value.is_tensor}
    if strange := [name for name in given if name not in kinds or not kinds[name].is_float]:
        floats = ", ".join(name for name, kind in kinds.items() if kind.is_float)
        raise LaunchError(f"residues are given for {strange[0]}", f"one of {floats}")
    made: dict[str, HostArray] = {}
    numbers = Residues(ring)
    places: dict[Any, HostArray] = {}
    for name, array in arrays.items():
        place = array.__array_interface__["data"][0], array.strides, array.shape, array.dtype
        if place not in places:
            storage = numbers.storage(kinds[name])
            # Memory with the same strides in elements.
            steps = [stride // array.itemsize for stride in array.strides]
            spans = [(extent - 1) * step for extent, step in zip(array.shape, steps, strict=True)]
            memory = np.zeros(1 + sum(map(abs, spans)) if array.size else 1, storage)
            start = sum(-span for span in spans if span < 0) * storage.itemsize
            strides = tuple(step * storage.itemsize for step in steps)
            held = np.ndarray(array.shape, storage, memory, start, strides)
            places[place] = held
            if not kinds[name].is_float:
                held[...] = array
            elif name in given:
                own = np.asarray(given[name])
                if own.shape != array.shape or own.dtype != np.uint64 or (own >= PRIME).any():
                    rule = f"they must be uint64 of shape {array.shape}, each less than 2**61 - 1"
                    text = f"residues of {name} are {own.dtype} of shape {own.shape}; {rule}"
                    raise LaunchError(text)
                held[...] = ring.word(own)
            elif name in read or name not in kernel.written_params:
                rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
                held[...] = ring.word(rng.integers(0, PRIME, array.shape, np.uint64))
            else:
                held[...] = numbers.poison(kinds[name], ())
        made[name] = places[place]
    return made
