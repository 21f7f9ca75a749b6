"""Legal values of arguments: rules read from annotations, and words of a command line.

A rule is a description in words, and a test.  A package registers its own annotations with `legal`; a class
means its instances.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from types import GenericAlias, UnionType
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np

from tilewright.errors import LaunchError

MOST = 1 << 63
"""Bound of integers: offsets, extents and strides have 64 bits."""

LARGEST = (2**24 - 1) << 104
"""The largest number of f32, as an integer."""

MOST_ENTRIES = 1024
"""Most entries of a sequence of integers: one per dimension, mode or warp, never one per element."""


class ArgumentRule(NamedTuple):
    """Legal values of a parameter.

    Args:
        words: description of a legal value, e.g. ``"an integer"``.
        several: description of several legal values, e.g. ``"integers"``.
        holds: whether a value is legal.
        nearest: what to pass instead; empty if there is no advice.
        near: returns the legal value nearest to an illegal one, or None.
    """

    words: str
    several: str
    holds: Callable[[Any], bool]
    nearest: str = ""
    near: Callable[[Any], Any] = lambda value: None


def is_integer(value: object) -> bool:
    """Return whether a value is a 64-bit integer: of Python, of NumPy, or symbolic.

    Example:
        >>> is_integer(3), is_integer(np.int8(3)), is_integer(True), is_integer(2**80), is_integer("3")
        (True, True, False, False, False)
    """
    if type(value) is int:
        return -MOST <= value < MOST
    if isinstance(value, bool | np.bool_ | np.ndarray) or not hasattr(type(value), "__index__"):
        return False
    return not isinstance(value, int) or -MOST <= value < MOST


def is_number(value: object) -> bool:
    """Return whether a value is a float, or a signed or unsigned integer of 64 bits.

    Example:
        >>> is_number(0.5), is_number(2**64 - 1), is_number(2**64), is_number(True)
        (True, True, False, False)
    """
    if type(value) is int:
        return -MOST <= value < 2 * MOST
    return is_integer(value) or isinstance(value, float | np.floating)


def is_complex(value: object) -> bool:
    """Return whether a value is a complex number, or a number by `is_number`.

    Example:
        >>> is_complex(0.5), is_complex(1j), is_complex("1j")
        (True, True, False)
    """
    return is_number(value) or isinstance(value, complex | np.complexfloating)


def is_sequence(value: object) -> bool:
    """Return whether a value has a length and ordered entries, and is not text."""
    if isinstance(value, tuple | list):
        return True
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    if isinstance(value, range):
        return value.stop - value.start < MOST  # beyond, Python itself cannot tell its length
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def is_collection(value: object) -> bool:
    """Return whether a value can be iterated over repeatedly, and is not text."""
    return is_sequence(value) or (isinstance(value, Collection) and not isinstance(value, str | bytes))


def near_integer(value: Any) -> int | None:
    """Return the 64-bit integer nearest to a number; None for other values and NaN."""
    known = isinstance(value, int | float | np.integer | np.floating)
    return int(min(max(value, -MOST), MOST - 1)) if known and value == value else None


def is_wide(value: object) -> bool:
    """Return whether a value is an integer of more than 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and not is_number(value)


def near_number(value: Any) -> float | None:
    """Return the float next to an integer of more than 64 bits, within f32; None for other values.

    Example:
        >>> near_number(2**70), near_number(-(2**2000)), near_number(1)
        (1.1805916207174113e+21, -3.4028234663852886e+38, None)
    """
    return float(min(max(value, -LARGEST), LARGEST)) if is_wide(value) else None


ANYTHING = ArgumentRule("anything", "anything", lambda value: True)
KINDS: dict[str, ArgumentRule] = {
    "Any": ANYTHING,
    "object": ANYTHING,
    "DType": ANYTHING,  # `tilewright.dtypes.dtype` knows many names for one
    "None": ArgumentRule("None", "None", lambda value: value is None),
    "bool": ArgumentRule("True or False", "booleans", lambda value: isinstance(value, bool | np.bool_)),
    "int": ArgumentRule("an integer of 64 bits", "integers", is_integer, near=near_integer),
    "Count": ArgumentRule(
        "a positive integer",
        "positive integers",
        lambda value: is_integer(value) and not (is_whole(value) and value < 1),
        near=lambda value: None if (found := near_integer(value)) is None else max(found, 1),
    ),
    "float": ArgumentRule("a number", "numbers", is_number, near=near_number),
    "complex": ArgumentRule("a number, real or complex", "numbers", is_complex, near=near_number),
    "str": ArgumentRule("a string", "strings", lambda value: isinstance(value, str)),
    "Mapping": ArgumentRule("a dict", "dicts", lambda value: isinstance(value, Mapping)),
    "Callable": ArgumentRule("a function", "functions", callable),
}
"""Rules by the name of an annotation; packages add their own with `legal`."""

Count: TypeAlias = int
"""A positive integer."""

CLASSES: dict[str, type] = {}
"""Classes with checked constructors by name, for signatures in files that cannot import them."""

NEAREST = {
    "Layout": "tw.Layout(shape)",
    "View": "tw.View.of(layout)",
    "Distribution": "operand a, b or c of an atom, a(k), b(k) or c() of a tiled MMA, tw.blocked or tw.raked",
    "MmaAtom": "one of tw.atoms, e.g. tw.atoms.MMA_F16",
    "TiledMma": "tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 2))",
    "Fragment": "tw.load(tensor), which brings a tensor to registers; in a kernel with tw.tiles a tile, such "
    "as x[m, n] or tw.positions(n)",
    "Tensor": "a parameter of the kernel, tw.shared, or tile, slice or view of one",
    "Program": "tw.kernel, which makes a kernel of a function",
    "Kernel": "what trace(...) of a tw.kernel gives",
    "Generator": "np.random.default_rng(0)",
    "BarrierStage": "one stage of a tw.hopper.mbarrier: full[stage]",
}


def legal(name: str, words: str, several: str, holds: Callable[[Any], bool]) -> None:
    """Register the legal values of an annotation that is not a class."""
    KINDS[name] = ArgumentRule(words, several, holds, near=near_integer)


def one_of(names: tuple[str, ...]) -> tuple[str, str, Callable[[Any], bool]]:
    """Return the last three arguments of `legal`, for an annotation whose values are a few names.

    Example:
        >>> words, _, holds = one_of(("row", "column"))
        >>> words, holds("row"), holds("rows"), holds(1)
        ("one of 'row', 'column'", True, False, False)
    """
    words = f"one of {', '.join(map(repr, names))}"
    return words, words, lambda value: isinstance(value, str) and value in names


def named(cls: type) -> ArgumentRule:
    """Return the rule for instances of a class, or for objects with the methods of a protocol."""
    name = cls.__name__
    article = "an" if name[0] in "AEIOU" or name.startswith("Mma") else "a"
    methods = [one for one, what in vars(cls).items() if not one.startswith("_") and callable(what)]

    def holds(value: Any) -> bool:
        return all(hasattr(type(value), one) for one in methods)

    is_one = holds if getattr(cls, "_is_protocol", False) else lambda value: isinstance(value, cls)
    return ArgumentRule(f"{article} {name}", f"{name}s", is_one, NEAREST.get(name, ""))


def read(annotation: str, scope: Mapping[str, Any]) -> ArgumentRule:
    """Return the rule of an annotation.

    Example:
        >>> read("int | Sequence[int] | None", {}).words
        'an integer of 64 bits, a sequence of integers or None'
    """
    return _read(ast.parse(annotation, mode="eval").body, scope)


def read_exactly(annotation: str, scope: Mapping[str, Any]) -> ArgumentRule:
    """Return the legal values of a record's field; a dtype field holds a `DType`, not a name."""
    if "DType" not in annotation.split(" | "):
        return read(annotation, scope)
    others = [read(part, scope) for part in annotation.split(" | ") if part != "DType"]
    return _either([named(scope["DType"]), *others])


def _read(node: ast.expr, scope: Mapping[str, Any]) -> ArgumentRule:
    match node:
        case ast.BinOp(op=ast.BitOr()):
            return _either([_read(part, scope) for part in _alternatives(node)])
        case ast.Constant(value=None):
            return KINDS["None"]
        case ast.Constant(value=str(text)):
            return read(text, scope)
        case ast.Name(id=name):
            return _named(name, scope)
        case ast.Attribute(value=value, attr=name):
            words = [*ast.unparse(value).split("."), name]
            found: Any = scope.get(words[0])
            for word in words[1:]:
                found = getattr(found, word, None)
            if isinstance(found, type):
                return named(found)
        case ast.Subscript(value=ast.Name(id="Sequence"), slice=inner):
            return _sequence("a sequence", _read(inner, scope), is_sequence)
        case ast.Subscript(value=ast.Name(id="Iterable"), slice=inner):
            return _sequence("a collection", _read(inner, scope), is_collection)
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[inner, ast.Constant()])):
            entry = _read(inner, scope)
            most = None if entry.near(0) is None else MOST_ENTRIES  # only sequences of numbers are limited
            return _sequence("a tuple", entry, lambda value: isinstance(value, tuple), most)
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=parts)):
            return _tuple([_read(part, scope) for part in parts])
        case ast.Subscript(value=ast.Name(id="Mapping")):
            return KINDS["Mapping"]
        case ast.Subscript(value=ast.Name(id="Callable")):
            return KINDS["Callable"]
        case ast.Subscript(value=ast.Attribute() as container):
            return _read(container, scope)
    raise AssertionError(f"no kind of argument is known for the annotation {ast.unparse(node)}")


def _alternatives(node: ast.expr) -> list[ast.expr]:
    """Return the parts of a union."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_alternatives(node.left), *_alternatives(node.right)]
    return [node]


def _named(name: str, scope: Mapping[str, Any]) -> ArgumentRule:
    cls = scope.get(name)
    is_own = isinstance(cls, type) and cls.__module__.startswith(
        "tilewright."
    )  # some names exist in several packages
    if name in KINDS and not (is_own and KINDS[name] is not ANYTHING):
        return KINDS[name]
    cls = cls or CLASSES.get(name)
    if isinstance(cls, type):
        return named(cls)
    if isinstance(cls, GenericAlias):
        return read(str(cls), scope)
    if isinstance(cls, UnionType):
        return _either(
            [KINDS["None"] if one is type(None) else named(one) for one in get_args(cls)]
        )._replace(holds=lambda value: isinstance(value, cls))
    raise AssertionError(f"no kind of argument is known by the name {name}")


def _either(kinds: list[ArgumentRule]) -> ArgumentRule:
    if any(kind is ANYTHING for kind in kinds):
        return ANYTHING
    holders = tuple(kind.holds for kind in kinds)
    words, several = ([getattr(kind, which) for kind in kinds] for which in ("words", "several"))
    nearest = next((kind.nearest for kind in kinds if kind.nearest), "")

    def holds(value: Any) -> bool:
        for one in holders:  # noqa: SIM110 `any` takes three times as long
            if one(value):
                return True
        return False

    def near(value: Any) -> Any:
        return next((found for kind in kinds if (found := kind.near(value)) is not None), None)

    return ArgumentRule(_listed(words), _listed(several), holds, nearest, near)


def _listed(words: list[str]) -> str:
    unique = list(dict.fromkeys(words))
    return unique[0] if len(unique) == 1 else f"{', '.join(unique[:-1])} or {unique[-1]}"


def _sequence(
    words: str, inner: ArgumentRule, outer: Callable[[Any], bool], most: int | None = MOST_ENTRIES
) -> ArgumentRule:
    one = inner.holds

    def holds(value: Any) -> bool:
        if not outer(value) or (most is not None and len(value) > most):
            return False
        for part in value:  # noqa: SIM110 as above
            if not one(part):
                return False
        return True

    several = f"{words}s of {inner.several}".removeprefix("a ")
    return ArgumentRule(f"{words} of {inner.several}", several, holds, inner.nearest, _near(inner, 1))


def _near(inner: ArgumentRule, count: int, most: int | None = None) -> Callable[[Any], Any]:
    """Return the nearest sequence of ``count`` to ``most`` entries to an entry or a sequence."""

    def near(value: Any) -> Any:
        parts = value if is_sequence(value) else (value,)
        if len(parts) > MOST_ENTRIES:
            return None
        found = [part if inner.holds(part) else inner.near(part) for part in parts]
        return None if any(part is None for part in found) else (*found[:most], *(1,) * (count - len(found)))

    return near


def _tuple(inner: list[ArgumentRule]) -> ArgumentRule:
    # Entries of one kind may come in any sequence, entries of several kinds only in a tuple.
    outer = is_sequence if len(set(inner)) == 1 else (lambda value: isinstance(value, tuple))

    def holds(value: Any) -> bool:
        fits = outer(value) and len(value) == len(inner)
        return fits and all(kind.holds(part) for kind, part in zip(inner, value, strict=True))

    words = f"{len(inner)} {_listed([kind.several for kind in inner])}"
    near = _near(inner[0], len(inner), len(inner)) if len(set(inner)) == 1 else lambda value: None
    return ArgumentRule(words, f"tuples of {words}", holds, near=near)


_WHOLE = KINDS["int"]
KINDS["Pair"] = _tuple([_WHOLE, _WHOLE])._replace(words="two integers, of rows and of columns")


def is_whole(value: Any) -> bool:
    """Return whether a value is a plain integer, of Python or NumPy.

    Example:
        >>> is_whole(3), is_whole(np.int8(3)), is_whole(True), is_whole(3.0)
        (True, True, False, False)
    """
    return type(value) is int or (isinstance(value, int | np.integer) and not isinstance(value, bool))


# ---------------------------------------------------------------- words of a command line


MOST_TYPED = 2**31 - 1
"""The largest whole number of a command line."""


def read_whole(what: str, text: str, example: str) -> int:
    """Read a whole number of at most 31 bits.

    Raises:
        LaunchError: the text is no such number; ends with the example.

    Example:
        >>> read_whole("M", "0512", "")
        512
    """
    if not (text.isascii() and text.isdigit()):
        raise LaunchError(f"{what} is {text!r}, which is not a whole number; e.g. {example}")
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(MOST_TYPED)) or int(digits) > MOST_TYPED:
        shown = digits if len(digits) < 30 else f"a number of {len(digits)} digits"
        raise LaunchError(f"{what} is {shown}", MOST_TYPED)
    return int(digits)
