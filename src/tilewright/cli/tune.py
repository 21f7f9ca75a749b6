"""`tilewright tune` and `profile`: measure the candidates of kernels; keep the fastest, or show all."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.argument_checks import read_whole
from tilewright.cli.console import (
    Constants,
    Element,
    ExactOrTf32,
    MostCandidates,
    OperandLayout,
    Processes,
    Seed,
    TargetName,
    UsageError,
    choose,
    choose_precision,
    duration,
    reports,
    say,
    tell,
)
from tilewright.cli.export import read_arrays
from tilewright.cli.matrices import LAYOUTS, check_memory, chosen_dtype
from tilewright.dataflow.nodes import EXACT, TF32
from tilewright.errors import LaunchError
from tilewright.inspect.from_files import arrays_by_extents, bound_in_file, read_constants
from tilewright.runtime.cache import Cache
from tilewright.runtime.drivers import driver_for
from tilewright.runtime.environment import CACHE_DIR, usable_processors
from tilewright.runtime.kernel import Bound
from tilewright.runtime.outputs import check_output
from tilewright.runtime.specimens import Specimen
from tilewright.runtime.tables import user_table, version_of
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import CPU, TARGETS
from tilewright.tune.contest import Readings, watched
from tilewright.tune.figures import Roofs, draw_roofline, roofs
from tilewright.tune.gemm import Gemm, OperationLaunch
from tilewright.tune.journal import TuningFiles
from tilewright.tune.machine import machine
from tilewright.tune.measure import Effort
from tilewright.tune.profiling import Profile, constants_source, reasons_of
from tilewright.tune.profiling import profile as profiled
from tilewright.tune.subject import TuningSubject, by_name
from tilewright.tune.tuner import Tuner

# ---------------------------------------------------------------- products to measure, and a progress bar


OPERATIONS = (
    "gemm",
    "matmul",
    "scaled_mm",
    "gated_matmul",
    "complex_matmul",
    "einsum",
    "reduced_matmul",
    "grouped_matmul",
    "gram",
    "attention",
    "attention_backward",
    "gemm_chain",
)
"""The operations that can be tuned and profiled: `gemm` by its extents, the others by their arrays."""

WHAT = (
    "gemm: C = A @ B; path/to/file.py:name: a kernel of a file; or an operation such as attention, "
    "whose last kernel is measured."
)

Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=EXTENTS:DTYPE[:STRIDES]",
        help="An array of a kernel or an operation, as of tilewright export, e.g. A=4096x4096:bf16; an array "
        "that is given again begins the next problem. For a kernel in a file also the extents of its "
        "dimensions, e.g. M=4096,N=4096, with --dtype.",
        show_default=False,
    ),
]

Extents = tuple[int, int, int]
FIELDS = ("shape", "dtype", "layout", "precision")
"""Fields of a product in a file."""


@dataclass(frozen=True)
class KernelInFile(TuningSubject):
    """A kernel of a Python file on arrays of given shapes.

    Args:
        where: ``path/to/file.py:name``; see `bound_in_file`.
        constants: ``NAME=EXPRESSION`` for each constant and number of the kernel.
        arrays: specimens of its arrays, in the order of its parameters.
        target: where it is computed.

    Raises:
        LaunchError: the file or the kernel does not exist, or a number is missing.
    """

    where: str
    constants: tuple[str, ...]
    arrays: tuple[Specimen, ...]
    target: str

    def __str__(self) -> str:
        return f"{self.where.rpartition(':')[2]} of {by_name(self.named)} on {self.target}"

    @cached_property
    def _loaded(self) -> tuple[Bound, dict[str, Any]]:
        return bound_in_file(self.where, self.constants, "gemm, or an operation")

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Specimens of the arrays, and the numbers."""
        bound, numbers = self._loaded
        arrays, found = iter(self.arrays), list[Any]()
        for one in bound.program.parameters:
            if one.kind != "tensor" and one.name not in numbers and one.default is None:
                raise LaunchError(
                    f"kernel {bound.program.name} takes the number {one.name}", f"--set {one.name}=1"
                )
            found.append(next(arrays) if one.kind == "tensor" else numbers.get(one.name, one.default))
        return tuple(found)

    def bound(self, schedule: Schedule | None = None) -> Bound:
        """Return the kernel under a schedule; default: the schedule that the library chooses."""
        bound, _ = self._loaded
        return bound if schedule is None else bound.under(schedule)

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs: it loads the file itself."""
        names = ("where", "constants", "arrays", "target")
        return {name: self.__dict__[name] for name in names}


def subjects(
    operation: str,
    given: Sequence[str],
    shapes: Sequence[str],
    constants: Sequence[str],
    defaults: Mapping[str, str],
    target: str,
    example: str,
) -> list[TuningSubject]:
    """Return the kernels that the command line names.

    Args:
        operation: one of `OPERATIONS`, or a kernel of a file.
        given: for gemm, as in `products`; for an operation, the arguments before its arrays.
        shapes: arrays of a kernel or an operation; see `read_arrays`.
        constants: ``NAME=EXPRESSION`` for constants and numbers.
        defaults: as in `products`.
        target: the target that computes them.
        example: a correct command, for messages.

    Raises:
        UsageError: the request cannot be served; says what to ask instead.
        LaunchError: the file or the kernel does not exist, or the operation refuses the arrays.
    """
    choose("target", target, tuple(TARGETS))
    if ".py" in operation:
        if given:
            raise UsageError(f"{' '.join(given)}: arrays of a kernel have names; nearest: --shape A=8x8:f32")
        bound, _ = bound_in_file(operation, constants, "gemm, or an operation")
        tensors = [one.name for one in bound.program.parameters if one.kind == "tensor"]
        shapes = [arrays_by_extents(one, defaults["dtype"], bound.program) for one in shapes]
        return [
            KernelInFile(operation, tuple(constants), tuple(one[name] for name in tensors), target)
            for one in read_arrays(shapes, tensors, tensors, "the kernel")
        ]
    choose("operation", operation, OPERATIONS)
    if operation == "gemm":
        if shapes or constants:
            raise UsageError("gemm takes extents M N K; nearest: matmul --shape a=8x8:f32 --shape b=8x8:f32")
        return [*products(given, defaults, target, example)]
    module = sys.modules["tilewright"]
    known = inspect.signature(getattr(module, operation)).parameters
    words = read_constants(constants, module)
    if unknown := [name for name in words if name not in known]:
        raise UsageError(f"--set {unknown[0]}: {operation} takes {', '.join(known)}")
    problems = read_arrays(shapes, [*known], (), operation)
    if not problems:
        raise UsageError(f"{operation} has no arrays; nearest: --shape {next(iter(known))}=64x64:f16")
    needed = [name for name, one in known.items() if one.default is one.empty][len(given) :]
    for problem in problems:
        if missing := [name for name in needed if name not in problem and name not in words]:
            raise UsageError(f"{operation} needs {missing[0]} too; nearest: --shape {missing[0]}=64x64:f16")
    return [OperationLaunch.of(operation, one, words, target, given) for one in problems]


def products(given: Sequence[str], defaults: Mapping[str, str], target: str, example: str) -> list[Gemm]:
    """Return the products that the command line names.

    Args:
        given: extents M N K, three for each product, MxNxK, or names of files of JSON.
        defaults: ``dtype`` of A and B, their ``layout``, and the ``precision`` of f32, if a file has none.
        target: the target that computes them.
        example: a correct command, for messages.

    Raises:
        UsageError: the request cannot be served; says what to ask instead.
    """
    found: list[dict[str, Any]] = []
    numbers: list[str] = []
    for text in given:
        if text.endswith(".json"):
            found += _read(Path(text))
        else:
            numbers += text.split("x") if re.fullmatch(r"\d+x\d+x\d+", text) else [text]
    if len(numbers) % 3 or not (numbers or found):
        raise UsageError(
            f"{len(numbers)} extents ({' '.join(numbers)}); give three for each product, e.g. {example}"
        )
    extents = [read_whole("an extent", text, example) for text in numbers]
    found += [{"shape": extents[at : at + 3]} for at in range(0, len(extents), 3)]
    made: dict[Gemm, None] = {}  # without duplicates, in their order
    for product in found:
        one = {**defaults, **product}
        shape = one["shape"]
        is_whole = isinstance(shape, list) and all(type(extent) is int and extent > 0 for extent in shape)
        if not is_whole or len(shape) != 3:
            raise UsageError(f"extents {shape}; the extents M N K must be three positive whole numbers")
        element = chosen_dtype(str(one["dtype"]))
        choose("layout", str(one["layout"]), LAYOUTS)
        choose_precision(str(one["precision"]), (EXACT, TF32), element.name)
        m, n, k = shape
        check_memory((m, n, k), element)
        made[Gemm((m, n, k), element.name, one["layout"], one["precision"], target)] = None
    return list(made)


def _read(path: Path) -> list[dict[str, Any]]:
    """Read products from a file: a list of extents [M, N, K], or of objects with the fields `FIELDS`."""
    nearest = 'e.g. [[512, 512, 512], {"shape": [64, 64, 4096], "dtype": "bf16", "layout": "nt"}]'
    try:
        listed = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON: {error}; {nearest}") from None
    rows = listed if isinstance(listed, list) else []
    found = [{"shape": one} if isinstance(one, list) else one for one in rows]
    for one in found or [None]:
        if not isinstance(one, dict) or "shape" not in one or not {*one} <= {*FIELDS}:
            raise UsageError(f"{path} is no list of products; {nearest}")
    return found


class ProgressBar:
    """A bar on a terminal for each step. It is drawn between measurements, so that it disturbs none."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._tasks: dict[str, Any] = {}

    def __call__(self, step: str, done: int, total: int) -> None:
        """Show how much of a step is done."""
        if self._shown is None:
            return
        if step not in self._tasks:
            self._tasks[step] = self._shown.add_task(step, total=total)
        self._shown.update(self._tasks[step], completed=done, total=total)
        self._shown.refresh()

    @contextlib.contextmanager
    def drawn(self) -> Iterator[None]:
        """Draw the bar on the standard error, if that is a terminal, and remove it afterwards."""
        if sys.stderr is None or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        with Progress(*columns, console=console, auto_refresh=False, transient=True) as self._shown:
            try:
                yield
            finally:
                self._shown, self._tasks = None, {}


@contextlib.contextmanager
def read_clocks(target: str) -> Iterator[Readings | None]:
    """Record clocks and power of a target's device in this context; yield None if it has no device."""
    if driver_for(target) is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "clocks.csv")
        with watched(path):
            yield Readings(path)


# ---------------------------------------------------------------- `tilewright tune`


EXAMPLE = "tilewright tune gemm 512 512 512 64 64 4096"


@reports
def tune(
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help=WHAT)],
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="M N K … | MxNxK … | FILE.json …",
            help="Extents of products, three each, or files: lists of [M, N, K], or of objects with shape, "
            "dtype, layout, precision. Of einsum, its subscripts.",
        ),
    ] = None,
    shape: Shapes = None,
    constant: Constants = None,
    dtype: Element = "f32",
    layout: OperandLayout = "nn",
    precision: ExactOrTf32 = "exact",
    target: Annotated[str, typer.Option(help="Which target runs it: cpu or cuda.")] = CPU.name,
    seconds: Annotated[
        float,
        typer.Option(min=0.0, help="For how long each candidate is timed, in turns with the untuned choice."),
    ] = 0.2,
    most: MostCandidates = None,
    processes: Processes = None,
    table: Annotated[
        Path | None,
        typer.Option(
            help="The table. Default: this machine's, in the cache's directory.", show_default=False
        ),
    ] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Set earlier measurements aside and start again.")
    ] = False,
    seed: Seed = 0,
) -> None:
    """Find the fastest schedule of each kernel, and make later calls use it.

    Every candidate is compared with a float64 reference on a poisoned output, and timed in turns with the
    untuned choice on arrays that no cache holds; each outcome is on disk before the next candidate begins, so
    that the same command continues after a kill. The fastest are timed once more together, and the winner is
    verified again on other numbers, every element.

    Exit status: 0, 1 when the untuned choice computes something wrong, 2 when the request cannot be served.
    """
    defaults = {"dtype": dtype, "layout": layout, "precision": precision}
    found = subjects(operation, given or [], shape or [], constant or [], defaults, target, EXAMPLE)
    if not found:
        raise UsageError(f"{operation} has no arrays; nearest: --shape A=64x64:f16")
    question = found[0].question()
    if question is None:
        raise UsageError(
            f"{found[0]} is explicit: its author chose the schedule; nearest: tw.steps in its body"
        )
    version = version_of(question.arch, question.processors)
    if version is None:
        raise UsageError(
            f"target {target} is not measured, so it has no tables; nearest: --target {CPU.name}"
        )
    cache = Cache.default()
    if table is None and (reason := cache.distrust()) is not None:
        raise UsageError(
            f"{cache.root} is not used: {reason}; nearest: --table, or {CACHE_DIR}, in a directory that "
            "nobody else may write"
        )
    files = TuningFiles(
        table or user_table(version), version, renew=renew, say=lambda text: say("aside", text)
    )
    effort, bar = Effort(seconds=seconds, warm_up_seconds=seconds / 5, least=5), ProgressBar()
    kept = list[dict[str, Any]]()
    tell(tuned=kept, table=str(files.path))
    for subject in found:
        tuner = Tuner(subject, files.journal, effort, processes or usable_processors(), most, seed, bar)
        with bar.drawn():
            tuned = tuner.run()
        entry = tuned.entry
        files.add([entry])
        kept.append({"problem": str(subject), "speed": str(tuned.speed), **entry.record()})
        took, tflops = duration(entry.us / 1e6), subject.flops / entry.us / 1e6
        say("tuned", f"{subject}: {took}, {tflops:.4g} TFlops, {entry.schedule}")
        say("", f"{tuned.speed} times as fast as the untuned choice; verified again on other numbers")
        say("", f"{tuned.measured} measured now, {tuned.known} known, {len(tuned.refused)} refused or wrong")
        for schedule, why in tuned.refused.items():
            if why.startswith(("wrong", "not compiled")):
                say("", f"{schedule}: {why.partition(chr(10))[0]}")
    say("table", str(files.path))


# ---------------------------------------------------------------- `tilewright profile`


PROFILE_EXAMPLE = "tilewright profile gemm 512 512 512"
WIDE = 160
"""Width of a table that is not written to a terminal."""


@reports
def profile(
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help=WHAT)],
    extents: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="M N K | MxNxK", help="Extents of A (M, K) and B (K, N). Of einsum, its subscripts."
        ),
    ] = None,
    shape: Shapes = None,
    constant: Constants = None,
    dtype: Element = "f32",
    layout: OperandLayout = "nn",
    precision: ExactOrTf32 = "exact",
    target: TargetName = CPU.name,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="For how long each candidate is timed, in turns with all others.")
    ] = 0.2,
    most: MostCandidates = None,
    processes: Processes = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the roofline: .png, .svg or .pdf.")
    ] = None,
    seed: Seed = 0,
    why: Annotated[
        bool,
        typer.Option("--why", help="Only say the parts of the estimated time: the choice and the runner-up."),
    ] = False,
    arch: Annotated[
        str | None, typer.Option(help="With --why: an architecture, e.g. sm_80. Default: this machine's.")
    ] = None,
) -> None:
    """List every schedule that the rules propose for a kernel: its time, or why it is refused.

    Each is compared with a float64 reference first, on an output that was poisoned. Those that are right are
    timed in turns with each other and with NumPy (cuda: PyTorch), on arrays that no cache holds.

    Exit status: 0, 1 when a candidate computes something wrong, 2 when the request cannot be served.
    """
    defaults = {"dtype": dtype, "layout": layout, "precision": precision}
    given = (extents or [], shape or [], constant or [])
    found = subjects(operation, *given, defaults, target, PROFILE_EXAMPLE)
    if len(found) != 1:
        raise UsageError(f"{len(found)} products; profile takes one, tilewright tune takes several")
    if plot is not None:
        check_output(plot)
    bar, (subject,) = ProgressBar(), found
    if why or arch is not None:
        if not why:
            raise UsageError(
                f"--arch {arch} without --why: candidates are measured on this machine; nearest: --why"
            )
        _explain(subject, arch)
        return
    with read_clocks(target) as readings:
        with bar.drawn():
            made = profiled(
                subject,
                effort=Effort(seconds=seconds, warm_up_seconds=seconds / 5, least=3),
                processes=processes or usable_processors(),
                most=most,
                seed=seed,
                progress=bar,
                readings=readings,
            )
        about = machine(target)
        question = subject.question()
        assert question is not None, "what was profiled has a flow"
        roof = roofs(about, question.arch, *subject.multiplies)
        _show(made, roof)
    tell(benchmark="profile", machine=about.record(), roofs=roof.record(), **made.record())
    if plot is not None:
        rates = {timing.name: made.result.tflops(timing.name) for timing in made.result.taken.timings}
        best, title = "", f"{subject}: nothing measured"
        if made.measured:
            best = made.measured[0].name
            title = f"{subject}: {duration(made.result.taken[best].us.median / 1e6)}"
        draw_roofline(plot, roof, subject.flops / subject.bytes, rates, title, best)
        say("plot", str(plot))
    if any(row.against.startswith("wrong") for row in made.rows):
        raise typer.Exit(1)


def _explain(subject: TuningSubject, arch: str | None) -> None:
    """Print the parts of the estimated times of the choice and of the runner-up."""
    from rich.console import Console
    from rich.table import Table

    found, source = reasons_of(subject, arch), constants_source(subject, arch)
    names = ("choice", "runner-up")
    tell(benchmark="why", problem=str(subject), constants=source)
    tell(**{name: one.record() for name, one in zip(names, found, strict=False)})
    table = Table("part", *(f"{name}, us" for name in names[: len(found)]))
    records = [one.record() for one in found]
    for part in records[0]["parts_us"]:
        table.add_row(part.replace("_", " "), *(f"{one['parts_us'][part]:.2f}" for one in records))
    for part in ("main_loop_us", "total_us"):
        table.add_row(part.removesuffix("_us").replace("_", " "), *(f"{one[part]:.2f}" for one in records))
    Console(file=sys.stdout, markup=False, highlight=False, width=WIDE).print(table)
    for name, one in zip(names, found, strict=False):
        say(name, f"{one.candidate.schedule}")
        say("", f"limited by {one.parts.limit}; by the rule: {one.candidate.rule}")
    say("constants", source)


def _show(made: Profile, roof: Roofs) -> None:
    """Print the table, then the best schedule, the untuned choice, and the schedule of `tw.matmul`."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout, markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(file=sys.stdout, markup=False, highlight=False, width=WIDE)
    table = Table(
        "", "ms [95 %]", "TFlops", "GB/s", "model", "K parts", "rule", "schedule, or why it was not measured"
    )
    ranked = made.measured
    for row in (*ranked, *(row for row in made.rows if row.against)):
        schedule = repr(row.candidate.schedule).removeprefix("tw.Schedule")
        rates = ["", "", ""] if row.against else _rates(made, row.name)
        why = row.against.partition("\n")[0] if row.against else schedule
        estimate = f"{made.relative(row):.2f}"
        table.add_row(row.name, *rates, estimate, row.splits, row.candidate.rule, why)
    for name in made.rivals:
        table.add_row(name, *_rates(made, name), "", "", "", "")
    console.print(table)
    text = f"{made.subject}; {made.subject.flops:.4g} operations, {made.subject.bytes:.4g} bytes at least"
    say("problem", text)
    intensity = made.subject.flops / made.subject.bytes
    most = f"{roof.at(intensity) / 1e12:.4g} TFlops at {intensity:.4g} operations per byte"
    say("roof", f"{most}; {roof.source}")
    sets, each, cache = made.result.buffers.values()
    cold = f"{sets} sets of arrays of {each} bytes used in turn; the second-level cache has {cache}"
    say("numbers", f"{made.result.subject.distribution}; {cold}")
    if made.result.clock:
        say("clock", ", ".join(f"{value:.4g} {name}" for name, value in made.result.clock.items()))
    say("", f"medians [95 % interval] in turns; {made.result.taken.how}")
    if not ranked:
        return
    best, untuned = ranked[0], made.rows[0]
    say("best", f"{best.name}: {best.candidate.schedule}")
    if not untuned.against:
        speed = made.result.taken.speed(untuned.name, best.name) if untuned != best else 1
        place = f"{ranked.index(untuned) + 1} of {len(ranked)}, {speed} times as fast as the best"
        say("untuned", f"{place}; by the rule: {untuned.candidate.rule}")
    now = made.subject.bound().schedule_for(*made.subject.arguments, target=made.subject.target)
    if now != untuned.candidate.schedule:
        say("now", f"a table of measured schedules selects another one: {now}")


def _rates(made: Profile, name: str) -> list[str]:
    us = made.result.taken[name].us
    ms = f"{us.median / 1e3:.4g} [{us.low / 1e3:.4g}, {us.high / 1e3:.4g}]"
    return [ms, f"{made.result.tflops(name):.4g}", f"{made.result.gbytes(name):.4g}"]
