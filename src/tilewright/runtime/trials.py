"""A kernel under the checker at many sizes: which are tried, with which arrays, and the report of all."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Any

from tilewright.errors import LaunchError, LegalityError, TilewrightError, shown
from tilewright.ir.kernel import Kernel
from tilewright.kinds import is_integer, is_sequence
from tilewright.lang.program import Program, dim_names
from tilewright.runtime.arrays import ArrayInfo, described
from tilewright.runtime.binding import integer
from tilewright.runtime.specimens import Specimen, like
from tilewright.targets.reference.findings import Kind
from tilewright.targets.reference.report import Report, Sizes, SizesReport, extents
from tilewright.targets.reference.signals import RESIDENT
from tilewright.targets.reference.trial_sizes import deciding_integers, trial_sizes

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
