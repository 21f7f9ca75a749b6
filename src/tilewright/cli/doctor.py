"""`tilewright doctor`: what this machine has, what is missing, and the command that brings it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from tilewright.checking.sample import operands
from tilewright.cli.console import BAD_INPUT, UsageError, choose, duration, reports, size, step, working
from tilewright.cli.console import WRONG as WRONG_RESULT
from tilewright.dtypes import f32
from tilewright.errors import TilewrightError, ToolchainError
from tilewright.runtime import amdgcn, nvrtc
from tilewright.runtime.cache import Cache
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.driver import Driver
from tilewright.runtime.drivers import driver_for, has_device
from tilewright.runtime.environment import CACHE_DIR, settings
from tilewright.runtime.hip_driver import HIP_DRIVER, LIBRARY
from tilewright.runtime.native import find_toolchains, host_arch, processor_name
from tilewright.runtime.nvrtc import PACKAGE, PROGRAM, find_nvdisasm, version_of
from tilewright.targets.target import CPU, CUDA, HIP, REFERENCE, TARGETS, target_named
from tilewright.tune.machine import version
from tilewright.tune.self_test import STEPS, SelfTestOutcome
from tilewright.tune.self_test import self_test as tried_on
from tilewright.tune.trial import PlannedTrial

OK, UNUSED, MISSING, WRONG = "ok", "unused", "missing", "WRONG"

SHAPE = (130, 70, 90)
"""M, N, K of the trial: whole tiles and ragged ones."""

PACKAGES = (
    ("numpy", "arrays", "tilewright"),
    ("ml_dtypes", "bf16 and fp8", "tilewright"),
    ("ziglang", "a C++ compiler without a system one", "tilewright[native]"),
    ("cuda-bindings", "CUDA", "tilewright[cuda]"),
    ("torch", "PyTorch tensors, and cuBLAS to compare with", "tilewright[torch]"),
    ("matplotlib", "the elevations, and pictures as PNG", "tilewright[plot]"),
)


@dataclass(frozen=True)
class ToolCheck:
    """One line of the report.

    Args:
        status: `OK`, `UNUSED`, `MISSING` or `WRONG`.
        text: the tool, and its state.
        fix: the command that installs it, or "".
    """

    status: str
    text: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.status:<8} {self.text}" + (f"\n         fix: {self.fix}" if self.fix else "")


@reports
def doctor(
    self_test: Annotated[
        bool,
        typer.Option(
            "--self-test",
            help="Run four kernels through every step on each compiled target of this machine: copy in, "
            "compile, launch, wait, copy out, check the bytes around the result, compare every element.",
        ),
    ] = False,
    target: Annotated[
        str | None, typer.Option(help="With --self-test: on which target. Default: all.", show_default=False)
    ] = None,
) -> None:
    """Show what this machine has, what is missing, and how to get it; try each target on a small GEMM.

    Exit status: 0 when a compiled target (cpu, cuda or hip) works and nothing computes wrong results, else 2.
    With --self-test: 0 when all steps went well, 1 when one failed, 2 when the target asked for is not here.
    """
    if target is not None:
        choose("target", target, tuple(TARGETS))
    if self_test:
        _self_test(target)
        return
    if target is not None:
        raise UsageError("--target is for --self-test; nearest: leave it out, and every target is tried")
    for check in chain(_environment(), *(tools() for tools in TOOLS.values())):
        _show(check)
    outcome = {}
    for target in TARGETS:
        with working(f"trying target {target}"):
            outcome[target] = try_target(target)
        _show(outcome[target])
    works = any(outcome[target.name].status == OK for target in TARGETS.values() if target.machine_code)
    if not works or any(check.status == WRONG for check in outcome.values()):
        raise typer.Exit(BAD_INPUT)


def _self_test(only: str | None) -> None:
    """Run the self-test of one target, or of all that are here.

    Raises:
        Exit: with 1 if a step failed, with 2 if the target is not here.
    """
    failed, compiled = False, [name for name, target in TARGETS.items() if target.machine_code]
    for target in map(target_named, compiled if only is None else [only]):
        for check in TOOLS[target.name]():
            _show(check)
        driver = driver_for(target.name)
        if driver is not None and not driver.device_count():
            reason = driver.missing() or "no GPU here"
            _show(ToolCheck(MISSING, f"target {target.name}: nothing was tried: {reason}"))
            if only is not None:
                raise typer.Exit(BAD_INPUT)
            continue
        for outcome in tried_on(target.name):
            _show(_said(target.name, outcome))
            failed = failed or not outcome.ok
    if failed:
        raise typer.Exit(WRONG_RESULT)


def _said(target: str, outcome: SelfTestOutcome) -> ToolCheck:
    what = f"target {target}: {outcome.name}"
    if outcome.ok:
        by = f" by {outcome.said}" if outcome.said else ""
        return ToolCheck(OK, f"{what}{by}: all {len(STEPS)} steps, {duration(outcome.seconds)}")
    done = STEPS[: STEPS.index(outcome.step)]
    before = f" after {', '.join(done)}" if done else ""
    return ToolCheck(WRONG, f"{what}: {outcome.step} failed{before}: {outcome.reason}")


def _show(check: ToolCheck) -> None:
    """Print a line of the report, and make it a step of the answer."""
    step(check.status, check.text, check.fix)
    typer.echo(check)


def _environment() -> Iterator[ToolCheck]:
    """Check Python, the processor, the packages and the cache."""
    fix = "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer"
    yield ToolCheck(MISSING if fix else OK, f"Python {platform.python_version()} at {sys.executable}", fix)
    yield ToolCheck(OK, f"tilewright {version('tilewright') or 'from source'} at {Path(__file__).parents[1]}")
    yield ToolCheck(OK, f"{processor_name()} ({host_arch()}), {settings().threads} threads")

    for package, purpose, wanted in PACKAGES:
        if found := version(package):
            yield ToolCheck(OK, f"{package} {found}: {purpose}")
        else:
            yield ToolCheck(MISSING, f"{package}: {purpose}", f"pip install '{wanted}'")
    kept = Cache.default()
    held = kept.stats()
    text = f"cache {held.root}: {held.entries} kernels, {size(held.bytes)} of {size(held.capacity_bytes)}"
    existing = next(folder for folder in (held.root, *held.root.parents) if folder.exists())
    fix = f"export {CACHE_DIR}=a directory of yours"
    if (reason := kept.distrust()) is not None:
        yield ToolCheck(MISSING, f"{text}; not used: {reason}", fix)
    elif not os.access(existing, os.W_OK):
        yield ToolCheck(MISSING, f"{text}; it may not be written", fix)
    else:
        yield ToolCheck(OK, text)


def cpu_tools() -> Iterator[ToolCheck]:
    """Check the C++ compilers."""
    found = find_toolchains()
    for place, toolchain in enumerate(found):
        used = "" if place else ", which target cpu uses"
        yield ToolCheck(OK, f"C++ compiler {toolchain} at {toolchain.compiler[0]}{used}")
    if not found:
        yield ToolCheck(MISSING, "a C++ compiler, for target cpu", "pip install 'tilewright[native]'")


def cuda_tools() -> Iterator[ToolCheck]:
    """Check NVRTC, the disassembler, the driver, and the GPUs."""
    try:
        major, minor = nvrtc.version()
        yield ToolCheck(OK, f"NVRTC {major}.{minor}: compiles CUDA without a GPU")
    except ToolchainError:
        yield ToolCheck(MISSING, "NVRTC: compiles CUDA without a GPU", "pip install 'tilewright[cuda]'")
    purpose = "shows CUDA's machine code, `inspect --isa`, without a GPU"
    try:
        found = find_nvdisasm()
        yield ToolCheck(OK, f"{PROGRAM} {version_of(found)} at {found}: {purpose}")
    except ToolchainError as error:
        known = "" if PACKAGE in str(error) else f" ({error})"
        yield ToolCheck(MISSING, f"{PROGRAM}: {purpose}{known}", f"pip install {PACKAGE}")
    try:
        yield ToolCheck(OK, f"CUDA driver {CUDA_DRIVER.version()}")
    except TilewrightError:
        fix = "on a machine with an NVIDIA GPU: install its driver, and pip install 'tilewright[cuda]'"
        yield ToolCheck(MISSING, "CUDA driver: runs target cuda", fix)
        return
    yield from _gpus(CUDA_DRIVER, "arch", "the CUDA driver", "nvidia-smi")


def hip_tools() -> Iterator[ToolCheck]:
    """Check the compilers for AMD GPUs, ROCm's runtime, and the GPUs."""
    found = linked = 0
    for trial in amdgcn.try_toolchains():
        found += trial.usable is not None
        if trial.makes_code_objects:
            used = "" if linked else ", which target hip uses"
            linked += 1
            yield ToolCheck(OK, f"HIP compiler {trial.what}{used}: needs no GPU")
        elif trial.usable:
            text = f"HIP compiler {trial.what}: used only if no other compiles, as it has no linker ld.lld"
            yield ToolCheck(UNUSED, text)
        else:
            yield ToolCheck(UNUSED, f"HIP compiler {trial.what}: passed over: {trial.reason}")
    if not found:
        yield ToolCheck(MISSING, "a clang for AMD GPUs, for target hip", "pip install 'tilewright[native]'")
    try:
        path = HIP_DRIVER.bindings().path
        yield ToolCheck(OK, f"ROCm's runtime, HIP {HIP_DRIVER.version()}, at {path}")
    except TilewrightError:
        fix = "on a machine with an AMD GPU: install ROCm, or set ROCM_PATH to where it is"
        yield ToolCheck(MISSING, f"ROCm's runtime, {LIBRARY}: runs target hip", fix)
        return
    yield from _gpus(HIP_DRIVER, "gfx", "ROCm's runtime", "rocminfo")


def _gpus(driver: Driver, arch: str, owner: str, tool: str) -> Iterator[ToolCheck]:
    """List the GPUs of a driver, with the architecture in a field of the device."""
    for index in range(driver.device_count()):
        gpu = driver.device(index)
        cores = f"{gpu.multiprocessors} multiprocessors"
        yield ToolCheck(OK, f"GPU {index}: {gpu.name} ({getattr(gpu, arch)}), {cores}")
    if not driver.device_count():
        yield ToolCheck(MISSING, f"a GPU that {owner} knows", f"check that {tool} lists one")


TOOLS: dict[str, Callable[[], Iterable[ToolCheck]]] = {
    REFERENCE.name: tuple,
    CPU.name: cpu_tools,
    CUDA.name: cuda_tools,
    HIP.name: hip_tools,
}
"""The check of each target's compiler and driver."""


def try_target(target: str) -> ToolCheck:
    """Check that a target multiplies two small matrices correctly."""
    m, n, k = SHAPE
    if not has_device(target):
        text = f"target {target}: no GPU here; `tilewright inspect --target {target}` compiles without one"
        return ToolCheck(MISSING, text)
    try:
        trial = PlannedTrial(operands("random", f32, SHAPE), target)
        executable, _ = trial.run()
        found = trial.verify()
    except ToolchainError as error:
        return ToolCheck(MISSING, f"target {target}", str(error).rpartition("; ")[2])
    except TilewrightError as error:
        return ToolCheck(WRONG, f"target {target}: {error}")
    if not found.ok:
        return ToolCheck(WRONG, f"target {target}: {found}")
    made = "from the cache" if executable.cached else f"made in {duration(executable.seconds)}"
    return ToolCheck(OK, f"target {target} ({executable.arch}): {m}x{n}x{k} f32 verified, kernel {made}")
