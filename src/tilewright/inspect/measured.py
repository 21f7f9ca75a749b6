"""What a launch did to memory, measured: the counters of the GPU, which Nsight Compute reads.

`ncu` starts a program, repeats its kernel until all counters are read, and prints them as CSV.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

from tilewright.errors import LaunchError, ToolchainError
from tilewright.runtime.cuda import CUDA_DRIVER

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

Wavefronts are counted by instruction, each for itself: a property of the kernel, the same in every run.  The
hardware's counters of bank conflicts, `LOAD_WAITS` and `STORE_WAITS`, also count what a warp waits because
another warp is served, and differ from run to run: on an H200 about 1900 for the stores of example 02 at
512 x 384 x 320, although no two lanes of a warp meet in a bank.
"""

_KERNEL, _METRIC, _UNIT, _VALUE = "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"
_UNITS = {"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "ns": 1e-3, "nsecond": 1e-3}
_UNITS |= {"ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}
_NUMBER = re.compile(r"\d+(,\d{3})*(\.\d+)?|\d+(\.\d+)?([eE][+-]?\d+)?")
_ABSENT = ("", "n/a", "no data", "nan")


def require_gpu(arch: str | None = None) -> str:
    """Where `ncu` is, if a kernel can be measured here.

    Args:
        arch: the architecture that was asked for.

    Raises:
        ToolchainError: there is no GPU, or no `ncu`.
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
    """The command that measures the first launch of a kernel by a `tilewright` command.

    Args:
        ncu: the program.
        entry: the kernel's name.
        arguments: of `tilewright`.
    """
    # Clocks stay as they are: they change no count, and setting them takes rights of its own.
    watch = ["--csv", "--target-processes", "all", "--clock-control", "none", "--launch-count", "1"]
    which = ["--kernel-name", entry, "--metrics", ",".join(METRICS)]
    return [ncu, *watch, *which, sys.executable, "-m", "tilewright", *arguments]


def measured(ncu: str, entry: str, arguments: Sequence[str]) -> dict[str, float]:
    """The figures of the first launch of a kernel by a `tilewright` command, by our names.

    Args:
        ncu: the program.
        entry: the kernel's name.
        arguments: of `tilewright`.

    Raises:
        ToolchainError: the counters may not be read, or `ncu` or the command failed; quotes what they said.
    """
    watched = command(ncu, entry, arguments)
    done = subprocess.run(watched, capture_output=True, text=True, encoding="utf-8", errors="replace")
    said = f"{done.stdout}\n{done.stderr}"
    if "ERR_NVGPUCTRPERM" in said:
        raise ToolchainError(
            "this user may not read the GPU's counters (ERR_NVGPUCTRPERM); an administrator may, or can "
            "allow it with the driver's option NVreg_RestrictProfilingToAdminUsers=0; "
            "--counters needs no such right"
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
    """The figures of the first launch of a kernel in the CSV that `ncu` printed, by our names.

    Times are in microseconds, sizes in bytes.  A figure that `ncu` does not have is left out.

    Args:
        text: what it printed; lines that are no CSV may stand between.
        entry: the kernel's name.

    Raises:
        ToolchainError: there is no figure of the kernel, or a line is damaged.
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
