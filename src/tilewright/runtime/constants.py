"""What tells one compile-time constant from another: its type and its exact value, all the way down."""

from __future__ import annotations

import enum
import struct
from collections.abc import Hashable, Iterator
from dataclasses import fields, is_dataclass
from types import MethodType
from typing import Any

import numpy as np


def exact(value: Any) -> Hashable:
    """A key that two constants share only if no kernel can tell them apart.

    Python's ``==`` does not do: ``2 == 2.0``, ``1 == True`` and ``0.0 == -0.0``, also inside of tuples and of
    dataclasses, while a NaN differs from itself.

    Raises:
        TypeError: the value, or something in it, is not hashable.

    Example:
        >>> import math
        >>> exact(2) == exact(2.0), exact((0.0, 1)) == exact((-0.0, 1)), exact(math.nan) == exact(math.nan)
        (False, False, True)
    """
    kind = type(value)
    if kind in _PLAIN or kind.__module__.startswith("tilewright.") or isinstance(value, enum.Enum):
        # Equal values of one of these types are one; the library's own hold nothing but integers and names.
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
    except TypeError:  # hashable, though something in it is not
        return kind, Same(value)


def has_own_equality(kind: type) -> bool:
    """Whether values of a type are equal by more than being the same object."""
    return any("__eq__" in cls.__dict__ for cls in kind.__mro__ if cls is not object)


_PLAIN = frozenset((int, bool, str, bytes, type(None), type, MethodType))


class Same:
    """Equal to another one of the very same object only."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def _parts(value: Any) -> Iterator[Hashable]:
    """What a value of any other type is made of: its number, its items, its attributes."""
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
        yield repr(value)  # of types written in C, such as decimal.Decimal
    yield from ((name, exact(part)) for name, part in _attributes(value))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)
