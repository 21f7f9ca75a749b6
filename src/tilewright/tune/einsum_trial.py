"""A contraction from its arrays to its time, so that all callers ask the same of it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import StoredComparison, compare_flow
from tilewright.checking.sample import Array
from tilewright.dataflow.nodes import EXACT, TF32
from tilewright.dtypes import DType
from tilewright.ops.contraction import ADDED, Contraction, Posed, extents_of, posed
from tilewright.ops.contraction_halves import is_split
from tilewright.ops.contractions import IN_KERNEL, contraction_in_halves
from tilewright.ops.einsum import Dropout, EinsumExtras, bound_for, einsum, ending_of
from tilewright.ops.grades import F32, HALVES_OF
from tilewright.ops.halves import Part, Split
from tilewright.ops.planning import Wanted
from tilewright.ops.problem import Matrices
from tilewright.ops.products import output_dtype
from tilewright.ops.subscripts import Subscripts, read_subscripts
from tilewright.runtime.arrays import ArrayInfo, describe
from tilewright.runtime.gpu_memory import device_get, device_put
from tilewright.runtime.kernel import Bound
from tilewright.schedule.schedule import Reduction, Schedule, SplitK
from tilewright.targets.target import CUDA
from tilewright.tune.measure import Effort, Measurement, first_time, measure, perf_line
from tilewright.tune.rivals import as_tensor
from tilewright.tune.trial import OURS

_UNWRITTEN = 0x7B

NOTHING = Dropout()
"""Is dropped."""


@dataclass(frozen=True)
class Contracted:
    """What `einsum` is given, in host memory.

    Args:
        subscripts: of the axes.
        arrays: ``a``, ``b``, ``out``, and ``bias`` and ``residual`` if there are any.
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
        whole: bool = False,
        seed: int = 0,
    ) -> Contracted:
        """Random arrays: numbers from a normal distribution, integers over a part of their range.

        Args:
            subscripts: of the axes.
            shapes: of the operands.
            kind: their dtype.
            bias: whether there is one: a number for each index of the axes that only ``b`` has.
            multiply: whether there is an array of the shape of the result to multiply with.
            residual: whether there is one, of the shape of the result.
            whole: whether numbers are small integers, whose sums are exact.
            seed: of the random numbers.
        """
        rng = np.random.default_rng(seed)
        named = read_subscripts(subscripts, [len(shape) for shape in shapes])
        a, b = (_numbers(rng, shape, kind, whole) for shape in shapes)
        extents = extents_of(named, {"a": describe(a), "b": describe(b)})
        shape = tuple(extents[label] for label in named.out)
        made = output_dtype(kind)
        blank = np.full(math.prod(shape) * made.bytes, _UNWRITTEN, np.uint8).view(made.numpy).reshape(shape)
        arrays = {"a": a, "b": b, "out": blank}
        if bias:
            own = tuple(extents[label] if label not in named.a else 1 for label in named.out)
            arrays["bias"] = _numbers(rng, own, made, whole)
        for name in [name for name, wanted in (("multiply", multiply), ("residual", residual)) if wanted]:
            arrays[name] = _numbers(rng, shape, made, whole)
        return Contracted(subscripts, arrays)


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], kind: DType, whole: bool) -> Array:
    if kind.is_float and not whole:
        return np.asarray(rng.standard_normal(shape)).astype(kind.numpy)
    most = 3 if whole else 100
    return np.asarray(rng.integers(-most, most + 1, shape)).astype(kind.numpy)


@dataclass
class EinsumTrial:
    """A contraction on a target.

    Args:
        given: what is contracted.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``.
        activation: what is done with each element at the end.
        schedule: how it is computed; None: as it is chosen.
        alpha: what the sums are multiplied by.
        derivative: as `einsum` has it.
        dropped: which elements are dropped.
        saturate: as `einsum` has it.
        split_k: likewise.
        reduction: likewise.
        precision: likewise.
    """

    given: Contracted
    target: str
    activation: str | None = None
    schedule: Schedule | None = None
    alpha: float = 1.0
    derivative: str | None = None
    dropped: Dropout = NOTHING
    saturate: bool = False
    split_k: SplitK | None = None
    reduction: Reduction | None = None
    precision: str = EXACT
    _there: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._there = {name: device_put(one, self.target) for name, one in self.given.arrays.items()}
        kind = dtypes.dtype(self.given.arrays["a"].dtype)
        self.name = f"einsum<{self.target}, {kind}, {self.given.subscripts}>"

    def launch(self) -> Any:
        """Start it; on a GPU it may still run when this returns."""
        return einsum(
            self.given.subscripts,
            **self._there,
            alpha=self.alpha,
            activation=self.activation,
            derivative=self.derivative,
            dropout=self.dropped.probability,
            seed=self.dropped.seed,
            offset=self.dropped.offset,
            saturate=self.saturate,
            schedule=self.schedule,
            split_k=self.split_k,
            reduction=self.reduction,
            precision=self.precision,
            target=self.target,
        )

    def run(self) -> float:
        """Run it to its end; gives back the seconds that the call took."""
        return first_time(self.launch, self.target)[1]

    def result(self) -> Array:
        """The result, in host memory."""
        return np.asarray(device_get(self._there["out"]))

    @property
    def _posed(self) -> Posed:
        infos = {name: describe(array) for name, array in self.given.arrays.items()}
        return posed(self.given.named, infos, indexed=self.dropped.probability > 0)

    @property
    def contraction(self) -> Contraction:
        """How the kernel sees the arrays."""
        return self._posed.contraction

    @property
    def _wanted(self) -> Wanted:
        """What is asked for, as `einsum` hands it on."""
        asked = Wanted(self.alpha, None, self.activation, self.precision, schedule=self.schedule)
        return asked._replace(split_k=self.split_k, reduction=self.reduction)

    @property
    def _besides(self) -> EinsumExtras:
        return EinsumExtras(self.derivative, self.saturate, self.dropped)

    @property
    def halves(self) -> int:
        """Into how many halves of f16 operands are split, which are multiplied instead; 0: they are not."""
        return HALVES_OF[self.precision] if is_split(self._posed, self._wanted, self.target) else 0

    def _of_halves(self) -> Schedule | None:
        """The schedule of the kernel that multiplies halves: from their extents and order in memory alone."""
        problem, held = self._posed, {**self.given.arrays, "out": self.result()}
        sides = []
        for name in "ab":
            info = problem.infos[name]
            matrices = Matrices(info.shape, info.strides)
            split = Split.of(held[name], info, matrices, is_turned=name == "b")
            half, units = (_like(part) for part in (split.halves, split.units))
            sides.append((half.swapaxes(-1, -2) if name == "b" else half, units))
        (a, of_a), (b, of_b) = sides
        seen = {name: _seen(held[name], info) for name, info in problem.infos.items()}
        rest = [seen.get(name, seen["out"]) for name in IN_KERNEL[2:]]
        infos = {name: describe(array) for name, array in held.items()}
        ending = ending_of(problem, infos, self._wanted, self._besides)
        kernel = contraction_in_halves(problem.contraction)
        bound = kernel.bind(both=self.halves == HALVES_OF[F32], ending=ending, schedule=self._wanted.how)
        numbers = self._numbers.values()
        return bound.schedule_for(a, a, b, b, of_a, of_b, *rest, *numbers, target=self.target)

    def _kernel(self) -> tuple[Bound, dict[str, Array]]:
        """The kernel, and its arrays by its names, on the host, as it sees them."""
        problem = self._posed
        held = {**self.given.arrays, "out": self.result()}
        infos = {name: describe(array) for name, array in held.items()}
        # Halves of f32 are compared with what f32 is multiplied to.
        exact = self._wanted._replace(precision=EXACT, schedule=None) if self.halves else self._wanted
        bound = bound_for(problem, infos, exact, self._besides)
        problem = posed(self.given.named, infos, indexed=self.dropped.probability > 0)
        seen = {name: _seen(held[name], info) for name, info in problem.infos.items()}
        tensors = [p.name for p in bound.program.parameters if p.kind == "tensor"]
        in_order = [seen.get(name, seen["out"]) for name in IN_KERNEL]
        return bound, dict(zip(tensors, in_order, strict=True))

    @property
    def _numbers(self) -> dict[str, float]:
        """The numbers of the kernel, by its names."""
        names = ("alpha", "seed", "offset", "threshold", "scale")
        return dict(zip(names, (self.alpha, *self.dropped.numbers), strict=True))

    def scheduled(self) -> Schedule:
        """How it is computed."""
        if self.halves:
            found = self._of_halves()
        else:
            bound, given = self._kernel()
            found = bound.schedule_for(*given.values(), *self._numbers.values(), target=self.target)
        assert found is not None, "the kernel is a dataflow kernel"
        return found

    def verify(self) -> StoredComparison:
        """Compare every element with the graph of what is computed, under a bound for each."""
        bound, given = self._kernel()
        schedule = self.scheduled()
        how = Accumulation.of(schedule.atom, schedule.promote * schedule.block_k or None)
        flow = bound.flow(*given.values(), *self._numbers.values())
        stored = {"D": given.pop("D")}
        return compare_flow(flow, stored, given, self._numbers, how, self.halves)

    def time(self, effort: Effort | None = None) -> Measurement:
        """Measure it in turns with NumPy or PyTorch, in two steps: contract, then add and order."""
        return measure({OURS: self.launch, **self.rivals()}, self.target, effort=effort)

    def rivals(self) -> dict[str, Callable[[], object]]:
        """What computes the same without a kernel of its own, by name."""
        is_more = self.given.arrays.keys() & {*ADDED[1:]} or self.dropped.probability or self.saturate
        if self.activation is not None or is_more or self.alpha != 1:
            return {}
        if self.target == CUDA.name:
            return torch_einsum(self.given.subscripts, self._there, tf32=self.precision == TF32)
        kept = self.given.arrays
        bias = kept.get("bias", np.zeros(1, kept["out"].dtype))
        return {
            "np.einsum": lambda: np.add(
                np.einsum(self.given.subscripts, kept["a"], kept["b"], optimize=True), bias
            )
        }

    @property
    def flops(self) -> int:
        """Operations: a multiplication and an addition for each index of all axes."""
        infos = {name: describe(self.given.arrays[name]) for name in ("a", "b")}
        return 2 * math.prod(extents_of(self.given.named, infos).values())

    @property
    def bytes(self) -> int:
        """The fewest bytes that move: every array once."""
        return sum(one.nbytes for one in self.given.arrays.values())

    def perf(self, microseconds: float) -> str:
        """``Perf: <ms> ms, <x> TFlops, <y> GB/s, <name>`` for the time of one call."""
        return perf_line(microseconds, self.flops, self.bytes, self.name)


def _seen(array: Array, info: ArrayInfo) -> Array:
    """An array in host memory as a kernel sees it."""
    strides = [stride * array.itemsize for stride in info.strides]
    return np.lib.stride_tricks.as_strided(array, info.shape, strides)


def _like(part: Part) -> Array:
    """An array of a layout, of which no element is looked at."""
    strides = [stride * part.dtype.bytes for stride in part.strides]
    return np.lib.stride_tricks.as_strided(np.zeros(1, part.dtype.numpy), part.shape, strides)


def torch_einsum(
    subscripts: str, there: dict[str, Any], *, tf32: bool = False
) -> dict[str, Callable[[], object]]:
    """PyTorch's einsum, if it is installed, and its bias added behind it, in the order of the result."""
    if "torch" not in sys.modules and find_spec("torch") is None:
        return {}
    import torch

    tensors = {name: as_tensor(array) for name, array in there.items()}
    bias = tensors.get("bias")
    torch.set_float32_matmul_precision("high" if tf32 else "highest")

    def call() -> object:
        found = torch.einsum(subscripts, tensors["a"], tensors["b"])
        return (found if bias is None else found + bias).contiguous()

    return {"torch.einsum": call}
