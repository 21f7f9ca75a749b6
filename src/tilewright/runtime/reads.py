"""Values that a kernel depends on: constants, globals, closure cells, attributes of modules.

A trace reads their values once. If they change, old shapes would run with old values and new shapes with new
ones. So we compare the values whenever the kernel meets a new shape.
"""

from __future__ import annotations

import dis
import enum
import hashlib
import inspect
import os
import struct
import weakref
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

# ---------------------------------------------------------------- exact keys of compile-time constants


def exact(value: Any) -> Hashable:
    """Return a key that two constants share only if no kernel can tell them apart.

    Python's ``==`` will not do: ``2 == 2.0``, ``1 == True`` and ``0.0 == -0.0``, also inside tuples and
    dataclasses, and a NaN differs from itself.

    Raises:
        TypeError: the value, or something in it, is not hashable.

    Example:
        >>> import math
        >>> exact(2) == exact(2.0), exact((0.0, 1)) == exact((-0.0, 1)), exact(math.nan) == exact(math.nan)
        (False, False, True)
    """
    kind = type(value)
    if kind in _PLAIN or kind.__module__.startswith("tilewright.") or isinstance(value, enum.Enum):
        # Equal values of these types are the same; the library's own types hold only integers and names.
        return kind, value
    if kind is float:
        return kind, struct.pack("d", value)
    if kind is tuple:
        return kind, tuple(exact(item) for item in value)
    hash(value)
    if not has_own_equality(kind):
        return kind, value
    try:
        return kind, *_parts(value)
    except TypeError:  # hashable, but a part of it is not
        return kind, Same(value)


def has_own_equality(kind: type) -> bool:
    """Return whether a type defines `__eq__`."""
    return any("__eq__" in cls.__dict__ for cls in kind.__mro__ if cls is not object)


_PLAIN = frozenset((int, bool, str, bytes, type(None), type, MethodType))


class Same:
    """A key that equals another only for the same object."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def _parts(value: Any) -> Iterator[Hashable]:
    """Return keys of the parts of a value: its number, its items, its attributes."""
    if is_dataclass(value) and not isinstance(value, type):
        yield tuple(exact(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, np.generic):
        yield value.dtype.str, value.tobytes()
    elif isinstance(value, float):
        yield struct.pack("d", value)
    elif isinstance(value, complex):
        yield struct.pack("dd", value.real, value.imag)
    elif isinstance(value, int):
        yield int(value)
    elif isinstance(value, str | bytes):
        yield value[:]
    elif isinstance(value, tuple):
        yield tuple(exact(item) for item in tuple.__iter__(value))
    elif isinstance(value, frozenset):
        yield frozenset(exact(item) for item in value)
    elif isinstance(value, slice):
        yield exact(value.start), exact(value.stop), exact(value.step)
    elif not is_dataclass(value) and not any(True for _ in _attributes(value)):
        yield repr(value)  # types written in C, e.g. decimal.Decimal
    yield from ((name, exact(part)) for name, part in _attributes(value))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


# ---------------------------------------------------------------- what a function reads


_MISSING = object()
_GLOBAL, _CELL = ("LOAD_GLOBAL", "LOAD_NAME"), ("LOAD_DEREF", "LOAD_CLASSDEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_DEEPEST, _LONGEST, _LARGEST_BYTES = 8, 4096, 1 << 20
_INSTALLED = (
    str(Path(os.__file__).parent),
    str(Path(np.__file__).parents[1]),
    str(Path(__file__).parents[1]),
)


class Reads:
    """The outside values that some functions read, and that the functions which they call read.

    Args:
        functions: Python functions; functions of this library are skipped.
    """

    def __init__(self, functions: Iterable[object]) -> None:
        found = [f for f in functions if isinstance(f, FunctionType)]
        self._functions = tuple(f for f in found if not f.__code__.co_filename.startswith(_INSTALLED[2]))
        self._home = frozenset(_package(function) for function in self._functions)
        self._seen: dict[str, Hashable] | None = None
        self._ignored: set[str] = set()

    def changed(self) -> tuple[str, ...]:
        """Return names whose values have changed since the last call; none at the first call."""
        if not self._functions:
            return ()
        now, before = self._now(), self._seen
        self._seen = now
        return () if before is None else self._different(before, now)

    def settle(self) -> None:
        """Ignore from now on the values that a trace has just changed itself."""
        if self._functions and self._seen is not None:
            self._ignored.update(self._different(self._seen, self._now()))

    def _different(self, before: dict[str, Hashable], now: dict[str, Hashable]) -> tuple[str, ...]:
        names = {**before, **now}
        return tuple(
            name
            for name in names
            if name not in self._ignored and before.get(name, _MISSING) != now.get(name, _MISSING)
        )

    def _now(self) -> dict[str, Hashable]:
        found: dict[str, Hashable] = {}
        done: set[FunctionType] = set()
        todo = [*self._functions]
        while todo:
            function = todo.pop()
            if function in done:
                continue
            done.add(function)
            for name, value in _values(function):
                found[f"{len(done)}. {name}"] = _state(value, _DEEPEST)
                # Functions of the kernel's authors; not the library's, nor those of installed packages.
                if isinstance(value, FunctionType) and (
                    _package(value) in self._home or not value.__code__.co_filename.startswith(_INSTALLED)
                ):
                    todo.append(value)
        return found


def _package(function: FunctionType) -> str:
    return str(function.__module__).partition(".")[0]


def _values(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Return the outside values that a function reads, each with a name that says where."""
    where = f"{function.__module__}.{function.__qualname__}"
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for root, name, attributes in _paths(function.__code__):
        if root == "cell":
            value = _cell(cells[name]) if name in cells else _MISSING
        else:
            value = function.__globals__.get(name, _MISSING)
        if isinstance(value, ModuleType) and f"{value.__name__}.".startswith("tilewright."):
            continue  # the library itself, which loads names on demand
        path = f"{where}: {name}"
        for attribute in attributes:
            if isinstance(value, ModuleType):
                inner = vars(value).get(attribute, _MISSING)
            else:  # without running user code
                inner = inspect.getattr_static(value, attribute, _MISSING)
                inner = _MISSING if hasattr(type(inner), "__get__") else inner
            if inner is _MISSING:
                break
            value, path = inner, f"{path}.{attribute}"
        if value is not _MISSING:
            yield path, value
    for at, default in enumerate((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())):
        yield f"{where}: default {at}", default


@lru_cache(maxsize=1024)
def _paths(code: CodeType) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Return the outside variables that a function reads, each with the chain of attributes that it reads."""
    found: dict[tuple[str, str, tuple[str, ...]], None] = {}
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG")]
    for at, instruction in enumerate(instructions):
        if not instruction.opname.startswith((*_GLOBAL, *_CELL)):
            continue
        root = "cell" if instruction.opname.startswith(_CELL) else "global"
        attributes = []
        for following in instructions[at + 1 :]:
            if not following.opname.startswith(_ATTRIBUTES):
                break
            attributes.append(str(following.argval))
        found[root, str(instruction.argval), tuple(attributes)] = None
    for constant in code.co_consts:
        if isinstance(constant, CodeType):  # inner functions and comprehensions; their cells are ours
            found.update(dict.fromkeys(_paths(constant)))
    return tuple(found)


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty as yet
        return _MISSING


def _state(value: Any, deepest: int) -> Hashable:
    """Return a key that changes with the value, as far as a trace can tell."""
    if isinstance(value, list | tuple | set | frozenset | dict) and len(value) > _LONGEST:
        return _itself(value)
    if isinstance(value, np.ndarray) and value.nbytes <= _LARGEST_BYTES:
        return ("array", value.shape, value.dtype.str, hashlib.sha256(value.tobytes()).digest())
    if deepest and isinstance(value, list | tuple):
        return (type(value), tuple(_state(item, deepest - 1) for item in value))
    if deepest and isinstance(value, set | frozenset):
        return (type(value), frozenset(_state(item, deepest - 1) for item in value))
    if deepest and isinstance(value, dict):
        items = ((_state(k, deepest - 1), _state(item, deepest - 1)) for k, item in value.items())
        return (type(value), tuple(items))
    if deepest and isinstance(value, SimpleNamespace):
        return (type(value), _state(vars(value), deepest - 1))
    if deepest and is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name, _MISSING) for field in fields(value)]
        return (type(value), _state(parts, deepest - 1))
    if not has_own_equality(type(value)):
        return _itself(value)
    try:
        return exact(value)
    except TypeError:
        return _itself(value)


def _itself(value: Any) -> Hashable:
    """Return a key of the object's identity; weak if the type allows it."""
    try:
        return _Weak(value)
    except TypeError:
        return Same(value)


class _Weak:
    """A key that equals another only for the same object, while that is alive."""

    def __init__(self, value: object) -> None:
        self._value = weakref.ref(value)

    def __eq__(self, other: object) -> bool:
        mine = self._value()
        return isinstance(other, _Weak) and mine is not None and mine is other._value()

    def __hash__(self) -> int:
        return 0
