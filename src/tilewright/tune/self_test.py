"""The self-test: a few kernels, step by step, with every element compared.

Each kernel is taken through the same steps, and the first that fails is named: arrays are copied to the
device, the kernel is compiled, launched, waited for, its result copied back; bytes around the result must be
as they were, and every element within its bound.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright import dtypes
from tilewright.checking.flows import compare_flow
from tilewright.errors import TilewrightError
from tilewright.lang.launch import block_index
from tilewright.lang.operations import copy, load
from tilewright.lang.scalars import ceil_div
from tilewright.ops.products import plain, scaled
from tilewright.runtime.drivers import synchronize
from tilewright.runtime.executable import Executable
from tilewright.runtime.gpu_memory import DeviceArray, device_put
from tilewright.runtime.kernel import Bound, Kernel, kernel
from tilewright.targets.target import target_named
from tilewright.tune.trial import accumulation_of

Array = npt.NDArray[Any]

STEPS = ("copy in", "compile", "launch", "wait", "copy out", "canaries", "compare")

POISON = 0xA5
"""Every byte of a result and of its surroundings before the launch."""

ROWS, COLUMNS = 2, 16
"""Rows and columns of poison before and after a result."""

SHAPE = (130, 70, 90)
"""M, N, K: whole tiles and ragged ones."""

TILE, THREADS = 256, 64


@kernel(X="M N", Y="M N")
def copied(X: Any, Y: Any) -> None:
    """Y = X, a tile of each row at a time."""
    m, n = block_index((X.shape[0], ceil_div(X.shape[1], TILE)))
    copy(load(X.tile((1, TILE), (m, n)).partition((1, THREADS))), Y.tile((1, TILE), (m, n)))


@dataclass(frozen=True)
class SelfTestCase:
    """One kernel and its arrays on the host; the last one is the result.

    Args:
        name: its name.
        kernel: the kernel.
        constants: its constants.
        arrays: the arrays by parameter; the content of the result is ignored.
        numbers: the kernel's numbers.
        split_k: number of parts of K.
    """

    name: str
    kernel: Kernel
    constants: Mapping[str, Any]
    arrays: Mapping[str, Array]
    numbers: Mapping[str, float]
    split_k: int = 1


@dataclass(frozen=True)
class SelfTestOutcome:
    """The outcome of a case.

    Args:
        name: the name of the case.
        step: the one of `STEPS` that failed, or "".
        reason: the reason of the failure, or "".
        seconds: seconds of all steps that ran.
        said: the instruction of a case that passed.
    """

    name: str
    step: str
    reason: str
    seconds: float
    said: str = ""

    @property
    def ok(self) -> bool:
        """Whether no step failed."""
        return not self.step


def cases(seed: int = 14) -> tuple[SelfTestCase, ...]:
    """A copy, a product of ragged extents, weights of 8 bits with scales and bias, K in parts."""
    rng = np.random.default_rng(seed)
    m, n, k = SHAPE

    def drawn(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    x = drawn(5, 3 * TILE + 8)
    a, b = drawn(m, k).astype(np.float16), drawn(k, n).astype(np.float16)
    weights = drawn(k, n).astype(dtypes.f8e4m3.numpy)
    factors = {"scale_a": np.ones(m, np.float32), "scale_b": rng.random(n, np.float32), "bias": drawn(n)}
    exact = {"precision": "exact"}
    linear = {"multiplied": dtypes.f16, "terms": frozenset({"scale_b", "bias"}), "activation": None}
    result = np.empty((m, n), np.float16)
    return (
        SelfTestCase("copy", copied, {}, {"X": x, "Y": np.empty_like(x)}, {}),
        SelfTestCase(f"f16 product {m}x{n}x{k}", plain(0), exact, {"A": a, "B": b, "D": result}, {}),
        SelfTestCase(
            "f16 by f8e4m3, scale and bias",
            scaled(0),
            linear,
            {"A": a, "B": weights, **factors, "D": result},
            {"alpha": 1.0},
        ),
        SelfTestCase(
            "f16 product, K in two parts", plain(0), exact, {"A": a, "B": b, "D": result}, {}, split_k=2
        ),
    )


def self_test(target: str) -> Iterator[SelfTestOutcome]:
    """Try every case on a target."""
    for case in cases():
        yield tried(case, target)


def tried(case: SelfTestCase, target: str) -> SelfTestOutcome:
    """Take a case through the steps, up to the first that fails."""
    begin, trial = time.perf_counter(), _Trial(case, target)
    for step in STEPS:
        try:
            reason: str = getattr(trial, step.replace(" ", "_"))() or ""
        except TilewrightError as error:
            reason = str(error) or type(error).__name__
        if reason:
            return SelfTestOutcome(case.name, step, reason, time.perf_counter() - begin)
    return SelfTestOutcome(case.name, "", "", time.perf_counter() - begin, trial.said)


class Fenced:
    """A result surrounded by poison, on the host or on a device.

    Args:
        like: an array of its extents and dtype.
        target: the target whose memory holds it.
    """

    def __init__(self, like: Array, target: str) -> None:
        rows, columns = (like.shape[0] + 2 * ROWS, like.shape[1] + 2 * COLUMNS)
        self._host = np.full((rows, columns * like.itemsize), POISON, np.uint8).view(like.dtype)
        self._there = device_put(self._host, target)
        self.array = self._inner(self._there)

    def _inner(self, whole: Any) -> Any:
        if not isinstance(whole, DeviceArray):
            return whole[ROWS:-ROWS, COLUMNS:-COLUMNS]
        return _Window(whole, self._inner(self._host).shape)

    def fetch(self) -> None:
        """Copy all of it to the host."""
        if isinstance(self._there, DeviceArray):
            self._host = self._there.host()

    @property
    def result(self) -> Array:
        """The fetched result."""
        found: Array = self._inner(self._host)
        return found

    def damage(self) -> str:
        """Describe writes around the result; "" without any."""
        around = np.ones(self._host.shape, np.bool_)
        around[ROWS:-ROWS, COLUMNS:-COLUMNS] = False
        octets = self._host.view(np.uint8).reshape(*self._host.shape, -1)
        wrong = np.argwhere((octets != POISON).any(-1) & around)
        if not len(wrong):
            return ""
        row, column = wrong[0] - (ROWS, COLUMNS)
        return f"{len(wrong)} elements around the result were written, the first at [{row}, {column}] of it"


class _Window:
    """The inner part of an array on a device."""

    def __init__(self, whole: DeviceArray, shape: tuple[int, ...]) -> None:
        face = whole.__cuda_array_interface__
        start = face["data"][0] + ROWS * whole.strides[0] + COLUMNS * whole.strides[1]
        self.__cuda_array_interface__ = {**face, "shape": shape, "data": (start, False)}
        self.whole = whole


class _Trial:
    """The steps in their order; each returns a description of its failure, if it fails."""

    said = ""

    def __init__(self, case: SelfTestCase, target: str) -> None:
        self._case, self._target = case, target_named(target)
        self._bound: Bound = case.kernel.bind(**case.constants)

    def copy_in(self) -> None:
        *given, _ = self._case.arrays.items()
        self._given = [device_put(array, self._target.name) for _, array in given]
        self._result = Fenced([*self._case.arrays.values()][-1], self._target.name)

    @property
    def _arguments(self) -> tuple[Any, ...]:
        return (*self._given, self._result.array, *self._case.numbers.values())

    def compile(self) -> None:
        self._made: Executable = self._bound.compile(*self._arguments, target=self._target.name)
        if self._case.split_k > 1:
            assert self._made.schedule is not None
            parts = replace(self._made.schedule, split_k=self._case.split_k, reduction="workspace")
            self._bound = self._case.kernel.bind(**self._case.constants, schedule=parts)
            self._made = self._bound.compile(*self._arguments, target=self._target.name)

    def launch(self) -> str:
        ran = self._bound(*self._arguments, target=self._target.name)
        return "" if ran.target == self._target.name else f"target {ran.target} ran"

    def wait(self) -> None:
        synchronize(self._target.name)

    def copy_out(self) -> None:
        self._result.fetch()

    def canaries(self) -> str:
        return self._result.damage()

    def compare(self) -> str:
        *given, (name, _) = self._case.arrays.items()
        found, schedule = self._result.result, self._made.schedule
        if schedule is None:
            wrong = np.argwhere(found != given[0][1]).tolist()
            return f"{len(wrong)} elements differ, the first at {wrong[0]}" if wrong else ""
        how = accumulation_of(schedule)
        flow = self._bound.flow(*self._arguments)
        outcome = compare_flow(flow, {name: found}, dict(given), self._case.numbers, how)
        self.said = str(schedule.atom)
        return "" if outcome.ok else str(outcome)
