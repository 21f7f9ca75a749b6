"""The calls of a problem of the survey: ours and those of the peer, and the comparison of the results.

Arrays are views of a few large pools of random numbers, so that a problem costs no allocation.  A sample of
rows and columns is compared with a product in f64 under the bound of its schedule, and no element of the
result may be left unwritten.  The peer's result must agree with ours in norm.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from survey_problems import SurveyProblem

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm, gemm_bound, inputs
from tilewright.checking.composed_products import compare_complex
from tilewright.checking.references import attention_room, chained, softmax_attention, worst_of
from tilewright.checking.sample import normal
from tilewright.dtypes import IN_TORCH, dtype
from tilewright.errors import WrongResultError
from tilewright.namespaces import part
from tilewright.ops.launching import OWN, LaunchPlan
from tilewright.ops.replay import SCRATCH, stream_on
from tilewright.tune.trial import accumulation_of

OURS, NUMPY, NUMPY_F32, OURS_F32 = "tilewright", "NumPy", "NumPy, in f32", "tilewright, in f32"
SAMPLED = 32
"""Rows and columns that are compared."""

SAMPLED_ELEMENTS = 1 << 17
"""Elements of the sampled rows of A, at most, unless `LEAST_SAMPLED` rows have more."""

LEAST_SAMPLED = 4
DEEPEST = 1 << 15
"""Largest K of a sample in which lost terms are looked for; that takes longer than the bound."""

KEPT_BYTES = 1 << 30
"""Bytes of memory that a process keeps from problem to problem if it only compiles."""

AGREE = 5e-2
"""Largest difference of the peer's sample from ours, in norm, if both compute the same."""

Array = Any
Result = Callable[[Array, Sequence[LaunchPlan]], float]
"""Compares a result; returns the largest error over its bound."""


class Calls(NamedTuple):
    """A problem's calls.

    Args:
        ours: our call.
        out: its result.
        peers: calls of the peer by name; each returns its result.
        compare: compares our result, made by some plans.
        sampled: returns a sample of a result, for the comparison with the peer.
        strides: strides of the arrays in elements.
    """

    ours: Callable[..., object]
    out: Array
    peers: dict[str, Callable[[], Array]]
    compare: Result
    sampled: Callable[[Array], Any]
    strides: dict[str, tuple[int, ...]]


@contextmanager
def recorded(*, launch: bool = True) -> Iterator[list[LaunchPlan]]:
    """Collect the plans of the calls inside; a call that repeats an earlier one has none.

    Args:
        launch: whether to launch the kernels; if not, they are only compiled.
    """
    found: list[LaunchPlan] = []
    start = LaunchPlan.start

    def noted(plan: LaunchPlan, stream: Any = None) -> Any:
        found.append(plan)
        if launch:
            return start(plan, stream)
        if plan.launches:
            device = plan.launches[0].arrays[0].info.device
            handle, _ = stream_on(device, [*plan.call.arrays.values()], stream)
            with part(SCRATCH)(plan.scratch_bytes or 1, device, handle) as address:
                for one in plan.launches:
                    one.prepare(address, plan.target)
        return ()

    LaunchPlan.start = noted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        LaunchPlan.start = start  # type: ignore[method-assign]


# ---------------------------------------------------------------- memory


class NumpyMemory:
    """Arrays of NumPy, for processors."""

    target = "cpu"

    def begin(self) -> None:
        """Forget the arrays of the last problem."""
        self._rng = np.random.default_rng(7)

    def normal(self, kind: str, shape: tuple[int, ...]) -> Array:
        """Return normal numbers, row after row."""
        return normal(self._rng, shape, dtype(kind))

    def whole(self, values: Sequence[int]) -> Array:
        """Return integers of 32 bits."""
        return np.array(values, np.int32)

    def empty(self, kind: str, shape: tuple[int, ...], place: int) -> Array:
        """Return a result that is NaN everywhere; different places do not overlap."""
        del place
        return np.full(shape, np.nan, dtype(kind).numpy)

    def poison(self, array: Array) -> None:
        """Fill a result with NaN."""
        array[...] = np.nan

    def has_nan(self, array: Array) -> bool:
        """Whether an element is NaN."""
        return bool(np.isnan(array).any())

    def host(self, array: Array) -> Any:
        """Return an array in host memory."""
        return array

    def wait(self) -> None:
        """Wait for the device."""


class TorchMemory:
    """Tensors of PyTorch on a device.

    Args:
        device: ``"cuda"``, or ``"cpu"`` to try the program without a GPU.
        fill: whether operands need numbers; if kernels are only compiled, they do not.
    """

    def __init__(self, device: str, *, fill: bool = True) -> None:
        import torch
        import torch.nn.attention

        self.torch, self.device, self.fill = torch, device, fill
        self.target = device
        self._pools: dict[str, Any] = {}
        self._used: dict[str, int] = {}
        self._results: dict[int, Any] = {}
        torch.manual_seed(7)

    def begin(self) -> None:
        """Forget the arrays of the last problem."""
        self._used = dict.fromkeys(self._pools, 0)
        if not self.fill:  # many processes share the device
            self._pools.clear()
            self._results.clear()
            if self.device == "cuda" and self.torch.cuda.memory_reserved() > KEPT_BYTES:
                self.torch.cuda.empty_cache()

    def kind(self, name: str) -> Any:
        """Return a dtype of PyTorch."""
        return getattr(self.torch, IN_TORCH[name])

    def normal(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return normal numbers, row after row: the next of a pool."""
        count, begin = math.prod(shape), self._used.get(name, 0)
        if not self.fill:
            return self.torch.empty(shape, dtype=self.kind(name), device=self.device)
        if name not in self._pools or begin + count > len(self._pools[name]):
            # Earlier arrays of this problem keep the old pool alive.
            begin, size = 0, 1 << max(count - 1, 1 << 20).bit_length()
            self._pools.pop(name, None)
            self._pools[name] = self._pool(name, size)
        unit = 4096  # places, so that arrays begin at multiples of 4096 bytes or more
        self._used[name] = begin + -(-count // unit) * unit
        return self._pools[name][begin : begin + count].view(shape)

    def _pool(self, name: str, size: int) -> Any:
        if dtype(name).bits == 8:
            return self.torch.randn(size, dtype=self.torch.float16, device=self.device).to(self.kind(name))
        return self.torch.randn(size, dtype=self.kind(name), device=self.device)

    def whole(self, values: Sequence[int]) -> Array:
        """Return integers of 32 bits."""
        return self.torch.tensor(list(values), dtype=self.torch.int32, device=self.device)

    def empty(self, name: str, shape: tuple[int, ...], place: int) -> Array:
        """Return a result in memory of its own for each place."""
        kind = self.kind(name)
        if not self.fill:
            return self.torch.empty(shape, dtype=kind, device=self.device)
        size = math.prod(shape) * kind.itemsize
        if place not in self._results or len(self._results[place]) < size:
            self._results.pop(place, None)
            room = 1 << max(size - 1, 1 << 20).bit_length()
            self._results[place] = self.torch.empty(room, dtype=self.torch.uint8, device=self.device)
        return self._results[place][:size].view(kind).view(shape)

    def poison(self, array: Array) -> None:
        """Fill a result with NaN."""
        array.fill_(math.nan)

    def has_nan(self, array: Array) -> bool:
        """Whether an element is NaN."""
        return bool(self.torch.isnan(array).any())

    def host(self, array: Array) -> Any:
        """Return a tensor as a NumPy array."""
        name = next(known for known, word in IN_TORCH.items() if word == str(array.dtype).partition(".")[2])
        element = dtype(name)
        if name in ("bf16", "f8e4m3"):  # NumPy reads their bits
            bits = {16: self.torch.int16, 8: self.torch.uint8}[element.bits]
            return array.contiguous().view(bits).cpu().numpy().view(element.numpy)
        return array.contiguous().cpu().numpy()

    def wait(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            self.torch.cuda.synchronize()


Memory = NumpyMemory | TorchMemory


def stored(memory: Memory, kind: str, shape: tuple[int, ...], letter: str) -> Array:
    """Return a matrix, or a batch of matrices, stored row after row or column after column."""
    *lead, rows, columns = shape
    if letter == "n":
        return memory.normal(kind, shape)
    return swapped(memory.normal(kind, (*lead, columns, rows)))


def swapped(array: Array) -> Array:
    """Return a view with the last two dimensions swapped."""
    return array.swapaxes(-1, -2)


def strides_of(array: Array) -> tuple[int, ...]:
    """Return the strides of an array in elements."""
    return (
        tuple(step // array.itemsize for step in array.strides)
        if isinstance(array, np.ndarray)
        else tuple(array.stride())
    )


# ---------------------------------------------------------------- samples


def places(extent: int, most: int) -> list[int]:
    """Return some places of a dimension, in order: the first, the last, and others at random."""
    if extent <= most:
        return [*range(extent)]
    inner = np.random.default_rng(extent).choice(extent - 2, most - 2, replace=False) + 1
    return [0, *sorted(map(int, inner)), extent - 1]


def rows_at(array: Array, at: list[int]) -> Array:
    """Return some rows of a matrix; PyTorch does not index numbers of 8 bits."""
    if isinstance(array, np.ndarray) or array.dtype.itemsize > 1:
        return array[at]
    import torch

    return array.view(torch.uint8)[at].view(array.dtype)


class Sample:
    """The rows and columns of a product that are compared.

    Args:
        memory: the memory of the arrays.
        shape: M, N, K.
    """

    def __init__(self, memory: Memory, shape: tuple[int, ...]) -> None:
        m, n, k = shape
        most = min(SAMPLED, max(SAMPLED_ELEMENTS // max(k, 1), LEAST_SAMPLED))
        self.memory, self.rows, self.columns = memory, places(m, most), places(n, most)

    def of_a(self, a: Array, rows: list[int] | None = None) -> Any:
        """Return rows of A."""
        return self.memory.host(rows_at(a, self.rows if rows is None else rows))

    def of_b(self, b: Array) -> Any:
        """Return columns of B."""
        return np.ascontiguousarray(self.memory.host(rows_at(swapped(b), self.columns)).T)

    def of_c(self, c: Array, rows: list[int] | None = None) -> Any:
        """Return the elements of the result in these rows and columns."""
        picked = swapped(c[self.rows if rows is None else rows])[self.columns]
        return np.ascontiguousarray(self.memory.host(picked).T)


def judged(ratio: float) -> float:
    """Return an error over its bound.

    Raises:
        WrongResultError: it is larger than the bound, or NaN.
    """
    if not ratio <= 1:
        raise WrongResultError(f"wrong: an element of the sample is off by {ratio:.3g} of its bound")
    return ratio


def launched(memory: Memory, calls: Calls) -> list[LaunchPlan]:
    """Run our call on a poisoned result, and return its plans."""
    memory.poison(calls.out)
    with recorded() as plans:
        calls.ours()
    memory.wait()
    return plans


def check(memory: Memory, calls: Calls, plans: Sequence[LaunchPlan]) -> float:
    """Compare a sample of the result of our call; return the largest error over its bound.

    Raises:
        WrongResultError: an element is wrong, or was not written, or another target ran.
    """
    ran = {plan.target for plan in plans}
    if ran - {memory.target}:
        raise WrongResultError(f"asked for target {memory.target}, but {ran} ran")
    if memory.has_nan(calls.out):
        raise WrongResultError("wrong: elements are NaN, or were not written")
    return judged(calls.compare(calls.out, plans))


def agreeing(memory: Memory, calls: Calls) -> dict[str, str]:
    """Call every peer once, and remove those that refuse the problem or compute something else.

    Our own result is right: it was checked before.

    Returns:
        The reasons.
    """
    ours, without = np.asarray(calls.sampled(calls.out)), {}
    wide = np.complex128 if ours.dtype.kind == "c" else np.float64
    ours = ours.astype(wide)
    for name in [*calls.peers]:
        try:
            theirs = np.asarray(calls.sampled(calls.peers[name]())).astype(wide)
            memory.wait()
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            without[name] = str(error).partition("\n")[0][:200]
        else:
            off, size = float(np.linalg.norm(theirs - ours)), float(np.linalg.norm(ours))
            if not off <= AGREE * size + 1e-30:
                without[name] = f"it differs by {off / size:.3g} in norm"
        if name in without:
            del calls.peers[name]
    return without


# ---------------------------------------------------------------- products


def accumulated(plans: Sequence[LaunchPlan], kind: str) -> Accumulation:
    """Return how the product of a call was added up."""
    schedule = plans[-1].schedule if plans else None
    if schedule is None:
        return Accumulation.default(dtype(kind))
    details = plans[-1].details
    if dtype(kind).components == 2 and details is not None:
        return details.accumulation(schedule)
    return accumulation_of(schedule)


def in_torch(torch: Any, one: SurveyProblem, a: Array, b: Array, theirs: Array) -> dict[str, Any]:
    """Return the products that PyTorch offers for the arrays."""
    torch.set_float32_matmul_precision("high" if one.precision == "tf32" else "highest")
    m, n, k = one.shape
    if one.items:
        return {"torch.bmm": functools.partial(torch.bmm, a, b, out=theirs)}
    calls = {"torch.mm": functools.partial(torch.mm, a, b, out=theirs)}
    if m == n == 1:
        calls["torch.dot"] = lambda: torch.dot(a[0], b[:, 0], out=theirs[0, 0])[None, None]
    elif n == 1:
        column = theirs[:, 0]
        calls["torch.mv"] = lambda: torch.mv(a, b[:, 0], out=column)[:, None]
    elif m == 1:
        row, turned = theirs[0], b.mT
        calls["torch.mv"] = lambda: torch.mv(turned, a[0], out=row)[None]
    elif k == 1:
        calls["torch.mul"] = functools.partial(torch.mul, a, b, out=theirs)
    return calls


def in_numpy(one: SurveyProblem, a: Array, b: Array) -> dict[str, Any]:
    """Return NumPy's product; of halves in f32, which is compared with ours in f32 likewise."""
    if dtype(one.dtype).bits > 16:
        out = np.empty((*a.shape[:-1], b.shape[-1]), a.dtype)
        return {NUMPY: functools.partial(np.matmul, a, b, out=out)}
    wide = [x.astype(np.float32, order="K") for x in (a, b)]
    outs = [np.empty((*a.shape[:-1], b.shape[-1]), np.float32) for _ in range(2)]
    return {
        OURS_F32: functools.partial(tw.matmul, *wide, out=outs[0], target="cpu"),
        NUMPY_F32: functools.partial(np.matmul, *wide, out=outs[1]),
    }


def as_multiplied(operands: Sequence[Any], plans: Sequence[LaunchPlan], how: Accumulation) -> list[Any]:
    """Return A and B as the product reads them: a prepass for tf32 rounds to nearest what it writes.

    The multiplication rounds what it reads in its own way, and leaves rounded numbers as they are.
    """
    if how.precision is None or not plans or plans[-1].details is not None:
        return [*operands]
    nearest = replace(how, rounding="nearest")
    names = plans[-1].product.names
    return [inputs(one, nearest) if name == OWN else one for one, name in zip(operands, names, strict=False)]


def error_of_bound(a: Any, b: Any, c: Any, how: Accumulation) -> float:
    """Return the largest error of a product over its bound; of very deep ones no lost term is looked for.

    Raises:
        WrongResultError: it is wrong.
    """
    if a.shape[1] <= DEEPEST:
        found = compare_gemm(a, b, c, how)
        found.raise_if_wrong()
        return found.error / found.bound if found.bound else 0.0
    high, low, bound = gemm_bound(inputs(a, how), inputs(b, how), how, dtype(c.dtype))
    return judged(float((np.abs((c.astype(np.float64) - high) - low) / bound).max()))


def product(memory: Memory, one: SurveyProblem) -> Calls:
    """Return the calls of ``C = A B``, also in batches."""
    (m, n, k), lead = one.shape, (one.items,) if one.items else ()
    a = stored(memory, one.dtype, (*lead, m, k), one.layout[0])
    b = stored(memory, one.dtype, (*lead, k, n), one.layout[1])
    out = memory.empty(one.dtype, (*lead, m, n), 0)
    sample, at = Sample(memory, one.shape), [0, one.items - 1] if one.items else [None]

    def of(array: Array, item: int | None) -> Array:
        return array if item is None else array[item]

    def compare(made: Array, plans: Sequence[LaunchPlan]) -> float:
        how, ratios = accumulated(plans, one.dtype), []
        is_complex = dtype(one.dtype).components == 2
        for item in at:
            given = sample.of_a(of(a, item)), sample.of_b(of(b, item)), sample.of_c(of(made, item))
            given = (*as_multiplied(given[:2], plans, how), given[2])
            if is_complex:
                found = compare_complex(*given, how=how)
                found.raise_if_wrong()
                ratios.append(found.error / found.bound)
            else:
                ratios.append(error_of_bound(*given, how))
        return max(ratios)

    words = {} if one.precision == "exact" else {"precision": one.precision}
    ours = functools.partial(tw.matmul, a, b, out=out, **words)
    if isinstance(memory, TorchMemory):
        theirs = memory.empty(one.dtype, (*lead, m, n), 1)
        peers = in_torch(memory.torch, one, a, b, theirs)
    else:
        peers = in_numpy(one, a, b)
    last = at[-1]
    return Calls(ours, out, peers, compare, lambda c: sample.of_c(of(c, last)), strides(a=a, b=b, out=out))


def strides(**arrays: Array) -> dict[str, tuple[int, ...]]:
    """Return the strides of arrays by name."""
    return {name: strides_of(array) for name, array in arrays.items()}


SHARE = {"f16": 2.0**-16, "f8e4m3": 2.0**-11}
"""Error of sums over the sum of the sizes of their products; fp8 by fp8 keeps 13 bits of partial sums."""


def with_scales(memory: Memory, one: SurveyProblem) -> Calls:
    """Return the calls of products with scales of rows and columns; the second operand is fp8."""
    assert isinstance(memory, TorchMemory), "processors have another benchmark"
    torch, (m, n, k) = memory.torch, one.shape
    a, b = stored(memory, one.dtype, (m, k), "n"), stored(memory, "f8e4m3", (k, n), "t")
    out, theirs = (memory.empty(one.out_dtype, (m, n), place) for place in (0, 1))
    scale_b = memory.normal("f32", (1, n)).abs().add(0.5)
    sample = Sample(memory, one.shape)
    if one.op == "mixed":
        scale_b = (scale_b / 64).half().float()[0]
        scales = {"scale_b": scale_b}
        half = stored(memory, "f16", (k, n), "t")
        peers = {"torch.mm, f16 weights": functools.partial(torch.mm, a, half, out=theirs)}
    else:
        scales = {"scale_a": memory.normal("f32", (m, 1)).abs().add(0.5), "scale_b": scale_b}
        words = {**scales, "out_dtype": memory.kind(one.out_dtype)}
        peers = {"torch._scaled_mm": functools.partial(torch._scaled_mm, a, b, **words)}

    def compare(made: Array, _: Sequence[LaunchPlan]) -> float:
        left, right = sample.of_a(a).astype(np.float64), sample.of_b(b).astype(np.float64)
        scale = memory.host(scale_b).reshape(1, -1)[:, sample.columns].astype(np.float64)
        if "scale_a" in scales:
            scale = memory.host(scales["scale_a"])[sample.rows].astype(np.float64) * scale
        exact, sizes = left @ right * scale, np.abs(left) @ np.abs(right) * np.abs(scale)
        most = dtype(one.out_dtype).unit_roundoff * np.abs(exact) + SHARE[one.dtype] * sizes + 1e-7
        return float((np.abs(sample.of_c(made).astype(np.float64) - exact) / most).max())

    ours = functools.partial(tw.scaled_mm, a, b, out, **scales)
    # The peer of f16 by fp8 multiplies other numbers: only its time is compared.
    sampled = sample.of_c if one.op == "scaled" else lambda c: np.zeros(1)
    return Calls(ours, out, peers, compare, sampled, strides(a=a, b=b, out=out))


def grouped(memory: Memory, one: SurveyProblem) -> Calls:
    """Return the calls of products of groups of rows; three groups are compared."""
    assert isinstance(memory, TorchMemory), "processors have another benchmark"
    torch, (m, n, k) = memory.torch, one.shape
    a, b = stored(memory, one.dtype, (m, k), "n"), stored(memory, one.dtype, (len(one.sizes), k, n), "t")
    out, ends = memory.empty(one.dtype, (m, n), 0), memory.whole(np.cumsum(one.sizes).tolist())
    sample = Sample(memory, one.shape)
    filled = [group for group, size in enumerate(one.sizes) if size]
    compared = {filled[0], filled[len(filled) // 2], filled[-1]}

    def compare(made: Array, plans: Sequence[LaunchPlan]) -> float:
        how, ratios = accumulated(plans, one.dtype), []
        for group in compared:
            first, size = sum(one.sizes[:group]), one.sizes[group]
            rows = [first + at for at in places(size, 16)]
            given = sample.of_a(a, rows), sample.of_b(b[group]), sample.of_c(made, rows)
            ratios.append(error_of_bound(*given, how))
        return max(ratios)

    ours = functools.partial(tw.grouped_matmul, a, b, ends, out)
    peers = {"torch._grouped_mm": functools.partial(torch._grouped_mm, a, b, offs=ends)}
    return Calls(ours, out, peers, compare, sample.of_c, strides(a=a, b=b, out=out))


# ---------------------------------------------------------------- attention and chains

SHORT = 4096
"""Most keys of which two heads are compared."""

BACKENDS = {"torch (cuDNN)": "CUDNN_ATTENTION", "torch (Flash)": "FLASH_ATTENTION"}


def attention(memory: Memory, one: SurveyProblem) -> Calls:
    """Return the calls of attention; 16 neighbouring rows are compared, of two heads if keys are few."""
    assert isinstance(memory, TorchMemory), "processors have another benchmark"
    torch, (batch, heads, shared, queries, keys, depth) = memory.torch, one.shape
    q = memory.normal(one.dtype, (batch, heads, queries, depth))
    k, v = (memory.normal(one.dtype, (batch, shared, keys, depth)) for _ in range(2))
    out, scale = memory.empty(one.dtype, q.shape, 0), 1 / math.sqrt(depth)
    begin = max((queries - 16) * 2 // 3, 0)
    rows, at = slice(begin, begin + 16), [(batch - 1, heads - 1)]
    if keys <= SHORT:
        at.append((0, 0))

    def compare(made: Array, _: Sequence[LaunchPlan]) -> float:
        worst, shift = 0.0, begin if one.causal else None
        for item, head in at:
            of_keys = head * shared // heads
            arrays = (q[item, head, rows], k[item, of_keys], v[item, of_keys])
            given = [memory.host(array) for array in arrays]
            wanted = softmax_attention(*given, scale, shift)
            room = attention_room(*given, scale, shift)
            off = np.abs(memory.host(made[item, head, rows]).astype(np.float64) - wanted) / room
            worst = max(worst, float(np.nan_to_num(off, nan=np.inf).max()))
        return worst

    def rival(backend: Any) -> Array:
        with torch.nn.attention.sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=one.causal, enable_gqa=heads != shared
            )

    known = torch.nn.attention.SDPBackend
    peers = {name: functools.partial(rival, getattr(known, word)) for name, word in BACKENDS.items()}
    ours = functools.partial(tw.attention, q, k, v, causal=one.causal, out=out)
    return Calls(
        ours,
        out,
        peers,
        compare,
        lambda made: memory.host(made[-1, -1, rows]),
        strides(q=q, k=k, v=v, out=out),
    )


def chain(memory: Memory, one: SurveyProblem) -> Calls:
    """Return the calls of ``activation(A B) C``; the elements of A are divided by the root of K."""
    assert isinstance(memory, TorchMemory), "processors have another benchmark"
    torch, (m, n, k, p) = memory.torch, one.shape
    a, b, c = (memory.normal(one.dtype, shape) for shape in ((m, k), (k, n), (n, p)))
    a = a / math.sqrt(k)
    out, theirs = (memory.empty(one.dtype, (m, p), place) for place in (0, 1))
    between = memory.empty(one.dtype, (m, n), 2)
    sample = Sample(memory, (m, p, max(n, k)))

    def in_steps() -> Array:
        torch.mm(a, b, out=between)
        if one.activation:
            between.relu_()
        return torch.mm(between, c, out=theirs)

    def compare(made: Array, _: Sequence[LaunchPlan]) -> float:
        exact = chained(sample.of_a(a), memory.host(b), sample.of_b(c), one.activation)
        return worst_of(sample.of_c(made), exact)

    ours = functools.partial(tw.gemm_chain, a, b, c, activation=one.activation, out=out)
    return Calls(
        ours, out, {"PyTorch, in steps": in_steps}, compare, sample.of_c, strides(a=a, b=b, c=c, out=out)
    )


OPS: Mapping[str, Callable[[Memory, SurveyProblem], Calls]] = {
    "matmul": product,
    "mixed": with_scales,
    "scaled": with_scales,
    "grouped": grouped,
    "attention": attention,
    "chain": chain,
}


def calls_of(memory: Memory, one: SurveyProblem) -> Calls:
    """Return the calls of a problem."""
    memory.begin()
    return OPS[one.op](memory, one)
