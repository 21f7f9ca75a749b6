"""Trials of `scaled_mm`: random operands, the launches, verification, and timing against three passes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.checking.flows import StoredComparison, compare_flow
from tilewright.checking.sample import Array, laid_out, normal
from tilewright.dtypes import IN_TORCH, DType, limits
from tilewright.ops.products import BLOCK
from tilewright.ops.results import SCALES
from tilewright.ops.scaled import ARRAYS, ScaledExtras, plan_scaled, scaled_mm
from tilewright.ops.scales import multiplied_as, natural_dtype
from tilewright.ops.wanted import Wanted
from tilewright.packing import pack
from tilewright.runtime.gpu_memory import device_put
from tilewright.runtime.packed_arrays import Packed, packed
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import CUDA
from tilewright.tune.measure import Effort, Measurement, measure
from tilewright.tune.rivals import as_tensor, installed_torch
from tilewright.tune.three_launches import ThreeLaunches
from tilewright.tune.trial import OURS, FlowTrial, accumulation_of

THREE_PASSES = "convert, GEMM, scale and bias"
"""Name of the passes that one kernel replaces."""

OUR_PASSES = f"{THREE_PASSES} (tilewright)"
"""Name of the same passes by kernels of this library."""

_UNWRITTEN = 0x7B


@dataclass(frozen=True)
class ScaledOperands:
    """The arguments of `scaled_mm`, in host memory.

    Args:
        a: (M, K).
        b: (K, N); numbers of 4 bits are unpacked, one in each element.
        scale_a: a number for each row, or each block of them, or None; see `scaled_mm`.
        scale_b: a number for each column, or each block of them, or each group and column, or None.
        bias: a number for each column, or None.
        zero_b: a zero point for each group and column, or None.
        group: number of neighbours along K that share a scale; None: all of them.
    """

    a: Array
    b: Array
    scale_a: Array | None = None
    scale_b: Array | None = None
    bias: Array | None = None
    zero_b: Array | None = None
    group: int | None = None

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
        blocks: tuple[int, int] | None = None,
        seed: int = 0,
        group: int | None = None,
        zeros: bool = False,
    ) -> ScaledOperands:
        """Random operands: numbers from a normal distribution, integers over all of their range.

        Args:
            shape: M, N and K.
            kinds: dtypes of A and of B.
            scales: names of the scales to draw.
            bias: whether to draw a bias.
            layout: how A and B lie in memory, as for `tilewright gemm`.
            blocks: rows of A and columns of B per scale, if scales belong to blocks along K.
            seed: seed of the random numbers.
            group: number of neighbours along K that share a scale, and a zero point.
            zeros: whether to draw zero points of groups.
        """
        m, n, k = shape
        rng = np.random.default_rng(seed)
        drawn: list[Array] = []
        for extents, kind in zip(((m, k), (k, n)), kinds, strict=True):
            if kind.is_float:
                numbers = normal(rng, extents, dtypes.f32 if kind.is_packed else kind)
                drawn.append(numbers.astype(kind.numbers) if kind.is_packed else numbers)
            else:
                low, high = limits(kind)
                drawn.append(rng.integers(int(low), int(high) + 1, extents).astype(kind.numbers))
        a, b = (laid_out(array, letter) for array, letter in zip(drawn, layout, strict=True))
        made: dict[str, Array | None] = {}
        sizes: tuple[tuple[int, ...], ...] = (m,), (n,) if group is None else (k // group, n)
        if blocks is not None:
            along_k = -(-k // BLOCK)
            sizes = (-(-m // blocks[0]), along_k), (along_k, -(-n // blocks[1]))
        for name, size in zip(SCALES, sizes, strict=True):
            made[name] = rng.uniform(0.5, 2.0, size).astype(np.float32) if name in scales else None
        made["bias"] = rng.standard_normal(n).astype(np.float32) if bias else None
        made["zero_b"] = (
            rng.integers(-8, 8, sizes[1]).astype(np.int8) if zeros and group is not None else None
        )
        return ScaledOperands(a, b, **made, group=group)

    @property
    def weights(self) -> Array:
        """B in f32, with the zero points and scales of its groups, before scales of columns."""
        wide = self.b.astype(np.float32)
        for array, change in ((self.zero_b, np.subtract), (self.scale_b, np.multiply)):
            if array is not None and self.group is not None:
                wide = change(wide, array.astype(np.float32).repeat(self.group, axis=0))
        return wide


@dataclass
class ScaledTrial(FlowTrial):
    """`scaled_mm` of some operands on a target.

    Args:
        operands: the operands.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``.
        out: dtype of the result; None: the default of `scaled_mm`.
        activation: the function of each element of the result.
        schedule: the schedule of the product; None: `scaled_mm` chooses.
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
        self.out = self.out or natural_dtype(multiplied_as(*kinds))
        blank = np.full(m * n * self.out.bytes, _UNWRITTEN, np.uint8).view(self.out.numpy).reshape(m, n)
        given = {"a": made.a, "b": made.b, "out": blank, "bias": made.bias, "zero_b": made.zero_b}
        given |= {name: getattr(made, name) for name in SCALES}
        self._there = {
            name: _placed(array, self.target) for name, array in given.items() if array is not None
        }
        asked = Wanted(activation=self.activation, schedule=self.schedule, target=self.target)
        arrays = {name: self._there.get(name) for name in ARRAYS}
        self.plan = plan_scaled(arrays, asked, ScaledExtras(made.group))
        self._one_kernel = self.plan
        if len(self.plan.launches) > 1:
            self._one_kernel = plan_scaled(arrays, asked, ScaledExtras(made.group, prepass=False))
        self.multiplied = self.plan.product.kernel.constants["multiplied"]
        self.name = f"scaled_mm<{self.target}, {kinds[0]} x {kinds[1]} -> {self.out}>"

    def launch(self) -> Any:
        """Start it; on a GPU it may still run when this returns."""
        return scaled_mm(
            **self._there,
            group=self.operands.group,
            activation=self.activation,
            schedule=self.schedule,
            target=self.target,
        )

    def verify(self) -> StoredComparison:
        """Compare every element with the graph of the single kernel, under a bound for each."""
        product, stored, schedule = self._one_kernel.product, self.result(), self.scheduled()
        how = accumulation_of(schedule)
        flow = product.kernel.flow(*product.arrays, *product.numbers)
        tensors = [one.name for one in product.kernel.program.parameters if one.kind == "tensor"]
        given = {"A": self.operands.a, "B": self.operands.b}
        for parameter, name, seen in zip(
            tensors[2:-1], product.names[2:-1], product.arrays[2:-1], strict=True
        ):
            array = getattr(self.operands, name, None)  # None: the result stands for it, and is not read
            shape = seen.info.shape
            given[parameter] = np.ones(shape, np.float32) if array is None else _of_shape(array, shape)
        return compare_flow(flow, {"D": stored}, given, {"alpha": 1.0}, how)

    def time(self, effort: Effort | None = None) -> Measurement:
        """Measure it in turns with the passes that it replaces: ours, and NumPy's or PyTorch's."""
        own = {} if self.own_passes is None else {OUR_PASSES: self.own_passes.launch}
        return measure({OURS: self.launch, **own, **self.three_passes()}, self.target, effort=effort)

    @functools.cached_property
    def own_passes(self) -> ThreeLaunches | None:
        """The passes by our own kernels.

        None for scales of blocks, which would need a product for each block, and for groups along K whose
        numbers are not neighbours in memory.
        """
        made = self.operands
        strided = made.group is not None and made.b.strides[0] != made.b.itemsize
        if "shared" in self._one_kernel.product.kernel.constants or strided:
            return None
        kinds = {dtypes.dtype(array.dtype) for array in (made.a, made.b)}
        # Only scaled_mm multiplies two kinds of fp8 without conversion.
        multiplied = dtypes.f16 if len(kinds) > 1 and self.multiplied.bits == 8 else self.multiplied
        return ThreeLaunches(self._there, multiplied, self.activation, made.group, self.target)

    @property
    def launches(self) -> dict[str, int]:
        """Number of kernels that each flow launches."""
        own = self.own_passes
        return {OURS: len(self.plan.launches)} | ({} if own is None else {OUR_PASSES: own.launches})

    @property
    def moved(self) -> dict[str, int]:
        """Bytes that the launches of each flow read and write, every array once per launch."""
        own = self.own_passes
        return {OURS: self.plan.moved_bytes} | ({} if own is None else {OUR_PASSES: own.bytes})

    def three_passes(self) -> dict[str, Callable[[], object]]:
        """Return the passes of another library, by name; none if it is not installed."""
        made = self.operands
        in_blocks = made.group is None and any(
            x is not None and x.ndim > 1 for x in (made.scale_a, made.scale_b)
        )
        if self.activation is not None or in_blocks:
            return {}  # these need more passes
        if self.target != CUDA.name:  # convert to f32, multiply, scale and add the bias

            def with_numpy() -> Array:
                product = made.a.astype(np.float32) @ made.weights
                if made.scale_a is not None:
                    product *= made.scale_a[:, None]
                for array, change in ((made.scale_b, np.multiply), (made.bias, np.add)):
                    if array is not None and array.ndim == 1:
                        change(product, array, out=product)
                return product

            return {f"{THREE_PASSES} (NumPy, in f32)": with_numpy}

        if made.group is not None or dtypes.dtype(made.b.dtype).is_packed:
            return {}  # PyTorch converts neither
        # Convert narrow operands, multiply by cuBLAS, scale and add the bias.
        torch = installed_torch()
        if torch is None or self.multiplied.name not in ("f16", "bf16", "f32"):
            return {}
        kind = getattr(torch, IN_TORCH[self.multiplied.name])
        tensors = {name: as_tensor(array) for name, array in self._there.items()}
        one = torch.ones(1, device=tensors["a"].device)
        scale_a = tensors.get("scale_a", one).reshape(-1, 1)
        scale_b = tensors.get("scale_b", one).reshape(1, -1)
        bias, out = tensors.get("bias", torch.zeros_like(one)), torch.empty_like(tensors["out"])

        def with_torch() -> object:
            product = torch.mm(tensors["a"].to(kind), tensors["b"].to(kind))
            return torch.addcmul(bias, product, scale_a * scale_b, out=out)

        return {f"{THREE_PASSES} (PyTorch)": with_torch}

    @property
    def flops(self) -> int:
        """Operations: a multiplication and an addition for each m, n, k."""
        m, n, k = self.operands.shape
        return 2 * m * n * k

    @property
    def bytes(self) -> int:
        """The fewest bytes that move: every array once."""
        arrays = (one.array if isinstance(one, Packed) else one for one in self._there.values())
        return sum(math.prod(one.shape) * dtypes.dtype(one.dtype).bytes for one in arrays)


def _placed(array: Array, target: str) -> Any:
    """Copy an array to a target; numbers of 4 bits are packed, two in a byte, along K if K is contiguous."""
    kind = dtypes.dtype(array.dtype)
    if not kind.is_packed:
        return device_put(array, target)
    along_k = array.strides[0] == array.itemsize
    held = pack(array.T if along_k else array, kind)
    return packed(device_put(held.T if along_k else held, target), kind)


def _of_shape(array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Reshape an array, or repeat its numbers if it has fewer elements than the shape."""
    if array.size == math.prod(shape):
        return array.reshape(shape)
    return np.broadcast_to(array.reshape(()) if array.size == 1 else array, shape)
