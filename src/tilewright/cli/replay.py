"""`tilewright replay`: the calls of a log again, on random data, compared with the reference and timed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from math import prod
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from tilewright.cli.console import Seed, UsageError, duration, reports, say, working
from tilewright.cli.notation import read_schedule
from tilewright.dtypes import DType, dtype
from tilewright.errors import TilewrightError, WrongResultError
from tilewright.runtime.backends import backend_named
from tilewright.runtime.call_log import FORMAT, LoggedArray
from tilewright.runtime.drivers import driver_for
from tilewright.runtime.gpu_memory import DeviceArray, DeviceMemory
from tilewright.targets.target import HOST, REFERENCE, serving
from tilewright.tune.measure import do_bench

LARGEST = 1 << 21
"""Multiplications of a call, as `_work` estimates them, up to which the slow reference executes it."""

SLACK = 16
"""Roundings of the result by which a call may differ from the reference.

Sums of the whole numbers are exact in both; functions such as `exp` are not.
"""


READERS: Mapping[str, Callable[[Any], Any]] = {
    "value": lambda one: one,
    "dtype": dtype,
    "schedule": read_schedule,
    "complex": lambda one: complex(*one),
}
"""Functions that read an argument other than an array, by the argument's kind in the log."""


class LoggedCall(NamedTuple):
    """A call of a log.

    Args:
        op: the operation.
        arguments: its arguments, as `tilewright.runtime.call_log.described` gives them.
        host_us: host time of the calls in the log.
    """

    op: str
    arguments: Mapping[str, Any]
    host_us: list[float]


@reports
def replay(
    log: Annotated[Path, typer.Argument(help="A log that TILEWRIGHT_LOG=calls.jsonl wrote.")],
    seed: Seed = 0,
    time: Annotated[bool, typer.Option(help="Time each call.")] = True,
) -> None:
    """Repeat the calls of a log on random data: compare them with the reference, and time them.

    Exit status: 0 if all results are right, 1 if one is wrong, 2 if no call can be repeated here.
    """
    calls, wrong, repeated = read(log), 0, 0
    for call in calls:
        try:
            with working(f"{call.op}"):
                told, is_right = _replayed(call, np.random.default_rng(seed), time)
        except TilewrightError as error:
            told, is_right = f"left out: {error}".partition("\n")[0], True
        wrong += not is_right
        repeated += not told.startswith("left out: ")
        say(call.op, f"{_words(call)}: {told}")
    count = sum(len(call.host_us) for call in calls)
    say("calls", f"{count} in the log, {len(calls)} different")
    if wrong:
        raise WrongResultError(f"{wrong} of {len(calls)} calls differ from the reference")
    if not repeated:
        text = f"{log}: all {len(calls)} calls were left out, for the reasons above"
        raise UsageError(text, "a log of calls that this machine can repeat")


def read(log: Path) -> list[LoggedCall]:
    """Return the different calls of a log, in the order of their first lines.

    Raises:
        UsageError: the file is no log of JSON lines.
    """
    found = dict[str, LoggedCall]()
    for number, text in enumerate(log.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not _is_call(line):
            what = f"{log}, line {number}: no call in JSON of format {FORMAT}"
            raise UsageError(what, "a log that TILEWRIGHT_LOG=calls.jsonl wrote")
        if "error" in line:
            continue
        key = json.dumps([line["op"], line["arguments"]])
        found.setdefault(key, LoggedCall(line["op"], line["arguments"], [])).host_us.append(line["host_us"])
    if not found:
        raise UsageError(f"{log} has no calls that succeeded; nearest: a log of calls of operations")
    return [*found.values()]


def _is_call(line: Any) -> bool:
    """Return whether a line of a log describes a call of this format."""
    if not isinstance(line, dict) or line.get("format") != FORMAT:
        return False
    op, arguments, took = (line.get(key) for key in ("op", "arguments", "host_us"))
    return (
        isinstance(op, str)
        and callable(getattr(sys.modules["tilewright"], op, None))
        and isinstance(arguments, dict)
        and all(map(_is_argument, arguments.values()))
        and isinstance(took, int | float)
    )


def _is_argument(value: Any) -> bool:
    """Return whether a value has a form that `tilewright.runtime.call_log.described` writes."""
    if not isinstance(value, dict) or len(value) != 1:
        return False
    ((kind, inner),) = value.items()
    if kind in ("tuple", "list"):
        return isinstance(inner, list) and all(map(_is_argument, inner))
    if kind == "array":
        if not isinstance(inner, dict) or inner.keys() != {one.name for one in fields(LoggedArray)}:
            return False
        shape, strides = inner["shape"], inner["strides"]
        return isinstance(shape, list) and isinstance(strides, list) and len(shape) == len(strides)
    return kind in (*READERS, "other")


def _replayed(call: LoggedCall, rng: np.random.Generator, timed: bool) -> tuple[str, bool]:
    """Run a call; return the report on it, and whether its result is right."""
    operation: Callable[..., Any] = getattr(sys.modules["tilewright"], call.op)
    here, there = _Arguments(rng), _Arguments(np.random.default_rng(0))
    given = {name: here.made(name, value) for name, value in call.arguments.items()}
    before = {name: array.copy() for name, array in here.host.items()}
    target = given.get("target") or serving(next(iter(here.devices), HOST).partition(":")[0]).name
    if (driver := driver_for(target)) is not None and (reason := driver.missing()):
        return f"left out: {reason}", True
    result = operation(**given)
    told = "not compared: more than the reference executes in seconds"
    is_right = True
    if call.op == "matmul" or _work(call) <= LARGEST:
        there.given = before
        again = {name: there.made(name, value, on_host=True) for name, value in call.arguments.items()}
        expected = operation(**{**again, "target": REFERENCE.name}) if _work(call) <= LARGEST else None
        if expected is None:
            expected = _product(again)
        if expected is not None:
            told, is_right = _compared(result, expected)
    if timed:
        took = do_bench(lambda: operation(**given), backend_named(target).name) / 1e3
        told += f"; {duration(took)}, in the log {duration(median(call.host_us) / 1e6)} on the host"
    return told, is_right


class _Arguments:
    """Arguments of a call on random whole numbers.

    Args:
        rng: draws the numbers.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self.host = dict[str, Any]()
        self.given: Mapping[str, Any] = {}
        self.devices = list[str]()
        self._made = dict[str, Any]()

    def made(self, name: str, value: Mapping[str, Any], *, on_host: bool = False) -> Any:
        """Return an argument.

        Raises:
            UsageError: the log does not hold it.
        """
        (kind, inner), *_ = value.items()
        if kind == "array":
            self._made[name] = found = self._array(name, LoggedArray(**inner), on_host)
            return found
        if kind in ("tuple", "list"):
            parts = [self.made(f"{name}[{at}]", one, on_host=on_host) for at, one in enumerate(inner)]
            return parts if kind == "list" else tuple(parts)
        if kind == "other":
            raise UsageError(f"argument {name} is {inner}, which a log does not hold")
        return READERS[kind](inner)

    def _array(self, name: str, one: LoggedArray, on_host: bool) -> Any:
        if one.same_as:
            return self._made[one.same_as]
        kind = dtype(one.dtype)
        flat, seen, offset = _buffer(kind, tuple(one.shape), tuple(one.strides), one.align)
        seen[...] = self.given[name] if name in self.given else _numbers(self._rng, seen.shape, kind)
        self.host[name] = seen
        self.devices += [] if one.device == HOST else [one.device]
        if on_host or one.device == HOST:
            return seen
        vendor, index = one.device.split(":")
        driver = driver_for(serving(vendor).name)
        assert driver is not None, "GPUs have drivers"
        memory = DeviceMemory(max(flat.nbytes, 1), int(index), driver)
        memory.fill(flat.ctypes.data, flat.nbytes)
        if offset or min(seen.strides, default=0) < 0:
            raise UsageError(f"argument {name} has negative strides, which replays on GPUs do not make")
        return DeviceArray(memory, seen.shape, seen.strides, kind)


def _buffer(
    kind: DType, shape: tuple[int, ...], strides: tuple[int, ...], align: int
) -> tuple[Any, Any, int]:
    """Return a flat buffer, an array in it with any strides, and the index of the array's first element."""
    steps = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    empty = 0 in shape
    low = 0 if empty else sum(step for step in steps if step < 0)
    span = 0 if empty else sum(step for step in steps if step > 0) - low + 1
    memory = np.zeros(span * kind.bytes + 768, np.uint8)
    # The address is a multiple of `align`, and of no larger power of 2.
    start = -(memory.ctypes.data - low * kind.bytes) % 512 + (align if align < 256 else 0)
    flat = memory[start : start + span * kind.bytes]
    bytes_ = tuple(stride * kind.bytes for stride in strides)
    if empty:
        return flat, np.empty(shape, kind.numpy), 0
    seen: Any = np.ndarray(shape, kind.numpy, memory, start - low * kind.bytes, bytes_)
    return flat, seen, -low


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], kind: DType) -> Any:
    """Return small random whole numbers, which every dtype holds."""
    low, high = (0, 2) if kind.kind == "bool" else (0 if kind.kind == "uint" else -3, 4)
    made = rng.integers(low, high, shape)
    if kind.components == 2:
        return (made + 1j * rng.integers(low, high, shape)).astype(kind.numpy)
    return made.astype(kind.numpy)


def _product(given: Mapping[str, Any]) -> Any:
    """Return a plain matrix product in f64; None if the call has other terms."""
    plain = {"a", "b", "out", "target", "schedule", "precision", "out_dtype", "split_k", "reduction"}
    if any(value is not None and name not in plain for name, value in given.items()):
        return None
    a, b = given["a"], given["b"]
    if a.dtype.kind == "c" or b.dtype.kind == "c":
        return a.astype(np.complex128) @ b.astype(np.complex128)
    return a.astype(np.float64) @ b.astype(np.float64)


def _compared(result: Any, expected: Any) -> tuple[str, bool]:
    """Compare the arrays of two results; return the report, and whether they agree."""
    pairs = [*zip(_arrays(result), _arrays(expected), strict=True)]
    wrong = count = 0
    for found, wanted in pairs:
        kind = dtype(found.dtype)
        wide = np.complex128 if kind.components == 2 else np.float64
        rounded = wanted.astype(found.dtype).astype(wide)
        allowed = SLACK * kind.unit_roundoff * np.maximum(np.abs(rounded), 1)
        with np.errstate(all="ignore"):
            apart = ~(np.abs(found.astype(wide) - rounded) <= allowed) & ~(found.astype(wide) == rounded)
            apart &= ~(np.isnan(found.astype(wide)) & np.isnan(rounded))
        wrong += int(apart.sum())
        count += found.size
    if wrong:
        return f"WRONG: {wrong} of {count} elements differ from the reference", False
    return f"correct: {count} elements", True


def _arrays(result: Any) -> Iterator[Any]:
    """Yield the arrays of a result in host memory."""
    if isinstance(result, tuple | list):
        for one in result:
            yield from _arrays(one)
    elif result is not None:
        yield result.host() if isinstance(result, DeviceArray) else np.asarray(result)


def _work(call: LoggedCall) -> int:
    """Estimate the multiplications of a call: elements of its largest array, times its largest extent."""
    shapes = [one.shape for one in _logged_arrays(call.arguments.values())]
    elements = max((prod(max(extent, 1) for extent in shape) for shape in shapes), default=1)
    return elements * max((extent for shape in shapes for extent in shape), default=1)


def _logged_arrays(values: Any) -> Iterator[LoggedArray]:
    for value in values:
        if "array" in value:
            yield LoggedArray(**value["array"])
        for kind in ("tuple", "list"):
            yield from _logged_arrays(value.get(kind, ()))


def _words(call: LoggedCall) -> str:
    found = []
    for name, value in call.arguments.items():
        arrays = [f"{one.dtype}[{'x'.join(map(str, one.shape))}]" for one in _logged_arrays([value])]
        if arrays:
            found.append(f"{name} {' '.join(arrays)}")
        elif value.get("value") is not None:
            found.append(f"{name}={value['value']}")
    return ", ".join(found)
