"""Trials of `einsum`: random arrays, the launches, verification and timing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.checking.flows import StoredComparison, compare_flow
from tilewright.checking.sample import Array
from tilewright.dataflow.nodes import EXACT, TF32
from tilewright.dtypes import DType
from tilewright.ops.contraction import ADDED, Contraction, Subscripts, extents_of, read_subscripts
from tilewright.ops.einsum import ARRAYS, einsum, plan_einsum
from tilewright.ops.launching import LaunchPlan
from tilewright.ops.products import output_dtype
from tilewright.ops.results import SCALES
from tilewright.ops.wanted import HALVES_OF, NO_DROPOUT, Dropout, Wanted
from tilewright.runtime.gpu_memory import device_put
from tilewright.schedule.schedule import Reduction, Schedule, SplitK
from tilewright.targets.target import CUDA, REFERENCE
from tilewright.tune.measure import Effort, Measurement, measure
from tilewright.tune.rivals import as_tensor, installed_torch
from tilewright.tune.trial import OURS, FlowTrial, accumulation_of

_UNWRITTEN = 0x7B


@dataclass(frozen=True)
class Contracted:
    """The arguments of `einsum`, in host memory.

    Args:
        subscripts: the labels of the axes, as in `einsum`.
        arrays: ``a``, ``b``, ``out``, and those of `ADDED` and `SCALES` that the call has.
    """

    subscripts: str
    arrays: dict[str, Array]

    @property
    def named(self) -> Subscripts:
        """The label of each axis."""
        return read_subscripts(self.subscripts, [self.arrays[name].ndim for name in ("a", "b")])

    @staticmethod
    def drawn(
        subscripts: str,
        shapes: tuple[tuple[int, ...], tuple[int, ...]],
        kind: DType,
        *,
        bias: bool = True,
        multiply: bool = False,
        residual: bool = False,
        c: bool = False,
        whole: bool = False,
        seed: int = 0,
    ) -> Contracted:
        """Random arrays: numbers from a normal distribution, integers over a part of their range.

        Args:
            subscripts: the labels of the axes, as in `einsum`.
            shapes: shapes of the operands.
            kind: dtype of the operands.
            bias: whether to draw a bias: a number for each index of the axes that only ``b`` has.
            multiply: whether to draw ``multiply``, an array of the shape of the result.
            residual: whether to draw a residual, of the shape of the result.
            c: whether to draw ``c``, of the shape of the result.
            whole: whether numbers are small integers, whose sums are exact.
            seed: seed of the random numbers.
        """
        rng = np.random.default_rng(seed)
        named = read_subscripts(subscripts, [len(shape) for shape in shapes])
        a, b = (_numbers(rng, shape, kind, whole) for shape in shapes)
        extents = extents_of(named, a.shape, b.shape)
        shape = tuple(extents[label] for label in named.out)
        made = output_dtype(kind)
        blank = np.full(math.prod(shape) * made.bytes, _UNWRITTEN, np.uint8).view(made.numpy).reshape(shape)
        arrays = {"a": a, "b": b, "out": blank}
        if bias:
            own = tuple(extents[label] if label not in named.a else 1 for label in named.out)
            arrays["bias"] = _numbers(rng, own, made, whole)
        given = {"multiply": multiply, "residual": residual, "c": c}
        for name in [name for name, is_wanted in given.items() if is_wanted]:
            arrays[name] = _numbers(rng, shape, made, whole)
        return Contracted(subscripts, arrays)


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], kind: DType, whole: bool) -> Array:
    if kind.is_float and not whole:
        return np.asarray(rng.standard_normal(shape)).astype(kind.numpy)
    most = 3 if whole else 100
    return np.asarray(rng.integers(-most, most + 1, shape)).astype(kind.numpy)


@dataclass
class EinsumTrial(FlowTrial):
    """A contraction on a target.

    Args:
        given: the arrays and subscripts.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``.
        activation: the function of each element of the result.
        schedule: the schedule of the product; None: `einsum` chooses.
        alpha: the factor of the sums.
        beta: the factor of ``c``.
        derivative: an argument of `einsum`.
        dropped: probability, seed and offset of `einsum`.
        saturate: an argument of `einsum`.
        split_k: an argument of `einsum`.
        reduction: an argument of `einsum`.
        precision: an argument of `einsum`.
    """

    given: Contracted
    target: str
    activation: str | None = None
    schedule: Schedule | None = None
    alpha: float = 1.0
    beta: float | None = None
    derivative: str | None = None
    dropped: Dropout = NO_DROPOUT
    saturate: bool = False
    split_k: SplitK | None = None
    reduction: Reduction | None = None
    precision: str = EXACT
    _there: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._there = {name: device_put(one, self.target) for name, one in self.given.arrays.items()}
        kind = dtypes.dtype(self.given.arrays["a"].dtype)
        self.name = f"einsum<{self.target}, {kind}, {self.given.subscripts}>"
        self.plan = self._planned(self._there, self.precision, self.schedule, self.target)

    def _planned(
        self, arrays: dict[str, Any], precision: str, schedule: Schedule | None, target: str
    ) -> LaunchPlan:
        """The launches for some arrays."""
        given = {name: arrays.get(name) for name in ARRAYS}
        how = (schedule, target, self.split_k, self.reduction, False)
        late = (self.derivative, self.saturate, self.dropped)
        asked = Wanted(self.alpha, self.beta, self.activation, precision, None, *how, *late)
        return plan_einsum(self.given.subscripts, given, asked)

    def launch(self) -> Any:
        """Start it; on a GPU it may still run when this returns."""
        words = ("alpha", "beta", "activation", "derivative", "saturate", "schedule", "split_k", "reduction")
        given = {name: getattr(self, name) for name in (*words, "precision", "target")}
        dropped = self.dropped
        given |= {"dropout": dropped.probability, "seed": dropped.seed, "offset": dropped.offset}
        return einsum(self.given.subscripts, **self._there, **given)

    @property
    def contraction(self) -> Contraction:
        """The contraction as the kernel computes it."""
        found: Contraction = self.plan.details
        return found

    @property
    def halves(self) -> int:
        """Number of halves of f16 into which a prepass splits operands; 0: no prepass."""
        return HALVES_OF[self.precision] if len(self.plan.launches) > 1 else 0

    def verify(self) -> StoredComparison:
        """Compare every element with the graph of the single kernel, under a bound for each.

        Halves of f32 are compared with the product of f32.
        """
        held, schedule = {**self.given.arrays, "out": self.result()}, self.scheduled()
        words = (EXACT, None) if self.halves else (self.precision, self.schedule)
        product = self._planned(held, *words, REFERENCE.name).product
        flow = product.kernel.flow(*product.arrays, *product.numbers)
        given, parameters = dict[str, Array](), product.kernel.program.parameters
        tensors = [one.name for one in parameters if one.kind == "tensor"]
        for own, name, seen in zip(tensors, product.names, product.arrays, strict=True):
            strides = [stride * held[name].itemsize for stride in seen.info.strides]
            given[own] = np.lib.stride_tricks.as_strided(held[name], seen.info.shape, strides)
        stored = {"D": given.pop("D")}
        others = [one.name for one in parameters if one.kind != "tensor"]
        numbers = dict(zip(others, product.numbers, strict=True))
        return compare_flow(flow, stored, given, numbers, accumulation_of(schedule), self.halves)

    def time(self, effort: Effort | None = None) -> Measurement:
        """Measure it in turns with NumPy or PyTorch, in two steps: contract, then add and order."""
        return measure({OURS: self.launch, **self.rivals()}, self.target, effort=effort)

    def rivals(self) -> dict[str, Callable[[], object]]:
        """Return calls of other libraries that compute the same, by name."""
        is_more = (
            self.given.arrays.keys() & {*ADDED[1:], *SCALES} or self.dropped.probability or self.saturate
        )
        if self.activation is not None or is_more or self.alpha != 1:
            return {}
        if self.target == CUDA.name:
            return self._torch_rivals()
        kept = self.given.arrays
        bias = kept.get("bias", np.zeros(1, kept["out"].dtype))
        return {
            "np.einsum": lambda: np.add(
                np.einsum(self.given.subscripts, kept["a"], kept["b"], optimize=True), bias
            )
        }

    def _torch_rivals(self) -> dict[str, Callable[[], object]]:
        """Return PyTorch's einsum, followed by an addition of the bias, with the result's order of axes."""
        if (torch := installed_torch()) is None:
            return {}
        tensors = {name: as_tensor(array) for name, array in self._there.items()}
        bias = tensors.get("bias")
        torch.set_float32_matmul_precision("high" if self.precision == TF32 else "highest")

        def call() -> object:
            found = torch.einsum(self.given.subscripts, tensors["a"], tensors["b"])
            return (found if bias is None else found + bias).contiguous()

        return {"torch.einsum": call}

    @property
    def flops(self) -> int:
        """Operations: a multiplication and an addition for each index of all axes."""
        a, b = (self.given.arrays[name].shape for name in ("a", "b"))
        return 2 * math.prod(extents_of(self.given.named, a, b).values())

    @property
    def bytes(self) -> int:
        """The fewest bytes that move: every array once."""
        return sum(one.nbytes for one in self.given.arrays.values())
