"""Pictures of measurements by matplotlib, and rooflines: the machine's limits and measured rates."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.arch import Arch
from tilewright.dtypes import DType
from tilewright.errors import ToolchainError
from tilewright.runtime.outputs import check_output, output
from tilewright.targets.target import CPU
from tilewright.tune.machine import Machine, cache_bytes, clock_mhz

# ---------------------------------------------------------------- pictures


FORMATS = ("png", "svg", "pdf")


def new_figure(inches: tuple[float, float]) -> Any:
    """Return an empty figure.

    Args:
        inches: width and height.

    Raises:
        ToolchainError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ToolchainError(
            "pictures are drawn by matplotlib; install it with `pip install 'tilewright[plot]'`"
        ) from None
    return Figure(figsize=inches, layout="constrained")


def save(figure: Any, path: Path) -> None:
    """Write a figure; equal figures give equal files.

    Raises:
        ToolchainError: the file has another suffix than .png, .svg and .pdf.
        OutputError: the file cannot be written.
    """
    from matplotlib import rc_context

    kind = _format(path)
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with output(path) as file, rc_context({"svg.hashsalt": "tilewright"}):
        figure.savefig(file, format=kind, dpi=150, metadata=metadata)


def check_drawable(path: Path) -> None:
    """Check that a picture can be drawn to a file.

    Raises:
        ToolchainError: as `new_figure` and `save`.
        OutputError: the file cannot be written.
    """
    new_figure((1, 1))
    _format(path)
    check_output(path)


def _format(path: Path) -> str:
    kind = path.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise ToolchainError(f"no picture of format {path.suffix!r}; nearest: .png, .svg or .pdf")
    return kind


# ---------------------------------------------------------------- rooflines


TRIES = 5
SIDE = 1024
ISSUED = 2
"""Largest number of multiply-adds of whole vectors that a processor begins in a cycle."""


@dataclass(frozen=True)
class Roofs:
    """The limits of a machine.

    Args:
        flops: operations per second.
        bytes: bytes of memory traffic per second.
        source: the source of both figures, in words.
    """

    flops: float
    bytes: float
    source: str

    def at(self, intensity: float) -> float:
        """Return the largest number of operations per second for a number of operations per byte.

        Example:
            >>> roofs = Roofs(1e12, 1e11, "made up")
            >>> roofs.at(1.0), roofs.at(10.0), roofs.at(1000.0)
            (100000000000.0, 1000000000000.0, 1000000000000.0)
        """
        return min(self.flops, self.bytes * intensity)

    def record(self) -> dict[str, Any]:
        """The roofs in JSON's types."""
        return asdict(self)


def roofs(machine: Machine, arch: Arch, element: DType, precision: str) -> Roofs:
    """Return the roofs of a machine, from its datasheet, or measured now if no datasheet is known.

    Args:
        machine: the machine; with the device, for a target that has one.
        arch: the architecture.
        element: dtype of the operands.
        precision: ``"tf32"`` for f32 on tensor cores.
    """
    if machine.device is not None and arch.rates is not None:
        name, rates = machine.device.name, arch.rates
        known = (board for board in rates.boards if any(word in name.split() for word in board.name.split()))
        board = next(known, rates.boards[0])
        named = "tf32" if precision == "tf32" else element.name
        rate = rates.tensor_flops.get(named) or rates.fma_flops.get(named, rates.fma_flops["f32"])
        flops = float(rate) * machine.device.processors * board.clock_mhz * 1e6
        count = machine.device.processors
        datasheet = f"{count} multiprocessors at {board.clock_mhz} MHz, datasheet of {board.name}"
        return Roofs(flops, board.memory_gbytes_per_s * 1e9, datasheet)
    # Vector multiply-adds at the present clock, and a copy by NumPy.
    size = 8 if element.name == "f64" else 4
    source = np.ones(max(8 * cache_bytes(CPU.name), 64 << 20) // 8)
    target = np.empty_like(source)
    copy = min(_seconds(lambda: np.copyto(target, source)) for _ in range(TRIES))
    moved = 2 * source.nbytes / copy
    memory = f"memory as a copy of {source.nbytes >> 20} MiB moves now"
    mhz = clock_mhz()
    if not (mhz and arch.vector_bytes):
        kind = np.float64 if size == 8 else np.float32
        a, b, out = (np.ones((SIDE, SIDE), kind) for _ in range(3))
        product = min(_seconds(lambda: np.matmul(a, b, out=out)) for _ in range(TRIES))
        return Roofs(2 * SIDE**3 / product, moved, f"NumPy's product of {SIDE} x {SIDE}, measured; {memory}")
    lanes = arch.vector_bytes // size
    flops = 2.0 * ISSUED * lanes * machine.threads * mhz * 1e6
    return Roofs(flops, moved, f"{machine.threads} threads of {lanes} lanes at {mhz:.0f} MHz; {memory}")


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def draw_roofline(
    path: Path, found: Roofs, intensity: float, tflops: Mapping[str, float], title: str, best: str
) -> None:
    """Write a picture of measured points under the roofs.

    Args:
        path: .png, .svg or .pdf.
        found: the roofs.
        intensity: operations per byte that has to move.
        tflops: the rate of each call, by name.
        title: the title of the picture.
        best: the name of the call to mark.

    Raises:
        ToolchainError: as `new_figure` and `save`.
        OutputError: the file cannot be written.
    """
    figure = new_figure((7, 4.5))
    axes = figure.add_subplot()
    ridge = found.flops / found.bytes
    low, high = min(ridge, intensity) / 8, max(ridge, intensity) * 8
    across = [low, ridge, high]
    axes.loglog(across, [found.at(x) / 1e12 for x in across], color="black", label="roof")
    for name, rate in sorted(tflops.items(), key=lambda pair: pair[1]):
        is_best = name == best
        axes.loglog(
            [intensity], [rate], "o" if is_best else ".", color="tab:red" if is_best else "tab:blue",
            label=f"{name}: {rate:.4g} TFlops" if is_best else None,
        )  # fmt: skip
    axes.set(xlabel="operations per byte that has to move", ylabel="TFlops")
    axes.set_title(title, fontsize=10)
    axes.legend(loc="lower right", fontsize=8)
    save(figure, path)
