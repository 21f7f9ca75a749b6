"""`tilewright inspect`: a kernel's IR, generated source, resources, notes; a GPU only to measure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.console import (
    Constants,
    UsageError,
    choose,
    choose_precision,
    duration,
    reports,
    tell,
    working,
)
from tilewright.cli.notation import read_schedule
from tilewright.dataflow.nodes import EXACT, TF32
from tilewright.errors import LegalityError
from tilewright.inspect.comparison import compare, require_gpu
from tilewright.inspect.from_files import from_file, listed
from tilewright.inspect.isa.making import isa_report
from tilewright.inspect.isa.report import page
from tilewright.inspect.report import after as kernel_after
from tilewright.inspect.report import counters, difference, resources
from tilewright.inspect.report import listed as listed_passes
from tilewright.inspect.subject import Subject, library_gemm
from tilewright.runtime.outputs import check_output, is_standard_output, output
from tilewright.targets.target import CPU, CUDA, TARGETS

DTYPE = "f32"


@reports
def inspect(
    kernel: Annotated[
        str,
        typer.Argument(
            help="gemm, the library's; path/to/file.py, to list its kernels; or path/to/file.py:name, a "
            "kernel or a bound kernel; or NAME[key]."
        ),
    ] = "gemm",
    target: Annotated[str, typer.Option(help="What to compile for: cpu, cuda, hip or reference.")] = CPU.name,
    arch: Annotated[
        str | None,
        typer.Option(help="Architecture, e.g. sm_80 or gfx942. Default: this machine's.", show_default=False),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Element type of every array, or one for each: A=i8,B=i8,C=i32.", show_default=DTYPE
        ),
    ] = None,
    shape: Annotated[
        str, typer.Option(help="Extents: MxNxK, or by the names of dimensions: M=3840,N=4096,K=4096.")
    ] = "4096x4096x4096",
    layout: Annotated[
        str, typer.Option(help="How A and B of gemm lie in memory, as in gemm --layout.")
    ] = "nn",
    precision: Annotated[str, typer.Option(help="How gemm multiplies f32: exact or tf32.")] = "exact",
    constant: Constants = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION",
            help="How gemm is computed, as Python: tw.Schedule(...). Default: as tw.matmul would.",
            show_default=False,
        ),
    ] = None,
    flow: Annotated[
        bool, typer.Option("--flow", help="The flow of a dataflow kernel, and its schedule.")
    ] = False,
    ir: Annotated[
        bool, typer.Option("--ir", help="The traced kernel, made explicit by its schedule.")
    ] = False,
    passes: Annotated[
        bool, typer.Option("--passes", help="The target's passes in their order, and the choices of each.")
    ] = False,
    after: Annotated[
        list[str] | None,
        typer.Option(
            "--after",
            metavar="PASS",
            help="The kernel after a pass, by its name in --passes; given twice, the difference of the two.",
        ),
    ] = None,
    source: Annotated[bool, typer.Option("--source", help="The generated text.")] = False,
    resource: Annotated[
        bool, typer.Option("--resources", help="Registers, shared bytes, spills, width of each copy.")
    ] = False,
    isa: Annotated[
        bool,
        typer.Option(
            "--isa",
            help="The main loop in machine code with the author's lines and arrays: instructions, widths, "
            "registers, occupancy, bank conflicts. For hip; for cuda with `nvdisasm`. No GPU needed.",
        ),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the output of --isa as a page.", show_default=False),
    ] = None,
    notes: Annotated[bool, typer.Option("--notes", help="Choices that the target made.")] = False,
    count: Annotated[
        bool,
        typer.Option(
            "--counters",
            help="Sectors, counted by the reference on a few blocks, and bank conflicts: for cuda those that "
            "are predicted of the compiled kernel, else counted too.",
        ),
    ] = False,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Bank conflicts, sectors and time of one launch on random data, by Nsight Compute, next "
            "to the predictions. Needs a GPU and `ncu`.",
        ),
    ] = False,
    launch: Annotated[bool, typer.Option("--launch", hidden=True)] = False,
) -> None:
    """Show how a kernel is compiled; without options its schedule, resources and notes.

    Compiles for GPUs that this machine lacks; only --measure runs the kernel.
    """
    choose("target", target, tuple(TARGETS))
    if kernel.endswith(".py"):
        typer.echo(listed(Path(kernel)))
        return
    if (measure or launch) and not TARGETS[target].counters:
        near = "nearest: --target cuda, or --counters"
        text = f"--measure reads the counters of a GPU, and target {target} has none; {near}"
        raise UsageError(text)
    if html is not None:
        if not isa:
            raise UsageError("--html is the page of what --isa shows", "--isa --html FILE")
        check_output(html)
    ncu = require_gpu(arch) if measure else ""
    chosen, dtype = dtype is not None, dtype or DTYPE
    if kernel == "gemm":
        choose_precision(precision, (EXACT, TF32), dtype)
        subject = library_gemm(dtype, shape, layout, precision, read_schedule(schedule))
    else:
        given = [*(constant or ()), *([] if schedule is None else [f"schedule={schedule}"])]
        subject = from_file(kernel, dtype, shape, given)
    if launch:
        subject.launch()
        return
    if measure:
        subject.require_numbers()
    asked = {"flow": flow, "ir": ir, "passes": passes, "source": source, "notes": notes}
    asked["resources"] = resource
    shown = {name for name, is_shown in asked.items() if is_shown}
    if not (shown or after or isa or count or measure):
        shown = {"resources", "notes"}
    try:
        parts = _parts(subject, target, arch, shown, after or [])
    except LegalityError as error:
        # If the kernel is illegal for the default dtype, name a dtype that is legal.
        if chosen or (legal := subject.legal_dtype()) is None:
            raise
        raise UsageError(
            f"{error}\n\nwithout --dtype all arrays are of {DTYPE}", f"--dtype {legal}"
        ) from error
    if isa:
        with working(f"compiling for {target}"):
            report = isa_report(subject, target, arch)
        if html is None:
            parts.append(str(report))
        else:
            with output(html) as file:
                file.write(page(report).encode())
            parts.append("" if is_standard_output(html) else f"wrote {html}")
    if count:
        with working("running on the reference"):
            lowered = subject.compile(target, arch) if TARGETS[target].warps else None
            parts.append(counters(subject.on_reference(target, arch), lowered))
    if measure:
        given = [word for text in constant or () for word in ("--set", text)]
        given += [] if schedule is None else ["--schedule", schedule]
        again = ("--dtype", dtype, "--shape", shape, "--layout", layout, "--precision", precision, *given)
        with working("compiling for cuda"):
            subject.compile(CUDA.name)
        with working("measuring with Nsight Compute"):
            found = compare(subject, ncu, [kernel, "--target", target, *again])
        about = f"{found.kernel} on {found.arch}, one launch on random data, measured by Nsight Compute"
        parts.append(f"{about}\n{found}")
    tell(kernel=kernel, target=target, parts=[part.rstrip().splitlines() for part in parts if part])
    typer.echo("\n\n".join(part.rstrip() for part in parts if part))


def _parts(subject: Subject, target: str, arch: str | None, shown: set[str], after: list[str]) -> list[str]:
    """Return the flow, the passes, the traced kernel, its text, its resources and notes, as far as shown.

    Args:
        subject: the kernel.
        target: the target that it is compiled for.
        arch: the architecture; None: this machine's.
        shown: the names of the parts to show.
        after: the pass after which the kernel is shown, or two passes whose difference is shown.
    """
    parts = [subject.flow()] if "flow" in shown else []
    if shown & {"flow", "resources"} and (schedule := subject.schedule(target, arch)) is not None:
        tell(schedule=repr(schedule))
        parts.append(f"schedule: {schedule}")
    if len(after) > 2:
        nearest = f"--after {after[0]} --after {after[-1]}"
        raise UsageError(f"--after is given {len(after)} times", nearest)
    if "passes" in shown or after:
        stages = subject.stages(target, arch)
        parts += [listed_passes(stages)] if "passes" in shown else []
        if after:
            parts.append(difference(stages, *after) if len(after) == 2 else kernel_after(stages, after[0]))
    parts += [subject.trace(target, arch)] if "ir" in shown else []
    # The text and the notes need no compiler.
    listing = subject.listing(target, arch) if shown & {"source", "notes"} else None
    if "source" in shown:
        parts.append(subject.trace(target, arch) if listing is None else listing.text)
    if "resources" in shown:
        with working(f"compiling for {target}"):
            made = subject.compile(target, arch)
        tell(arch=made.arch, resources=dict(made.resources), threads=made.kernel.threads)
        cached = "found in the cache" if made.cached else "made"
        parts.append(f"{made.kernel.name} {cached} in {duration(made.seconds)}\n{resources(made)}")
    if "notes" in shown and listing is not None:
        tell(notes=list(listing.notes))
        parts.append("\n".join(f"note: {note}" for note in listing.notes))
    return parts
