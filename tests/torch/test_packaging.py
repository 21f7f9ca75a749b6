"""Libraries with the operations of a model, in processes that do not have this package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.torch.test_kernels import both, doubled, linear
from tests.torch.test_products import drawn

import tilewright.torch as tt
from tilewright.errors import LaunchError
from tilewright.runtime.native import find_toolchains
from tilewright.torch import packaging, registry

ACTIVATED = tt.op(linear)
TWO = tt.op(both)
TWICE = tt.op(doubled.bind(tile=64), results=["Y"])

PROGRAM = Path(__file__).parents[2] / "examples" / "cpp" / "served_model.cpp"

RUNS = """
import sys, torch
library, package, calls, made = sys.argv[1:]
torch.ops.load_library(library)
found = {}
for threads in (1, 3):
    torch.set_num_threads(threads)
    for name, (operation, args) in torch.load(calls).items():
        try:
            found[name, threads] = getattr(torch.ops.tilewright, operation)(*args)
        except RuntimeError as error:
            found[name, threads] = str(error)
if package:
    model = torch._inductor.aoti_load_package(package)
    found["model"] = model(*torch.load(calls)["inputs"][1])
assert not [one for one in sys.modules if one.startswith("tilewright")]
torch.save(found, made)
"""


def floats(*shape: int) -> torch.Tensor:
    return drawn(*shape).float()


def run_apart(library: Path, calls: dict[str, Any], package: str = "") -> dict[Any, Any]:
    """Run operations of a library, and a package, in a process without this package."""
    folder = library.parent
    torch.save(calls, folder / "calls.pt")
    words = [str(library), package, str(folder / "calls.pt"), str(folder / "made.pt")]
    apart = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = [sys.executable, "-P", "-c", RUNS, *words]
    done = subprocess.run(run, cwd=folder, env=apart, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[Any, Any] = torch.load(folder / "made.pt")
    return found


def served_in_cpp(library: Path, package: str, x: torch.Tensor) -> torch.Tensor:
    """Build the example in C++, and let it serve a model; no Python runs in its process."""
    folder, root = library.parent, Path(torch.__file__).parent
    compiler = next(one for one in find_toolchains() if one.name != "zig").compiler
    command = [
        *compiler,
        "-std=c++20",
        "-O0",
        str(PROGRAM),
        f"-I{root}/include",
        "-o",
        str(folder / "served"),
    ]
    command += [f"-I{root}/include/torch/csrc/api/include", f"-L{root}/lib", f"-Wl,-rpath,{root}/lib"]
    command += ["-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    (folder / "input.bin").write_bytes(x.numpy().tobytes())
    words = [str(library), package, "input.bin", "output.bin", *map(str, x.shape)]
    run = [str(folder / "served"), *words]
    done = subprocess.run(run, cwd=folder, env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    short = subprocess.run([*run, "9"], cwd=folder, env={}, capture_output=True, text=True, check=False)
    assert short.returncode == 1
    assert "the extents need" in short.stderr
    return torch.frombuffer(bytearray((folder / "output.bin").read_bytes()), dtype=torch.float32)


class Layers(torch.nn.Module):
    """Two layers, attention, and a kernel of the author's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = tt.Linear(20, 64, activation="gelu")
        self.heads = tt.Linear(64, 3 * 32, bias=False)
        self.last, self.bias = (torch.nn.Parameter(floats(*shape)) for shape in ((10, 32), (10,)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.heads(self.first(x)).unflatten(-1, (3, 2, 16)).movedim(-3, 0).transpose(-3, -2)
        y = tt.attention(q, k, v, causal=True).transpose(-3, -2)  # heads within rows: nothing is copied
        made: torch.Tensor = ACTIVATED(y.flatten(2).flatten(0, 1), self.last, self.bias)
        return made


@pytest.mark.filterwarnings("default")  # PyTorch's compiler warns of its own code
@pytest.mark.timeout(900)
def test_a_package_of_aotinductor_runs_without_tilewright(tmp_path: Path) -> None:
    model, x = Layers().eval().requires_grad_(False), floats(3, 7, 20)
    with torch.no_grad():
        expected, exported = model(x), torch.export.export(model, (x,))
    library = tt.export_operations(exported.module(), [(x,)], tmp_path)
    package = torch._inductor.aoti_compile_and_package(
        exported,
        package_path=str(tmp_path / "model.pt2"),
        inductor_configs={"aot_inductor.compile_wrapper_opt_level": "O0"},
    )
    found = run_apart(library, {"inputs": ("matmul", [x])}, package)
    assert torch.equal(found["model"], expected)
    assert torch.equal(served_in_cpp(library, package, x).view_as(expected), expected)
    exact = model.double()
    y = (
        torch.nn.functional.gelu(x.double() @ exact.first.weight.mT + exact.first.bias)
        @ exact.heads.weight.mT
    )
    heads = y.unflatten(-1, (3, 2, 16)).movedim(-3, 0).transpose(-3, -2)
    y = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
    y = y.transpose(-3, -2).flatten(2).flatten(0, 1)
    y = torch.nn.functional.silu(y @ exact.last.mT + exact.bias)
    torch.testing.assert_close(found["model"].double(), y, rtol=1e-4, atol=1e-4)


def members() -> dict[str, Any]:
    """Calls of operations: batches, strides, narrow dtypes, several launches, states, two results."""
    a, b, bias = floats(5, 33), floats(33, 18), floats(18)
    half = floats(3, 9, 24).half()
    codes = torch.randint(-8, 8, (32, 12), generator=torch.Generator().manual_seed(1), dtype=torch.int8)
    ends = torch.tensor([2, 2, 7])
    return {
        "terms": lambda: tt.matmul(a, b, bias=bias, activation="silu", residual=floats(5, 18), alpha=0.5),
        "columns": lambda: tt.matmul(a.mT.contiguous().mT, b, c=floats(5, 1), beta=2.0),
        "gap": lambda: tt.matmul(floats(5, 40)[:, 3:36], b, out_dtype=torch.float64),
        "batches": lambda: tt.matmul(half, floats(24, 7).half()),
        "no sums": lambda: tt.matmul(floats(4, 0), floats(0, 3)),
        "no rows": lambda: tt.matmul(floats(0, 4), floats(4, 3)),
        "vectors": lambda: tt.matmul(floats(65), floats(65)),
        "deep": lambda: tt.matmul(floats(8, 40000), floats(40000, 8)),
        "scaled": lambda: tt.scaled_mm(floats(6, 32), codes, scale_b=floats(2, 12), group=16),
        "gates": lambda: tt.gated_matmul(a, b, floats(33, 18)),
        "chain": lambda: tt.gemm_chain(a, b, floats(18, 300), activation="relu"),
        "groups": lambda: tt.grouped_matmul(floats(7, 33), floats(3, 33, 18), ends),
        "heads": lambda: tt.attention(
            half, half, half, sinks=floats(3), dropout=0.25, seed=3, causal=True, window=4
        ),
        "images": lambda: tt.col2im(floats(60, 36), (2, 7, 8, 4), filter=(3, 3)),
        "kernel": lambda: TWO(floats(10, 33), floats(7, 33), 3.0),
        "explicit": lambda: TWICE(floats(100)),
    }


def test_each_operation_runs_without_tilewright_on_one_thread_and_on_three(tmp_path: Path) -> None:
    expected, calls = dict[str, Any](), dict[str, Any]()
    for name, call in members().items():
        with torch.no_grad(), packaging.WatchedCalls() as seen:
            expected[name] = call()
        ((operation, args),) = seen.found.values()
        calls[name] = operation.name, args
    calls["other extents"] = calls["terms"][0], [floats(6, 33), *calls["terms"][1][1:]]
    calls["other words"] = calls["terms"][0], [*calls["terms"][1][:8], "relu", *calls["terms"][1][9:]]
    shifted = floats(166)[1:].reshape(5, 33)
    calls["odd address"] = calls["terms"][0], [shifted, *calls["terms"][1][1:]]
    library = tt.export_operations(lambda: [call() for call in members().values()], [()], tmp_path, "all")
    assert library.name == "liball.so"
    found = run_apart(library, calls)
    for name, made in expected.items():
        for threads in (1, 3):
            got = found[name, threads]
            several = made if isinstance(made, tuple) else (made,)
            pairs = zip(got if isinstance(got, tuple) else (got,), several, strict=name != "heads")
            for one, other in pairs:
                assert (one.dtype, one.shape) == (other.dtype, other.shape)
                assert torch.equal(one, other), f"{name}, {threads} threads"
    for threads in (1, 3):
        assert "no kernels for this call, Float(6, 33) of strides" in found["other extents", threads]
        assert "was exported for (Float(5, 33) of strides" in found["other words", threads]
        assert "at a multiple of 4 bytes" in found["odd address", threads]


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = floats(4, 4)
    with pytest.raises(LaunchError, match="the model calls no operation"):
        tt.export_operations(torch.nn.Linear(4, 4), [(a,)], tmp_path)
    with pytest.raises(LaunchError, match="argument alpha of type number, which"):
        tt.export_operations(lambda a: tt.einsum("ij,jk->ik", a, a), [(a,)], tmp_path)
    offsets, rows = torch.tensor([0, 3]), floats(4, 1, 32)  # the last row is in no sequence, and 0
    with pytest.raises(LaunchError, match="because PyTorch computes a part of it"):
        tt.export_operations(
            lambda q: tt.attention(q, q, q, q_offsets=offsets, k_offsets=offsets), [(rows,)], tmp_path
        )
    matmul = registry.OPERATIONS["matmul"]
    run = matmul.run
    monkeypatch.setattr(matmul, "run", lambda *args: run(*args) + 1)  # a step of PyTorch after the kernel
    with pytest.raises(LaunchError, match="because PyTorch computes a part of it"):
        tt.export_operations(lambda a: tt.matmul(a, a), [(a,)], tmp_path)
    assert not list(tmp_path.iterdir())
