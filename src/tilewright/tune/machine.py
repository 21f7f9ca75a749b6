"""The record of the machine that a measurement was made on."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import ToolchainError
from tilewright.runtime import nvrtc
from tilewright.runtime.drivers import driver_for
from tilewright.runtime.environment import settings, usable_processors
from tilewright.runtime.native import processor_name
from tilewright.tune.clocks import device_index

CACHE_BYTES = 1 << 20
"""Default size of a processor's second-level cache."""

PACKAGES = ("tilewright", "numpy", "ml_dtypes", "torch", "triton", "cuda-bindings", "ziglang")
CLOCKS = ("clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "power.limit", "temperature.gpu")


@dataclass(frozen=True)
class DeviceRecord:
    """A GPU.

    Args:
        name: its name in the driver.
        arch: e.g. ``"sm_90"``.
        driver_version: the version of CUDA, or of HIP, that the driver implements.
        processors: number of multiprocessors.
        l2_bytes: size of the second-level cache.
        clocks: SM and memory clocks, power and temperature now, with units; empty without the system's tool.
    """

    name: str
    arch: str
    driver_version: str
    processors: int
    l2_bytes: int
    clocks: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    """The hardware and software of a measurement.

    Args:
        system: operating system and machine type.
        processor: the CPU's name.
        processors: number of processors that this process may use.
        threads: number of threads of the CPU target.
        python: version of Python.
        packages: versions of the installed packages that take part.
        blas: NumPy's library of linear algebra.
        nvrtc: version of the CUDA compiler, or "".
        device: the GPU; None for measurements of the CPU.
        commit: commit of the source tree, from the caller.
    """

    system: str
    processor: str
    processors: int
    threads: int
    python: str
    packages: dict[str, str]
    blas: str
    nvrtc: str
    device: DeviceRecord | None
    commit: str

    def record(self) -> dict[str, object]:
        """The machine in JSON's types."""
        return asdict(self)


def machine(target: str, commit: str = "") -> Machine:
    """Return the record of this machine.

    Args:
        target: the target of the measurement; a GPU's target includes the device.
        commit: commit of the source tree.

    Raises:
        ToolchainError: the target is on a GPU, and there is no driver or device.
    """
    listed: Any = np.show_config(mode="dicts")
    blas = listed.get("Build Dependencies", {}).get("blas", {})
    try:
        compiler = "{}.{}".format(*nvrtc.version())
    except ToolchainError:
        compiler = ""
    device = None
    if (driver := driver_for(target)) is not None:
        gpu = driver.device(device_index(driver))
        device = DeviceRecord(
            gpu.name, gpu.arch, driver.version(), gpu.multiprocessors, gpu.l2_bytes, clocks_now()
        )
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        processor=processor_name(),
        processors=usable_processors(),
        threads=settings().threads,
        python=platform.python_version(),
        packages={name: found for name in PACKAGES if (found := version(name))},
        blas=f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip(),
        nvrtc=compiler,
        device=device,
        commit=commit,
    )


def version(package: str) -> str:
    """Return the installed version of a package, or ""."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def clocks_now() -> dict[str, str]:
    """Return the readings of `nvidia-smi` now, with units; empty without the tool."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    command = [tool, f"--query-gpu={','.join(CLOCKS)}", "--format=csv,noheader"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    if asked.returncode != 0 or not asked.stdout.strip():
        return {}
    values = [value.strip() for value in asked.stdout.splitlines()[0].split(",")]
    return dict(zip(CLOCKS, values, strict=False))


def cache_bytes(target: str) -> int:
    """Return the bytes of a target's second-level cache: the device's, or the sum over all processors.

    `CACHE_BYTES` stands for a size that the system does not report.

    Raises:
        ToolchainError: the target's device is missing.
    """
    driver = driver_for(target)
    if driver is not None:
        return driver.device(device_index(driver)).l2_bytes
    try:
        listed = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text().strip()
        each = int(listed.rstrip("KM")) << {"K": 10, "M": 20}.get(listed[-1:], 0)
    except (OSError, ValueError):
        each = CACHE_BYTES
    return each * usable_processors()


def clock_mhz() -> float:
    """Return the highest clock of a processor now; 0 if the system does not report it."""
    try:
        listed = Path("/proc/cpuinfo").read_text()
    except OSError:
        return 0.0
    found = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", listed, re.MULTILINE)
    return max(map(float, found), default=0.0)


def memory_bytes() -> int | None:
    """Return the bytes of the machine's memory; None if the system does not report them."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
