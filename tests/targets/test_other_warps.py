"""The kernels that compile for AMD GPUs compute the right products, with warps of 64 lanes and of 32.

The host's emulator runs the same lowered kernels in its own dialect.  That text has the same maps of threads,
predicates, barriers and offsets as HIP's, so it would show errors in them.  No AMD GPU is needed.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.arch import Arch
from tilewright.ir.kernel import Kernel, SizeParam, TensorParam
from tilewright.passes.memory_instructions import settle_async
from tilewright.passes.pipeline import run_passes
from tilewright.runtime.native import find_toolchains
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets import hip, reference
from tilewright.targets.cuda.prelude import DIALECT as EMULATED
from tilewright.targets.simt.emit import emit_text

from .cuda.emulation import Emulator, Guarded
from .hip.examples import KERNELS

ARCHITECTURES = {name: hip.architecture(name) for name in ("gfx942", "gfx1151")}
NAMES = ("02 padded f32", "02 padded i8", "04 f16", "07 buffered")
SHAPES = {"02 padded f32": (70, 67, 45), "02 padded i8": (70, 67, 45)}
WHOLE = (256, 256, 256)


PASSES = tuple(
    replace(one, run=lambda kernel, arch: settle_async(kernel, replace(arch, async_bytes=())))
    if one.name == "by-address"
    else one
    for one in hip.PASSES
)
"""The emulator's dialect has no loads straight into shared memory: what goes there is copied at once."""


@pytest.fixture(scope="module")
def kernels() -> dict[str, tuple[Kernel, Arch]]:
    return {
        f"{name}, {of}": (KERNELS[name](arch), arch) for name in NAMES for of, arch in ARCHITECTURES.items()
    }


@pytest.fixture(scope="module")
def emulator(kernels: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Emulator, dict[str, Kernel]]:
    listings = {
        key: emit_text(kernel, run_passes(kernel, arch, PASSES), arch, hip.HIP_RULES, EMULATED)
        for key, (kernel, arch) in kernels.items()
    }
    made = Emulator(listings, find_toolchains()[0], tmp_path_factory.mktemp("emulated"))
    return made, {key: listing.kernel for key, listing in listings.items()}


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", NAMES)
def test_products_are_right(name: str, arch: str, emulator: tuple[Emulator, dict[str, Kernel]]) -> None:
    runs, lowered = emulator
    kernel = lowered[f"{name}, {arch}"]
    assert kernel.lanes == ARCHITECTURES[arch].lanes
    m, n, k = SHAPES.get(name, WHOLE)
    rng = np.random.default_rng(3)
    given = {}
    for value, shape in zip(kernel.tensors, ((m, k), (n, k), (m, n)), strict=True):
        kind = value.dtype.numpy
        made = rng.integers(-9, 9, shape) if not value.dtype.is_float else rng.standard_normal(shape)
        given[value.name] = Guarded(made.astype(kind))
    given["C"].array[...] = -77
    arrays = {name: guarded.array for name, guarded in given.items()}
    env = reference.bind_sizes(kernel, arrays, {})
    packed: list[Any] = []
    for param in kernel.params:
        if isinstance(param, TensorParam):
            packed.append(ctypes.c_void_p(given[param.value.name].address))
        elif isinstance(param, SizeParam):
            packed.append((ctypes.c_longlong if param.bits == 64 else ctypes.c_int)(env[param.sym]))
    grid = [int(evaluate(axis.extent, env)) for axis in kernel.grid]
    runs.run(f"{name}, {arch}", grid, kernel.threads, packed)
    wide = {key: array.astype(np.float64) for key, array in arrays.items()}
    expected = wide["A"] @ wide["B"].T
    sizes = np.abs(wide["A"]) @ np.abs(wide["B"]).T
    eps = {"f16": 2.0**-10, "f32": 2.0**-23}.get(kernel.tensors[2].dtype.name, 0.0)
    bound = k * 2.0**-23 * sizes * bool(eps) + eps * np.abs(expected)
    assert (np.abs(wide["C"] - expected) <= bound).all()
    assert all(guarded.untouched for guarded in given.values())
