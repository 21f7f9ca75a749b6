"""A log of the calls of operations, as text or as JSON lines that `tilewright replay` reads.

`CALL_LOG` is None unless `TILEWRIGHT_LOG` names a file when the operations are imported. Only then are calls
wrapped, so that a log that is off costs nothing.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Any

from tilewright.dtypes import DType
from tilewright.errors import TilewrightError
from tilewright.runtime.arrays import describe
from tilewright.runtime.environment import LOG, SettingError, log_file
from tilewright.runtime.executable import Executable
from tilewright.runtime.frameworks import ArrayInfo
from tilewright.schedule.schedule import Schedule

FORMAT = 1
"""Version of the format of a line."""


@dataclass(frozen=True)
class LoggedArray:
    """An array of a logged call.

    Args:
        dtype: its element type.
        shape: extents.
        strides: strides in elements.
        align: bytes that divide its address, at most 256.
        device: where it lies.
        same_as: the name of an earlier argument that is the same array, or an empty text.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    align: int
    device: str
    same_as: str = ""

    @staticmethod
    def of(info: ArrayInfo, earlier: Mapping[str, ArrayInfo]) -> LoggedArray:
        """Describe an array; ``earlier`` are the arrays of the call before it."""
        device = info.device if isinstance(info.device, str) else f"{info.device[0]}:{info.device[1]}"
        alignment = min(info.pointer & -info.pointer, 256) if info.pointer else 256
        key = (info.pointer, info.shape, info.strides)
        same = next(
            (name for name, one in earlier.items() if (one.pointer, one.shape, one.strides) == key), ""
        )
        return LoggedArray(str(info.dtype), info.shape, info.strides, alignment, device, same)

    def __str__(self) -> str:
        extents, strides = "x".join(map(str, self.shape)), "x".join(map(str, self.strides))
        same = f", the array {self.same_as}" if self.same_as else ""
        return f"{self.dtype}[{extents}] strides {strides} on {self.device}{same}"


class _Notes(threading.local):
    """Notes on the launches of the current call; `executables` is None outside of a logged call."""

    executables: list[Executable] | None = None
    replayed = False


class CallLog:
    """Writes a line for each call.

    Args:
        place: a file; ``-`` is the standard error.

    Raises:
        SettingError: the file cannot be opened.
    """

    def __init__(self, place: str) -> None:
        self.is_json = place.endswith((".jsonl", ".json"))
        self._notes = _Notes()
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._file = 2 if place == "-" else os.open(os.path.expanduser(place), flags, 0o644)
        except (OSError, ValueError) as problem:
            reason = getattr(problem, "strerror", None) or str(problem)
            raise SettingError(LOG, place, reason, "calls.jsonl") from None

    def logged(self, call: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
        """Return an operation that writes a line for each of its calls; calls inside of it write none.

        Args:
            call: the operation.
            function: the author's function, whose parameters have names.
        """
        signature = inspect.signature(inspect.unwrap(function))

        @wraps(call)
        def run(*args: Any, **kwargs: Any) -> Any:
            notes = self._notes
            if notes.executables is not None:
                return call(*args, **kwargs)
            arguments = self._arguments(signature, args, kwargs)
            notes.executables, notes.replayed = [], False
            start, problem = time.perf_counter_ns(), ""
            try:
                return call(*args, **kwargs)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
                raise
            finally:
                took = (time.perf_counter_ns() - start) / 1e3
                made, notes.executables = notes.executables or [], None
                name = getattr(function, "__name__", "call")
                self._write(name, arguments, took, made, replayed=notes.replayed, problem=problem)

        return run

    def note(self, executables: Iterable[Executable], *, replayed: bool) -> None:
        """Note the kernels of the current call."""
        if self._notes.executables is not None:
            self._notes.executables.extend(executables)
            self._notes.replayed |= replayed

    @staticmethod
    def _arguments(signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any]:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:  # the operation says what is wrong
            return {}
        infos, found = dict[str, ArrayInfo](), dict[str, Any]()
        for name, value in given.items():
            if name != "stream":
                found[name] = described(value, name, infos)
        return found

    def _write(
        self,
        op: str,
        arguments: Mapping[str, Any],
        took_us: float,
        executables: list[Executable],
        *,
        replayed: bool,
        problem: str,
    ) -> None:
        plan = "replayed" if replayed else "planned"
        kernels = [
            {
                "kernel": one.kernel.name,
                "target": one.target,
                "arch": one.arch,
                "schedule": None if one.schedule is None else str(one.schedule),
                "cached": one.cached,
            }
            for one in executables
        ]
        if self.is_json:
            version = sys.modules["tilewright"].__version__
            line = {"format": FORMAT, "tilewright": version, "op": op, "arguments": arguments}
            line |= {"host_us": round(took_us, 3), "plan": plan, "kernels": kernels}
            line |= {"error": problem} if problem else {}
            text = json.dumps(line)
        else:
            words = ", ".join(f"{name}={_shown(value)}" for name, value in arguments.items())
            ran = "; ".join(
                f"{one['kernel']} for {one['target']} {one['arch']}"
                f"{' from the cache' if one['cached'] else ''}, {one['schedule'] or 'explicit'}"
                for one in kernels
            )
            text = f"{op}({words}): {took_us:.1f} us on the host, {problem or f'{plan}; {ran}'}"
            text = " ".join(text.split())
        os.write(self._file, f"{text}\n".encode())


def described(value: Any, name: str, infos: dict[str, ArrayInfo]) -> Any:
    """Return an argument in a form that JSON holds.

    Args:
        value: the argument.
        name: its name.
        infos: the arrays of the call so far, to which this one is added.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    if isinstance(value, DType):
        return {"dtype": str(value)}
    if isinstance(value, Schedule):
        return {"schedule": str(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, tuple | list):
        parts = [described(one, f"{name}[{at}]", infos) for at, one in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": parts}
    try:
        info = describe(value, name)
    except (TilewrightError, TypeError, ValueError, AttributeError):
        return {"other": repr(value)[:200]}
    found = LoggedArray.of(info, infos)
    infos[name] = info
    return {"array": asdict(found)}


def _shown(value: Any) -> str:
    (kind, inner), *_ = value.items()
    if kind == "array":
        return str(LoggedArray(**inner))
    return f"({', '.join(map(_shown, inner))})" if kind in ("tuple", "list") else repr(inner)


_place = log_file()
CALL_LOG = CallLog(_place) if _place else None
"""The log of this process; None if `TILEWRIGHT_LOG` is not set."""
