"""Predicted and measured memory traffic of a launch, compared."""

from __future__ import annotations

import csv
import operator
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from tilewright.errors import LaunchError, ToolchainError, UnknownCountError
from tilewright.inspect.executions import executions
from tilewright.inspect.subject import Subject
from tilewright.ir.async_ops import MmaAsync
from tilewright.ir.copies import is_by_threads
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Copy, Op
from tilewright.runtime.binding import Binding
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.targets.simt.banks import Conflicts, conflicts_of, in_shared
from tilewright.targets.target import CUDA

# ----------------------------------------------------------------
# Measured: the GPU's counters, read by Nsight Compute.
#
# `ncu` starts a program, repeats its kernel to read all counters, and prints them as CSV.


LOADS, LOAD_PASSES = "shared loads", "wavefronts of loads"
MATRIX_LOADS, MATRIX_LOAD_PASSES = "ldmatrix", "wavefronts of ldmatrix"
STORES, STORE_PASSES = "shared stores", "wavefronts of stores"
MATRIX_STORES, MATRIX_STORE_PASSES = "stmatrix", "wavefronts of stmatrix"
ASYNC_PASSES = "wavefronts of cp.async"
PASSES, FEWEST, CONFLICTS = "all wavefronts", "fewest wavefronts", "bank conflicts"
LOAD_WAITS, STORE_WAITS, WAITS = "delays of loads", "delays of stores", "conflicts and waits for other warps"
DURATION, REGISTERS = "duration (us)", "registers per thread"

_INSTRUCTIONS = "smsp__sass_inst_executed_op"
_WAVEFRONTS = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op"
_DELAYS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op"

METRICS: Mapping[str, str] = {
    f"{_INSTRUCTIONS}_shared_ld.sum": LOADS,
    f"{_WAVEFRONTS}_ld.sum": LOAD_PASSES,
    f"{_INSTRUCTIONS}_ldsm.sum": MATRIX_LOADS,
    f"{_WAVEFRONTS}_ldsm.sum": MATRIX_LOAD_PASSES,
    f"{_INSTRUCTIONS}_shared_st.sum": STORES,
    f"{_WAVEFRONTS}_st.sum": STORE_PASSES,
    f"{_INSTRUCTIONS}_shared_stsm.sum": MATRIX_STORES,
    f"{_WAVEFRONTS}_stsm.sum": MATRIX_STORE_PASSES,
    f"{_WAVEFRONTS}_ldgsts.sum": ASYNC_PASSES,
    "memory_l1_wavefronts_shared": PASSES,
    "memory_l1_wavefronts_shared_ideal": FEWEST,
    f"{_DELAYS}_ld.sum": LOAD_WAITS,
    f"{_DELAYS}_st.sum": STORE_WAITS,
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "global load requests",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "global load sectors",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": "global store requests",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": "global store sectors",
    "dram__bytes.sum": "DRAM bytes",
    "gpu__time_duration.sum": DURATION,
    "launch__registers_per_thread": REGISTERS,
}
"""Nsight Compute's name of each figure, and ours.

Wavefronts are counted per instruction. They are a property of the kernel, equal in every run.  The hardware's
counters of bank conflicts, `LOAD_WAITS` and `STORE_WAITS`, also count waits of a warp for other warps, and
differ from run to run: on an H200 about 1900 for the stores of example 02 at 512 x 384 x 320, although no two
lanes of a warp access the same bank.
"""

_KERNEL, _METRIC, _UNIT, _VALUE = "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"
_UNITS = {"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "ns": 1e-3, "nsecond": 1e-3}
_UNITS |= {"ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}
_NUMBER = re.compile(r"\d+(,\d{3})*(\.\d+)?|\d+(\.\d+)?([eE][+-]?\d+)?")
_ABSENT = ("", "n/a", "no data", "nan")


def require_gpu(arch: str | None = None) -> str:
    """Return the path of `ncu`, if a kernel can be measured here.

    Args:
        arch: the architecture of the command line.

    Raises:
        ToolchainError: the GPU or `ncu` is missing.
        LaunchError: the GPU has another architecture.
    """
    if not CUDA_DRIVER.device_count():
        raise ToolchainError(
            "no GPU here to measure on; without one, --counters counts bank conflicts on the reference"
        )
    there = CUDA_DRIVER.device().arch
    if arch not in (None, there):
        raise LaunchError(f"cannot measure for {arch}: this machine's GPU is {there}; leave --arch out")
    found = shutil.which("ncu")
    if found is None:
        raise ToolchainError(
            "no `ncu` on PATH; it comes with the CUDA toolkit, or with Nsight Compute alone; "
            "without it, --counters counts bank conflicts on the reference"
        )
    return found


def command(ncu: str, entry: str, arguments: Sequence[str]) -> list[str]:
    """Return the command that measures the first launch of a kernel by a `tilewright` command.

    Args:
        ncu: the program.
        entry: the kernel's name.
        arguments: the arguments of `tilewright`.
    """
    # Clocks are left alone: they change no count, and setting them needs additional rights.
    watch = ["--csv", "--target-processes", "all", "--clock-control", "none", "--launch-count", "1"]
    which = ["--kernel-name", entry, "--metrics", ",".join(METRICS)]
    return [ncu, *watch, *which, sys.executable, "-m", "tilewright", *arguments]


def measured(ncu: str, entry: str, arguments: Sequence[str]) -> dict[str, float]:
    """Measure the first launch of a kernel by a `tilewright` command; returns figures by our names.

    Args:
        ncu: the program.
        entry: the kernel's name.
        arguments: the arguments of `tilewright`.

    Raises:
        ToolchainError: the counters may not be read, or `ncu` or the command failed; quotes their output.
    """
    watched = command(ncu, entry, arguments)
    done = subprocess.run(watched, capture_output=True, text=True, encoding="utf-8", errors="replace")
    said = f"{done.stdout}\n{done.stderr}"
    if "ERR_NVGPUCTRPERM" in said:
        raise ToolchainError(
            "this user may not read the GPU's counters (ERR_NVGPUCTRPERM); an administrator may, or can "
            "allow it with the driver's option NVreg_RestrictProfilingToAdminUsers=0; --counters does not "
            "need this permission"
        )
    if done.returncode:
        raise ToolchainError(f"`ncu` failed with status {done.returncode}:\n{_last(said)}")
    try:
        return parse(done.stdout, entry)
    except ToolchainError as error:
        raise ToolchainError(f"{error}; it said:\n{_last(said)}") from None


def _last(said: str) -> str:
    lines = [line.rstrip() for line in said.splitlines() if line.strip() and not line.startswith('"')]
    return "\n".join(lines[-8:]) or "nothing"


def parse(text: str, entry: str) -> dict[str, float]:
    """Read the figures of the first launch of a kernel from the output of `ncu`, by our names.

    Times are in microseconds, sizes in bytes.  Figures that `ncu` lacks are left out.

    Args:
        text: the output: CSV, with other lines between.
        entry: the kernel's name.

    Raises:
        ToolchainError: the output has no figure of the kernel, or a line is damaged.
    """
    found: dict[str, float] = {}
    first = None
    for row in _rows(text):
        launch, name, value = row["ID"], row[_METRIC], row[_VALUE].strip()
        if row[_KERNEL].partition("(")[0] != entry or name not in METRICS or value.lower() in _ABSENT:
            continue
        first = launch if first is None else first
        if launch != first:
            continue
        if not _NUMBER.fullmatch(value):
            raise ToolchainError(f"`ncu` reported {name} as {value!r}, which is no number")
        found[METRICS[name]] = float(value.replace(",", "")) * _UNITS.get(row[_UNIT], 1)
    if not found:
        raise ToolchainError(f"`ncu` reported no figure of kernel {entry}")
    return found


def _rows(text: str) -> Iterator[dict[str, str]]:
    lines = [line for line in text.splitlines() if line.startswith('"')]
    heads = [at for at, line in enumerate(lines) if f'"{_METRIC}"' in line]
    if not heads:
        return
    try:
        head, *rows = csv.reader(lines[heads[0] :], strict=True)
    except csv.Error as error:
        raise ToolchainError(f"what `ncu` printed is damaged: {error}") from None
    missing = [name for name in ("ID", _KERNEL, _METRIC, _UNIT, _VALUE) if name not in head]
    if missing:
        raise ToolchainError(f"what `ncu` printed has no column {', '.join(missing)}")
    for row in rows:
        if len(row) != len(head):
            raise ToolchainError(f"what `ncu` printed is damaged: {len(row)} of {len(head)} columns in {row}")
        yield dict(zip(head, row, strict=True))


# ----------------------------------------------------------------
# Predicted from the IR: instructions, passes over the banks, and conflicts in shared memory.


NONE = Conflicts()


@dataclass(frozen=True)
class SharedTraffic:
    """Accesses of all warps of a launch to shared memory, and their bank conflicts.

    Args:
        loads: loads into registers, without ``ldmatrix``.
        matrix_loads: ``ldmatrix``.
        stores: stores from registers, without ``stmatrix``.
        matrix_stores: ``stmatrix``.
        async_copies: writes of ``cp.async``.
    """

    loads: Conflicts = NONE
    matrix_loads: Conflicts = NONE
    stores: Conflicts = NONE
    matrix_stores: Conflicts = NONE
    async_copies: Conflicts = NONE

    @property
    def all(self) -> Conflicts:
        """All accesses together."""
        return sum((getattr(self, part.name) for part in fields(self)), NONE)


def predicted_traffic(kernel: Kernel, binding: Binding) -> SharedTraffic:
    """Predict the requests of a launch to shared memory, with every tile counted as whole.

    Only instructions of warps count: the reads of ``wgmma``, TMA and transaction barriers are left out.

    Args:
        kernel: lowered for CUDA.
        binding: the integers of the launch.

    Raises:
        UnknownCountError: the number of executions of a copy depends on more than the sizes and the indices
            of blocks and loops.
    """

    def counts(op: Op) -> bool:
        return is_by_threads(op) and (in_shared(op.source) or in_shared(op.target))

    totals = {part.name: NONE for part in fields(SharedTraffic)}
    for op, times in executions(kernel, binding, counts):
        assert isinstance(op, Copy)
        by_matrix = "matrix_" * (op.engine == "matrix")
        if in_shared(op.source):
            totals[f"{by_matrix}loads"] += conflicts_of(op, op.source) * times
        if in_shared(op.target):
            name = "async_copies" if op.engine == "async" else f"{by_matrix}stores"
            totals[name] += conflicts_of(op, op.target) * times
    return SharedTraffic(**totals)


# ---------------------------------------------------------------- comparison


DERIVED: Mapping[str, tuple[Callable[[float, float], float], str, str]] = {
    CONFLICTS: (operator.sub, PASSES, FEWEST),
    WAITS: (operator.add, LOAD_WAITS, STORE_WAITS),
    "sectors per global load": (operator.truediv, "global load sectors", "global load requests"),
    "sectors per global store": (operator.truediv, "global store sectors", "global store requests"),
}
"""Figures that are computed from two others."""

SHOWN = (
    *(LOADS, LOAD_PASSES, MATRIX_LOADS, MATRIX_LOAD_PASSES),
    *(STORES, STORE_PASSES, MATRIX_STORES, MATRIX_STORE_PASSES, ASYNC_PASSES),
    *(PASSES, CONFLICTS, WAITS),
    *("global load requests", "sectors per global load", "global store requests", "sectors per global store"),
    *("DRAM bytes", DURATION, REGISTERS),
)


@dataclass(frozen=True)
class TrafficComparison:
    """Predicted and measured figures of a launch, by their names.

    Args:
        kernel: its name.
        arch: the architecture.
        predicted: figures from the IR, and registers.
        measured: figures of Nsight Compute; empty without a launch.
        unknown: the reason why shared memory is not predicted, or "".
    """

    kernel: str
    arch: str
    predicted: Mapping[str, float]
    measured: Mapping[str, float]
    unknown: str = ""

    def __str__(self) -> str:
        """A table; ``-`` stands for missing figures."""
        rows = [("", "predicted", "measured")]
        rows += [(name, _spelled(name, self.predicted), _spelled(name, self.measured)) for name in SHOWN]
        name, *widths = (max(len(row[column]) for row in rows) for column in range(3))
        lines = [f"{row[0]:<{name}}  {row[1]:>{widths[0]}}  {row[2]:>{widths[1]}}" for row in rows]
        if self.unknown:
            lines.append(f"shared memory is not predicted: {self.unknown}")
        return "\n".join(lines)


def predict(subject: Subject, arch: str | None = None) -> TrafficComparison:
    """Predict the figures of a launch on CUDA, on these arrays and numbers.

    Args:
        subject: the kernel.
        arch: the architecture; default: this machine's.
    """
    made = subject.compile(CUDA.name, arch)
    assert made.listing is not None
    lowered = made.listing.kernel
    predicted: dict[str, float] = {REGISTERS: made.resources["registers"]}
    unknown = ""
    try:
        predicted |= predicted_figures(predicted_traffic(lowered, subject.binding(lowered)))
    except UnknownCountError as error:
        unknown = str(error)
    found = with_derived(predicted)
    if any(isinstance(op, MmaAsync) for op in lowered.walk()):
        # Nsight Compute adds the reads of `wgmma` to the sums.
        found = {name: figure for name, figure in found.items() if name not in (PASSES, FEWEST)}
    return TrafficComparison(made.kernel.name, made.arch, found, {}, unknown)


def compare(subject: Subject, ncu: str, arguments: Sequence[str]) -> TrafficComparison:
    """Predict and measure a launch on this machine's GPU.

    Args:
        subject: the kernel.
        ncu: Nsight Compute's program.
        arguments: arguments of `tilewright inspect` that make the same subject in the measured process.

    Raises:
        ToolchainError: `ncu` cannot measure.
    """
    listing = subject.compile(CUDA.name).listing
    assert listing is not None
    found = measured(ncu, listing.entry, ["inspect", *arguments, "--launch"])
    return replace(predict(subject), measured=with_derived(found))


def predicted_figures(traffic: SharedTraffic) -> dict[str, float]:
    """Return predicted requests to shared memory, by the names of the measured figures.

    Wavefronts of ``cp.async``, and sums with them, are not predicted: data arrives by lines of global memory,
    so that a row of 64 bytes, half a line, takes as long as a row of 128.  The lines depend on the addresses
    of the arrays, and a copy past the end has none.
    """
    found: dict[str, float] = {}
    for asked, instructions, passes in (
        (traffic.loads, LOADS, LOAD_PASSES),
        (traffic.matrix_loads, MATRIX_LOADS, MATRIX_LOAD_PASSES),
        (traffic.stores, STORES, STORE_PASSES),
        (traffic.matrix_stores, MATRIX_STORES, MATRIX_STORE_PASSES),
    ):
        found |= {instructions: asked.accesses, passes: asked.passes}
    if traffic.async_copies.accesses:
        return found
    return found | {ASYNC_PASSES: 0, PASSES: traffic.all.passes, FEWEST: traffic.all.fewest}


def with_derived(figures: Mapping[str, float]) -> dict[str, float]:
    """Add the derived figures to some figures.

    Example:
        >>> with_derived({"all wavefronts": 10, "fewest wavefronts": 8})["bank conflicts"]
        2
    """
    found = dict(figures)
    for name, (combine, left, right) in DERIVED.items():
        if {left, right} <= figures.keys() and (figures[right] or combine is not operator.truediv):
            found[name] = combine(figures[left], figures[right])
    return found


def _spelled(name: str, figures: Mapping[str, float]) -> str:
    if name not in figures:
        return "-"
    whole = name != DURATION and DERIVED.get(name, (None,))[0] is not operator.truediv
    return f"{figures[name]:,.{0 if whole else 2}f}"
