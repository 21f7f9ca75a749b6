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
"""Of a processor's second-level cache, where the system does not say."""

PACKAGES = ("tilewright", "numpy", "ml_dtypes", "torch", "triton", "cuda-bindings", "ziglang")
CLOCKS = ("clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "power.limit", "temperature.gpu")


@dataclass(frozen=True)
class DeviceRecord:
    """A GPU.

    Args:
        name: as the driver calls it.
        arch: e.g. ``"sm_90"``.
        driver_version: the version of CUDA, or of HIP, that the driver implements.
        processors: its multiprocessors.
        l2_bytes: size of the second-level cache.
        clocks: what the system's tool reads now (SM and memory clocks, power, temperature), with units; empty
            without the tool.
    """

    name: str
    arch: str
    driver_version: str
    processors: int
    l2_bytes: int
    clocks: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    """Where and with what a measurement was made.

    Args:
        system: operating system and machine type.
        processor: the CPU's name.
        processors: how many of its processors this process may use.
        threads: how many threads the CPU target runs.
        python: version.
        packages: version of each package that takes part, where installed.
        blas: the library that NumPy multiplies with.
        nvrtc: version of the CUDA compiler; empty if there is none.
        device: the GPU; None for measurements of the CPU.
        commit: of the source tree, as the caller says.
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
    """The record of this machine.

    Args:
        target: that of a GPU to include the device.
        commit: of the source tree; the package does not look for one.

    Raises:
        ToolchainError: the target is on a GPU, and there is no driver or device.
    """
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        processor=processor_name(),
        processors=usable_processors(),
        threads=settings().threads,
        python=platform.python_version(),
        packages={name: found for name in PACKAGES if (found := version(name))},
        blas=blas_name(),
        nvrtc=nvrtc_version(),
        device=device_record(target) if driver_for(target) is not None else None,
        commit=commit,
    )


def version(package: str) -> str:
    """The installed version of a package; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def blas_name() -> str:
    """Name and version of the library that NumPy multiplies with."""
    listed: Any = np.show_config(mode="dicts")
    blas = listed.get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()


def nvrtc_version() -> str:
    """Version of the CUDA compiler; empty if there is none."""
    try:
        major, minor = nvrtc.version()
    except ToolchainError:
        return ""
    return f"{major}.{minor}"


def device_record(target: str) -> DeviceRecord:
    """The current GPU of a target.

    Raises:
        ToolchainError: no driver, or no device.
    """
    driver = driver_for(target)
    if driver is None:
        raise ToolchainError(f"target {target} runs on no device")
    found = driver.device(device_index(driver))
    return DeviceRecord(
        name=found.name,
        arch=found.arch,
        driver_version=driver.version(),
        processors=found.multiprocessors,
        l2_bytes=found.l2_bytes,
        clocks=clocks_now(),
    )


def clocks_now() -> dict[str, str]:
    """What `nvidia-smi` reads now, with units; empty without it. Only reads."""
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
    """The second-level cache that a target's kernels use: the device's, or that of all processors together.

    Args:
        target: where they run.

    Returns:
        Bytes; `CACHE_BYTES` for each processor where the system does not say.

    Raises:
        ToolchainError: the target is on a device, and there is none.
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
    """The highest clock that the system tells of a processor now; 0 where it tells none."""
    try:
        listed = Path("/proc/cpuinfo").read_text()
    except OSError:
        return 0.0
    found = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", listed, re.MULTILINE)
    return max(map(float, found), default=0.0)


def memory_bytes() -> int | None:
    """The machine's memory; None where the system does not say."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
