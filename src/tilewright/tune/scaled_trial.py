"""A product with scales, from its arrays to its time, so that all callers ask the same of it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import StoredComparison, compare_flow
from tilewright.checking.sample import Array, laid_out, normal
from tilewright.dtypes import DType
from tilewright.ops.products import scaled
from tilewright.ops.scaled import scaled_mm
from tilewright.ops.scales import SCALES, multiplied_as, multiplied_on, natural_dtype
from tilewright.runtime.arrays import describe as described
from tilewright.runtime.backends import arch_of, backend_named
from tilewright.runtime.device_array import device_get, device_put
from tilewright.runtime.kernel import Bound
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import CUDA, TARGETS, part
from tilewright.tune.measure import Effort, measure
from tilewright.tune.rivals import TORCH_NAMES, as_tensor
from tilewright.tune.statistics import Measurement
from tilewright.tune.trial import OURS

THREE_PASSES = "convert, GEMM, scale and bias"
"""The flow that one kernel replaces."""

_UNWRITTEN = 0x7B


@dataclass(frozen=True)
class ScaledOperands:
    """What `scaled_mm` is given, in host memory.

    Args:
        a: (M, K).
        b: (K, N).
        scale_a: a number for each row, or None.
        scale_b: a number for each column, or None.
        bias: a number for each column, or None.
    """

    a: Array
    b: Array
    scale_a: Array | None = None
    scale_b: Array | None = None
    bias: Array | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N and K."""
        return self.a.shape[0], self.b.shape[1], self.a.shape[1]

    @staticmethod
    def drawn(
        shape: tuple[int, int, int],
        kinds: tuple[DType, DType],
        *,
        scales: tuple[str, ...] = SCALES,
        bias: bool = True,
        layout: str = "nt",
        seed: int = 0,
    ) -> ScaledOperands:
        """Random operands: numbers from a normal distribution, integers over all of their range.

        Args:
            shape: M, N and K.
            kinds: dtypes of A and of B.
            scales: which scales there are.
            bias: whether there is one.
            layout: how A and B lie in memory, as `tilewright gemm` has it.
            seed: of the random numbers.
        """
        m, n, k = shape
        rng = np.random.default_rng(seed)
        drawn = [_drawn(rng, extents, kind) for extents, kind in zip(((m, k), (k, n)), kinds, strict=True)]
        a, b = (laid_out(array, letter) for array, letter in zip(drawn, layout, strict=True))
        made: dict[str, Array | None] = {}
        for name, extent in zip(SCALES, (m, n), strict=True):
            made[name] = rng.uniform(0.5, 2.0, extent).astype(np.float32) if name in scales else None
        return ScaledOperands(a, b, **made, bias=rng.standard_normal(n).astype(np.float32) if bias else None)


def _drawn(rng: np.random.Generator, shape: tuple[int, int], kind: DType) -> Array:
    if kind.is_float:
        return normal(rng, shape, kind)
    return rng.integers(-128, 128, shape).astype(kind.numpy)


@dataclass
class ScaledTrial:
    """`scaled_mm` of some operands on a target.

    Args:
        operands: what is multiplied.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``.
        out: dtype of the result; None: as `scaled_mm` has it.
        activation: what is done with each element at the end.
        schedule: how it is computed; None: as it is chosen.
    """

    operands: ScaledOperands
    target: str
    out: DType | None = None
    activation: str | None = None
    schedule: Schedule | None = None
    _there: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        made, (m, n, _) = self.operands, self.operands.shape
        kinds = dtypes.dtype(made.a.dtype), dtypes.dtype(made.b.dtype)
        self.multiplied = multiplied_as(*kinds)
        self.out = self.out or natural_dtype(self.multiplied)
        blank = np.full(m * n * self.out.bytes, _UNWRITTEN, np.uint8).view(self.out.numpy).reshape(m, n)
        given = {"a": made.a, "b": made.b, "out": blank, "bias": made.bias}
        given |= {name: getattr(made, name) for name in SCALES}
        self._there = {
            name: device_put(array, self.target) for name, array in given.items() if array is not None
        }
        if self.schedule is None:
            arch = arch_of(backend_named(self.target), None)
            a, b = described(self._there["a"]), described(self._there["b"])
            self.multiplied = multiplied_on(a, b, TARGETS[self.target], arch)
        self.name = f"scaled_mm<{self.target}, {kinds[0]} x {kinds[1]} -> {self.out}>"

    def launch(self) -> Any:
        """Start it; on a GPU it may still run when this returns."""
        return scaled_mm(
            **self._there, activation=self.activation, schedule=self.schedule, target=self.target
        )

    def run(self) -> float:
        """Run it to its end; gives back the seconds that the call took."""
        begin = time.perf_counter()
        self.launch()
        if wait := TARGETS[self.target].wait:
            part(wait)()
        return time.perf_counter() - begin

    def result(self) -> Array:
        """The result, in host memory."""
        return np.asarray(device_get(self._there["out"]))

    @property
    def _kernel(self) -> tuple[Bound, dict[str, Any]]:
        """The kernel, and its arrays by its names, on the host."""
        made, (m, n, _) = self.operands, self.operands.shape
        ones = {"scale_a": np.ones(m, np.float32), "scale_b": np.ones(n, np.float32)}
        ones["bias"] = np.zeros(n, np.float32)
        found = {name: getattr(made, name) for name in ones}
        terms = frozenset(name for name, array in found.items() if array is not None)
        bound = scaled(0).bind(
            multiplied=self.multiplied, terms=terms, activation=self.activation, schedule=self.schedule
        )
        given = {name: ones[name] if array is None else array for name, array in found.items()}
        return bound, {"A": made.a, "B": made.b, **given}

    def scheduled(self) -> Schedule:
        """How it is computed."""
        bound, given = self._kernel
        found = bound.schedule_for(*given.values(), self.result(), 1.0, target=self.target)
        assert found is not None, "the kernel is a dataflow kernel"
        return found

    def verify(self) -> StoredComparison:
        """Compare every element with the graph of what is computed, under a bound for each."""
        bound, given = self._kernel
        stored, schedule = self.result(), self.scheduled()
        how = Accumulation.of(schedule.atom, schedule.promote * schedule.block_k or None)
        flow = bound.flow(*given.values(), stored, 1.0)
        return compare_flow(flow, {"D": stored}, given, {"alpha": 1.0}, how)

    def time(self, effort: Effort | None = None) -> Measurement:
        """Measure it in turns with the three passes that it replaces, by NumPy or PyTorch."""
        return measure({OURS: self.launch, **self.three_passes()}, self.target, effort=effort)

    def three_passes(self) -> dict[str, Callable[[], object]]:
        """What is done without such a kernel, by name; nothing where the library is not installed."""
        if self.activation is not None:
            return {}  # it would be another pass
        if self.target == CUDA.name:
            return torch_passes(self._there, self.multiplied)
        return numpy_passes(self.operands)

    @property
    def flops(self) -> int:
        """Operations: a multiplication and an addition for each m, n, k."""
        m, n, k = self.operands.shape
        return 2 * m * n * k

    @property
    def bytes(self) -> int:
        """The fewest bytes that move: every array once."""
        return sum(math.prod(one.shape) * dtypes.dtype(one.dtype).bytes for one in self._there.values())

    def perf(self, microseconds: float) -> str:
        """``Perf: <ms> ms, <x> TFlops, <y> GB/s, <name>`` for the time of one call."""
        tflops, gbytes = self.flops / microseconds / 1e6, self.bytes / microseconds / 1e3
        return f"Perf: {microseconds / 1e3:.4g} ms, {tflops:.4g} TFlops, {gbytes:.4g} GB/s, {self.name}"


def numpy_passes(made: ScaledOperands) -> dict[str, Callable[[], object]]:
    """NumPy: convert to f32, multiply, scale and add the bias."""

    def call() -> Array:
        product = made.a.astype(np.float32) @ made.b.astype(np.float32)
        if made.scale_a is not None:
            product *= made.scale_a[:, None]
        for array, change in ((made.scale_b, np.multiply), (made.bias, np.add)):
            if array is not None:
                change(product, array, out=product)
        return product

    return {f"{THREE_PASSES} (NumPy, in f32)": call}


def torch_passes(there: dict[str, Any], multiplied: DType) -> dict[str, Callable[[], object]]:
    """PyTorch: convert what is narrow, multiply by cuBLAS, scale and add the bias."""
    if "torch" not in sys.modules and find_spec("torch") is None:
        return {}
    import torch

    if multiplied.name not in ("f16", "bf16", "f32"):
        return {}
    kind = getattr(torch, TORCH_NAMES[multiplied.name])
    tensors = {name: as_tensor(array) for name, array in there.items()}
    one = torch.ones(1, device=tensors["a"].device)
    ones = {"scale_a": one, "scale_b": one}
    scale_a, scale_b = (
        tensors.get("scale_a", ones["scale_a"])[:, None],
        tensors.get("scale_b", ones["scale_b"]),
    )
    bias, out = tensors.get("bias", torch.zeros_like(one)), torch.empty_like(tensors["out"])

    def call() -> None:
        product = torch.mm(tensors["a"].to(kind), tensors["b"].to(kind))
        torch.addcmul(bias, product, scale_a[:, None] * scale_b, out=out)

    return {f"{THREE_PASSES} (PyTorch)": call}
