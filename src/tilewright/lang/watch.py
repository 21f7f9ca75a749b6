"""Checks that the body of a traced loop, branch or role does not rebind variables.

The body is traced once.  A variable that the author rebinds inside would keep that value afterwards, for any
loop count or condition at run time, and an iteration would never see the value of the previous one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType, FunctionType, ModuleType
from typing import Any

from tilewright.errors import Location, TraceError
from tilewright.lang.dataflow.tiles import Tile
from tilewright.lang.scalars import Condition, Scalar
from tilewright.lang.source import Span, author_frames, loop_body
from tilewright.lang.tensors import Fragment, Number, Tensor
from tilewright.lang.tracer import current

SYMBOLIC = (Scalar, Condition, Tensor, Fragment, Tile, Number)
_PLAIN = (bool, int, float, str, bytes, type(None))
_ABSENT = object()


@dataclass(frozen=True)
class _Variable:
    """The old value of a variable: the object, and the contents of a list, a dictionary or an object."""

    value: Any
    parts: dict[Any, Any]

    @staticmethod
    def of(value: Any) -> _Variable:
        if isinstance(value, SYMBOLIC):
            return _Variable(value, {})
        if type(value) is list:
            return _Variable(value, dict(enumerate(value)))
        if type(value) is dict:
            return _Variable(value, dict(value))
        own = not isinstance(value, type | ModuleType | FunctionType)
        return _Variable(value, dict(getattr(value, "__dict__", {})) if own else {})

    def replaced(self, now: _Variable) -> Any:
        """Return the key or attribute of the first part that has changed, or `_ABSENT`."""
        if self.value is not now.value:
            return _ABSENT
        shared = [key for key in self.parts if key in now.parts]
        return next((key for key in shared if not _same(self.parts[key], now.parts[key])), _ABSENT)


class Watch:
    """The author's variables at the start of a loop or branch."""

    def __init__(self, what: str, location: Location) -> None:
        self.what = what
        self.location = location
        self.regions = tuple(current().region_ids)
        self.scopes = [_Scope(frame) for frame in author_frames()]

    def check(self) -> None:
        """Refuse rebound variables; call it at the end of the body.

        Raises:
            TraceError: names the variable, at the line that binds it.
        """
        for depth, scope in enumerate(self.scopes):
            body = scope.body(self.what)
            for name, now in scope.variables().items():
                old = scope.before.get(name)
                if complaint := self._complaint(name, old, now, body):
                    place, frames = body.store(name), self.location.frames
                    outer = max(depth + 1 - (len(self.scopes) - len(frames)), 0)
                    raise TraceError(complaint, Location((place, *frames[outer:]) if place else frames))
        self.scopes.clear()

    def _complaint(self, name: str, old: _Variable | None, now: _Variable, body: Span) -> str:
        after = Span(body.frame, body.stop - 1, sys.maxsize)
        if old is None:
            lost = self.what != "loop" and after.reads_first(name)
            return (
                f"{name} is bound inside the {self.what} and used after it; {self._hint(name, now.value)}"
                if lost
                else ""
            )
        if (key := old.replaced(now)) is not _ABSENT:
            part = f"{name}[{key!r}]" if isinstance(now.value, list | dict) else f"{name}.{key}"
            return f"{part} is replaced inside the {self.what}; {self._hint(part, now.parts[key])}"
        if _same(old.value, now.value):
            return ""
        lost = (
            self._is_outer(old.value)
            or body.store(name) is None
            or after.reads_first(name)
            or (self.what == "loop" and body.reads_first(name))
        )
        values = (
            f" from {old.value!r} to {now.value!r}" if _is_plain(old.value) and _is_plain(now.value) else ""
        )
        return (
            f"{name} is rebound{values} inside the {self.what}; {self._hint(name, now.value)}" if lost else ""
        )

    def _is_outer(self, value: Any) -> bool:
        """Return whether a value holds a symbolic value made outside of the loop or branch."""
        if isinstance(value, tuple):
            return any(self._is_outer(part) for part in value)
        return isinstance(value, SYMBOLIC) and getattr(value, "region", 0) in self.regions

    def _hint(self, name: str, now: Any) -> str:
        why = {
            "loop": "the body is traced once, so no iteration would see the value of another",
            "branch": "the new value would hold even where the branch is not taken",
            "role": "the new value would hold for the other warps too",
        }[self.what]
        carry = "`tw.var` for an integer"
        if isinstance(now, Fragment):
            carry = f"`{name}.assign(...)` or `{name} += ...` for a fragment"
        elif isinstance(now, Tile):
            carry = f"`{name} += a @ b` for an accumulator of tw.zeros, `{name}.assign(...)` for a fold"
        elif isinstance(now, Tensor):
            carry = "one tensor and an index for a tensor"
        return f"{why}; use {carry} that changes, or another name for a temporary"


class _Scope:
    """One frame and its variables."""

    def __init__(self, frame: FrameType) -> None:
        self.frame = frame
        self.start = frame.f_lasti
        self.before = self.variables()

    def variables(self) -> dict[str, _Variable]:
        """Return the local variables by name."""
        found = dict(self.frame.f_locals)
        return {name: _Variable.of(value) for name, value in found.items() if not name.startswith(".")}

    def body(self, what: str) -> Span:
        """Return the instructions of the loop or branch body in this frame."""
        return loop_body(self.frame) if what == "loop" else Span(self.frame, self.start, self.frame.f_lasti)


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN)


def _same(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if isinstance(old, Scalar) and isinstance(new, Scalar):
        return old.expr == new.expr
    if isinstance(old, Condition) and isinstance(new, Condition):
        return old.cond == new.cond
    if isinstance(old, tuple) and isinstance(new, tuple):
        return len(old) == len(new) and all(map(_same, old, new))
    return _is_plain(old) and type(old) is type(new) and bool(old == new)
