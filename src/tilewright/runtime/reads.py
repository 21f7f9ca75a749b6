"""What a kernel's function reads beside its parameters: globals, closure cells, attributes of modules.

A trace takes their values as they are.  So that one kernel does not run with the old value for some shapes
and with the new one for others, the values are compared whenever the kernel meets a new shape.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import os
import weakref
from collections.abc import Hashable, Iterable, Iterator, Set
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from tilewright.runtime.constants import Same, exact, has_own_equality

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
    """The values that some functions, and the functions that these name, read from around them.

    Args:
        functions: Python functions; those of the library itself read nothing that changes.
    """

    def __init__(self, functions: Iterable[object]) -> None:
        found = [f for f in functions if isinstance(f, FunctionType)]
        self._functions = tuple(f for f in found if not f.__code__.co_filename.startswith(_INSTALLED[2]))
        self._home = frozenset(_package(function) for function in self._functions)
        self._seen: dict[str, Hashable] | None = None
        self._ignored: set[str] = set()

    def changed(self) -> tuple[str, ...]:
        """Names whose values differ from those of the last call; none at the first."""
        if not self._functions:
            return ()
        now, before = self._now(), self._seen
        self._seen = now
        return () if before is None else self._different(before, now)

    def settle(self) -> None:
        """After a trace: what the trace itself has changed is not compared any more."""
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
                if isinstance(value, FunctionType) and _is_authors(value, self._home):
                    todo.append(value)
        return found


def _is_authors(function: FunctionType, home: Set[str]) -> bool:
    """Whether a function is of those who wrote the kernel: not the library's, nor of an installed package."""
    return _package(function) in home or not function.__code__.co_filename.startswith(_INSTALLED)


def _package(function: FunctionType) -> str:
    return str(function.__module__).partition(".")[0]


def _values(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function reads, by names that say where."""
    where = f"{function.__module__}.{function.__qualname__}"
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for root, name, attributes in _paths(function.__code__):
        if root == "cell":
            value = _cell(cells[name]) if name in cells else _MISSING
        else:
            value = function.__globals__.get(name, _MISSING)
        if isinstance(value, ModuleType) and f"{value.__name__}.".startswith("tilewright."):
            continue  # the library itself, whose names are loaded when they are asked for
        path = f"{where}: {name}"
        for attribute in attributes:
            inner = _attribute(value, attribute)
            if inner is _MISSING:
                break
            value, path = inner, f"{path}.{attribute}"
        if value is not _MISSING:
            yield path, value
    for at, default in enumerate((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())):
        yield f"{where}: default {at}", default


@lru_cache(maxsize=1024)
def _paths(code: CodeType) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """The variables around a function that it reads, each with the attributes that it takes of them."""
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
        if isinstance(constant, CodeType):  # functions and comprehensions inside; their cells are ours
            found.update(dict.fromkeys(_paths(constant)))
    return tuple(found)


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty as yet
        return _MISSING


def _attribute(value: Any, name: str) -> Any:
    """An attribute that can be read without running anybody's code."""
    if isinstance(value, ModuleType):
        return vars(value).get(name, _MISSING)
    found = inspect.getattr_static(value, name, _MISSING)
    return _MISSING if hasattr(type(found), "__get__") else found


def _state(value: Any, deepest: int) -> Hashable:
    """A key that changes when the value does, as far as a trace can tell."""
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
    """An object as itself; it is not kept alive, where it can be referred to weakly."""
    try:
        return _Weak(value)
    except TypeError:
        return Same(value)


class _Weak:
    """Equal to another one of the very same object, which must still be there."""

    def __init__(self, value: object) -> None:
        self._value = weakref.ref(value)

    def __eq__(self, other: object) -> bool:
        mine = self._value()
        return isinstance(other, _Weak) and mine is not None and mine is other._value()

    def __hash__(self) -> int:
        return 0
