"""`tilewright report`: one page about a kernel, from its lines to its machine code."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.cli.console import (
    Constants,
    Element,
    ExactOrTf32,
    OperandLayout,
    TargetName,
    UsageError,
    choose,
    reports,
    say,
    size,
    tell,
    working,
)
from tilewright.cli.export import ARRAY
from tilewright.cli.tune import OPERATIONS, WHAT, Shapes, subjects
from tilewright.inspect.from_files import bound_in_file
from tilewright.report import KernelFacts, KernelReport
from tilewright.report.page import PLANNED, is_absent, rescheduled
from tilewright.runtime.outputs import check_output, is_standard_output
from tilewright.targets.target import CPU, TARGETS, target_named
from tilewright.tune.gemm import OperationLaunch
from tilewright.tune.subject import TuningSubject

EXAMPLE = "tilewright report matmul 4096x4096:bf16 4096x4096:bf16"


@reports
def report(
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help=WHAT)],
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="EXTENTS:DTYPE … | M N K",
            help="The arrays in the order of the arguments, e.g. 4096x4096:bf16; extents of gemm; of einsum "
            "first its subscripts.",
        ),
    ] = None,
    shape: Shapes = None,
    constant: Constants = None,
    dtype: Element = "f32",
    layout: OperandLayout = "nn",
    precision: ExactOrTf32 = "exact",
    target: TargetName = CPU.name,
    arch: Annotated[
        str | None,
        typer.Option(
            help="Architecture, e.g. sm_90a or gfx942. Default: this machine's.", show_default=False
        ),
    ] = None,
    page: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    check_seconds: Annotated[
        float,
        typer.Option(min=0.0, help="The checker begins no further size after this time; 0: it does not run."),
    ] = 4.0,
    measure: Annotated[bool, typer.Option(help="Time the kernel if the target runs on this machine.")] = True,
) -> None:
    """Write one page about a kernel: its lines, graph, schedule, passes, layouts, pipeline, machine code.

    The page loads nothing, so that it can be sent. What this machine cannot show, it says.
    """
    choose("target", target, tuple(TARGETS))
    if arch is not None:
        target_named(target).architecture(arch)
    check_output(page)
    defaults = {"dtype": dtype, "layout": layout, "precision": precision}
    subject, note = _subject(operation, given or [], shape or [], constant or [], defaults, target, arch)
    with working("making the report"):
        made = KernelReport(KernelFacts(subject, target, arch, check_seconds, measure, note).record())
        text = made.page.encode()
    tell(**made.facts, page=str(page))
    made.save(page)
    if not is_standard_output(page):
        say("kernel", f"{subject}, for {target} {made.facts['arch']}")
        for name, why in made.missing.items():
            say("", f"{name}: {why.partition(chr(10))[0]}")
        say("wrote", f"{page}: {size(len(text))}")


def _subject(
    operation: str,
    given: Sequence[str],
    shapes: Sequence[str],
    constants: Sequence[str],
    defaults: dict[str, str],
    target: str,
    arch: str | None,
) -> tuple[TuningSubject, str]:
    """Return the kernel that the command line names, and a remark on how it was found."""
    words = [text for text in given if ARRAY.fullmatch(text) is None]
    arrays = [text for text in given if ARRAY.fullmatch(text) is not None]
    if ".py" not in operation:
        choose("operation", operation, OPERATIONS)
    if arrays and operation != "gemm":
        shapes = [*_named(operation, arrays, len(words), constants), *shapes]
        given = words
    must_plan = ".py" not in operation and operation != "gemm" and is_absent(target, arch)
    planned = CPU.name if must_plan else target
    found = subjects(operation, given, shapes, constants, defaults, planned, EXAMPLE)
    if len(found) != 1:
        raise UsageError(f"{len(found)} problems; a report is about one; nearest: {EXAMPLE}")
    (subject,) = found
    if must_plan and isinstance(subject, OperationLaunch):
        return rescheduled(subject, target), PLANNED
    return subject, ""


def _named(operation: str, arrays: Sequence[str], words: int, constants: Sequence[str]) -> list[str]:
    """Return the arrays as options with names; arrays without a name are the arguments in their order."""
    if ".py" in operation:
        bound, _ = bound_in_file(operation, constants, "gemm, or an operation")
        names = [one.name for one in bound.program.parameters if one.kind == "tensor"]
    else:
        function: Any = getattr(sys.modules["tilewright"], operation)
        names = [*inspect.signature(function).parameters][words:]
    if len(arrays) > len(names):
        raise UsageError(f"{len(arrays)} arrays; {operation} takes {', '.join(names)}")
    given = iter(names)
    return [text if "=" in text else f"{next(given)}={text}" for text in arrays]
