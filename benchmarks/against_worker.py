"""Time kernels of one source tree for `against.py`, which sends requests as lines of JSON.

    python benchmarks/against_worker.py TREE

It uses only the examples and `matmul` of the package, so that it can time trees of other commits.
"""

from __future__ import annotations

import functools
import json
import math
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TREE = Path(sys.argv[1])
FLUSH_BYTES = 256 << 20

# Output of libraries must not mix with the answers.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import torch  # noqa: E402

import tilewright as tw  # noqa: E402

Made = tuple[Callable[[], Any], Callable[[], float]]


@functools.cache
def example(number: str) -> dict[str, Any]:
    """Return the names that an example defines."""
    (path,) = (TREE / "examples").glob(f"{number}_*.py")
    return runpy.run_path(str(path))


def gemm(bound: Any, shape: tuple[int, ...], kind: torch.dtype, out: torch.dtype) -> Made:
    """Compute C = A Bᵀ by a kernel of an example."""
    m, n, k = shape
    a, b = (torch.randn(rows, k, device="cuda").to(kind) for rows in (m, n))
    c = torch.full((m, n), math.nan, device="cuda").to(out)

    def check() -> float:
        wanted = a.double() @ b.double().T
        return float(torch.linalg.norm(c.double() - wanted) / torch.linalg.norm(wanted))

    return functools.partial(bound, a, b, c), check


def matmul(shape: tuple[int, ...], kind: torch.dtype) -> Made:
    """Compute C = A Bᵀ by `tw.matmul`; B is stored transposed."""
    m, n, k = shape
    if kind == torch.int8:
        a, b = (torch.randint(-100, 101, (rows, k), dtype=kind, device="cuda") for rows in (m, n))
    else:
        a, b = (torch.randn(rows, k, device="cuda").to(kind) for rows in (m, n))
    c = torch.full((m, n), 77, dtype=torch.int32 if kind == torch.int8 else kind, device="cuda")

    def call() -> Any:
        tw.matmul(a, b.T, out=c)

    def check() -> float:
        wanted = a.double() @ b.double().T
        return float(torch.linalg.norm(c.double() - wanted) / torch.linalg.norm(wanted))

    return call, check


def fused(shape: tuple[int, ...]) -> Made:
    """Compute D = (A Bᵀ) Cᵀ."""
    m, n, k, p = shape
    a, b, c = (torch.randn(size, device="cuda").half() for size in ((m, k), (n, k), (p, n)))
    d = torch.full((m, p), math.nan, device="cuda")

    def check() -> float:
        wanted = (a.double() @ b.double().T).half().double() @ c.double().T
        return float(torch.linalg.norm(d.double() - wanted) / torch.linalg.norm(wanted))

    return functools.partial(example("08")["bound"]("f16"), a, b, c, d), check


def attention(number: str, shape: tuple[int, ...], *, causal: bool) -> Made:
    """Compute softmax(Q Kᵀ) V."""
    batch, heads, queries, keys, depth = shape
    kind = torch.bfloat16 if depth == 128 else torch.float16
    q, k, v = (
        torch.randn((batch, heads, n, depth), dtype=kind, device="cuda") for n in (queries, keys, keys)
    )
    o, scale = torch.full_like(q, math.nan), 1 / math.sqrt(depth)
    bound = example(number)["bound"](tw.bf16 if depth == 128 else tw.f16, depth, causal=causal)

    def check() -> float:
        wanted = torch.nn.functional.scaled_dot_product_attention(
            q[0].float(), k[0].float(), v[0].float(), is_causal=causal, scale=scale
        )
        return float(torch.linalg.norm(o[0].float() - wanted) / torch.linalg.norm(wanted))

    return functools.partial(bound, q, k, v, o, scale, 0), check


def made(name: str, shape: tuple[int, ...]) -> Made:
    """Return a call of one subject, and the error of its result."""
    number, _, rest = name.partition(" ")
    half, single, brain = torch.float16, torch.float32, torch.bfloat16
    match number:
        case "02" | "04":
            return gemm(example(number)["LARGE"], shape, half, half)
        case "03":
            return gemm(example("03")["bind"](tw.bf16, columns=256), shape, brain, brain)
        case "06":
            return gemm(example("06")["BOUND"][tw.f16], shape, half, half)
        case "07":
            return gemm(example("07")["bind"](example("07")[rest]), shape, half, half)
        case "08":
            return fused(shape)
        case "09" | "10":
            return attention(number, shape, causal=rest.endswith("causal"))
        case "matmul":
            return matmul(shape, {"f16": half, "i8": torch.int8, "f32": single}[rest])
    raise ValueError(f"no subject {name!r}")


class Timed:
    """Holds the call that is being timed."""

    def __init__(self) -> None:
        self.call: Callable[[], Any] | None = None
        self.flush = torch.zeros(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def make(self, name: str, shape: tuple[int, ...]) -> dict[str, Any]:
        """Make a subject, run it and check it."""
        torch.manual_seed(7)
        self.call, check = made(name, shape)
        launched = self.call()
        torch.cuda.synchronize()
        error = check()
        if not error <= 2e-2:
            return {"failed": f"off by {error} in norm"}
        target = getattr(launched, "target", "cuda")
        if target != "cuda":
            return {"failed": f"{target} ran"}
        return {"error": error, "resources": dict(getattr(launched, "resources", {}))}

    def samples(self, count: int) -> dict[str, Any]:
        """Return the device times of some launches, in microseconds."""
        assert self.call is not None
        found = []
        for _ in range(count):
            self.flush.add_(1)
            self.events[0].record()
            self.call()
            self.events[1].record()
            self.events[1].synchronize()
            found.append(1e3 * self.events[0].elapsed_time(self.events[1]))
        return {"us": found}

    def drop(self) -> dict[str, Any]:
        """Free the arrays, so that the other processes have room."""
        self.call = None
        torch.cuda.empty_cache()
        return {}


def main() -> None:
    timed = Timed()
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "make" in asked:
                answer = timed.make(asked["make"], tuple(asked["shape"]))
            elif "samples" in asked:
                answer = timed.samples(asked["samples"])
            else:
                answer = timed.drop()
        except Exception as error:  # noqa: BLE001 -- whatever fails is an answer
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()
