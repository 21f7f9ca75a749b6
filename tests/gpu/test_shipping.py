"""Exported kernels on a GPU: the program in C++, and calls from Python."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.shipping.test_folder import KERNELS, compiler

import tilewright as tw
from tilewright.checking.flows import compare_flow
from tilewright.dataflow.parser import parse_flow
from tilewright.inspect.from_files import kernels_in, load
from tilewright.runtime.backends import backend_named
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.shipping.folder import export

pytestmark = pytest.mark.gpu
PROGRAM = KERNELS.with_name("gemm_cuda.cpp")
GEMM: Any = kernels_in(load(KERNELS))["gemm"]
LINEAR: Any = kernels_in(load(KERNELS))["linear"]
SPLIT = tw.Schedule(
    tw.atoms.fma("f16", each=(4, 4)), (64, 64, 16), warps=(2, 2), split_k=4, reduction="turnstile"
)


def matrices(kind: str, m: int, n: int, k: int) -> list[Any]:
    return [tw.like(kind, m, k), tw.like(kind, k, n), tw.like(kind, m, n)]


def test_the_program_in_cpp(tmp_path: Path) -> None:
    problems = (matrices("bf16", 2048, 2048, 1024), matrices("bf16", 33, 77, 55))
    export(GEMM.bind(), problems, [backend_named("cuda").arch_name()], tmp_path)
    words = [
        *compiler(),
        "-std=c++17",
        f"-I{tmp_path}",
        str(PROGRAM),
        "-x",
        "none",
        str(tmp_path / "libgemm.a"),
    ]
    done = subprocess.run(
        [*words, "-lpthread", "-ldl", "-o", str(tmp_path / "run")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for extents in ("1000 520 72", "256 256 1024", "33 77 55", "1 1 1", "130 1032 8"):
        ran = subprocess.run([tmp_path / "run", *extents.split()], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout
        assert "wrong extents: TILEWRIGHT_EXTENTS, argument 2, 0 elements written" in ran.stdout
        assert "launch: TILEWRIGHT_OK, status of the driver 0" in ran.stdout


@pytest.mark.parametrize("schedule", [None, SPLIT], ids=["chosen", "split"])
@pytest.mark.parametrize("extents", [(264, 136, 72), (129, 67, 257), (1, 8, 8), (64, 64, 0)])
def test_calls_from_python(extents: tuple[int, int, int], schedule: Any, tmp_path: Path) -> None:
    """The check before the first use runs, too; canaries follow every row."""
    m, n, k = extents
    problems = [
        [*matrices("f16", *shape)[:2], tw.like("f16", shape[1]), matrices("f16", *shape)[2], None]
        for shape in ((512, 512, 512), (33, 77, 55))
    ]
    arch = backend_named("cuda").arch_name()
    made = export(LINEAR.bind(schedule=schedule), problems, [arch], tmp_path)
    rng = np.random.default_rng(m)
    given = {
        name: rng.standard_normal(shape).astype(np.float16)
        for name, shape in {"A": (m, k), "B": (k, n), "bias": (n,)}.items()
    }
    on = {name: DeviceArray.of(array) for name, array in given.items()}
    c = DeviceArray.of(np.full((m, n), np.nan, np.float16))
    loaded = tw.load_kernel(tmp_path)
    for alpha in (1.5, -0.5):  # the second launch finds workspaces as the first left them
        assert loaded(on["A"], on["B"], on["bias"], c, alpha) == "cuda"
        CUDA_DRIVER.synchronize()
        found = compare_flow(parse_flow(made["computes"]), {"C": c.host()}, given, {"alpha": alpha})
        assert found.ok, found
