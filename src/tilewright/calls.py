"""What every public function does first: it looks at its arguments and says what is legal.

The declaration is the signature: each annotation is read once, when the function is called first, and becomes
a `Kind` that says in words what is legal and tells whether a value is.  A call that does not fit is refused
with the error of the room, which names the function, the parameter, the value and what is legal; nothing has
happened by then.  Limits on numbers, where more would only run forever, are given with their reason.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast, overload

import numpy as np

from tilewright.errors import LaunchError, LayoutError, SignatureError, TilewrightError, close_to, shown
from tilewright.tracebacks import trim

CallableType = TypeVar("CallableType", bound=Callable[..., Any])

MOST = 1 << 63
"""Integers lie below this: offsets, extents and strides are 64 bits wide."""

MOST_ENTRIES = 1024
"""Entries of a sequence of integers: one per dimension, per mode or per warp, never one per element."""


class Kind(NamedTuple):
    """What is legal for a parameter.

    Args:
        words: what is legal, e.g. ``"an integer"``.
        several: the same of many, e.g. ``"integers"``.
        holds: whether a value is legal.
        nearest: what to write instead; empty if there is nothing to say.
        near: the nearest legal value to one that is not, or None.
    """

    words: str
    several: str
    holds: Callable[[Any], bool]
    nearest: str = ""
    near: Callable[[Any], Any] = lambda value: None


class Most(NamedTuple):
    """The largest number that a parameter takes, and the reason."""

    limit: int
    reason: str


def is_integer(value: object) -> bool:
    """Whether a value is an integer of 64 bits, of Python, of NumPy, or one that stands for itself.

    Example:
        >>> is_integer(3), is_integer(np.int8(3)), is_integer(True), is_integer(2**80), is_integer("3")
        (True, True, False, False, False)
    """
    if type(value) is int:
        return -MOST < value < MOST
    if isinstance(value, bool | np.bool_ | np.ndarray) or not hasattr(type(value), "__index__"):
        return False
    return not isinstance(value, int) or -MOST < value < MOST


def is_number(value: object) -> bool:
    """Whether a value is an integer or a float."""
    return is_integer(value) or isinstance(value, float | np.floating)


def is_sequence(value: object) -> bool:
    """Whether a value has a length and entries in order, and is no text."""
    if isinstance(value, tuple | list):
        return True
    several = isinstance(value, Sequence) or (isinstance(value, np.ndarray) and value.ndim > 0)
    return several and not isinstance(value, str | bytes | bytearray | memoryview)


def near_integer(value: Any) -> int | None:
    """The integer next to a number; None of what is no number, or has none."""
    known = isinstance(value, int | float | np.integer | np.floating)
    return int(value) if known and -MOST < value < MOST else None


ANYTHING = Kind("anything", "anything", lambda value: True)
KINDS: dict[str, Kind] = {
    "Any": ANYTHING,
    "object": ANYTHING,
    "DType": ANYTHING,  # `tilewright.dtypes.dtype` knows many names for one
    "None": Kind("None", "None", lambda value: value is None),
    "bool": Kind("True or False", "booleans", lambda value: isinstance(value, bool | np.bool_)),
    "int": Kind("an integer of 64 bits", "integers", is_integer, near=near_integer),
    "float": Kind("a number", "numbers", is_number),
    "str": Kind("a string", "strings", lambda value: isinstance(value, str)),
    "Callable": Kind("a function", "functions", callable),
}
"""What is legal by the name of an annotation; rooms add their own with `legal`."""

CLASSES: dict[str, type] = {}
"""Classes whose constructors are looked at, for signatures in files that cannot import them."""

NEAREST = {
    "Layout": "tw.Layout(shape)",
    "View": "tw.View.of(layout)",
    "Distribution": "operand a, b or c of an atom, a(k), b(k) or c() of a tiled MMA, tw.blocked or tw.raked",
    "MmaAtom": "one of tw.atoms, e.g. tw.atoms.MMA_F16",
    "TiledMma": "tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 2))",
    "Fragment": "tw.load(tensor) brings a tensor to registers",
    "Tensor": "a parameter of the kernel, tw.shared, or tile, slice or view of one",
    "BarrierStage": "one stage of a tw.mbarrier: full[stage]",
    "Config": "tw.ops.config.Config.of(atom, tile, warps)",
}


def legal(name: str, words: str, several: str, holds: Callable[[Any], bool]) -> None:
    """Say what an annotation of this name stands for, where it is no class."""
    KINDS[name] = Kind(words, several, holds, near=near_integer)


def named(cls: type) -> Kind:
    """Instances of a class."""
    name = cls.__name__
    article = "an" if name[0] in "AEIOU" or name.startswith("Mma") else "a"
    return Kind(f"{article} {name}", f"{name}s", lambda value: isinstance(value, cls), NEAREST.get(name, ""))


def read(annotation: str, scope: Mapping[str, Any]) -> Kind:
    """What an annotation says is legal.

    Example:
        >>> read("int | Sequence[int] | None", {}).words
        'an integer of 64 bits, a sequence of integers or None'
    """
    return _read(ast.parse(annotation, mode="eval").body, scope)


def _read(node: ast.expr, scope: Mapping[str, Any]) -> Kind:
    match node:
        case ast.BinOp(op=ast.BitOr()):
            return _either([_read(part, scope) for part in _alternatives(node)])
        case ast.Constant(value=None):
            return KINDS["None"]
        case ast.Constant(value=str(text)):
            return read(text, scope)
        case ast.Name(id=name):
            return _named(name, scope)
        case ast.Subscript(value=ast.Name(id="Sequence"), slice=inner):
            return _sequence("a sequence", _read(inner, scope), is_sequence)
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[inner, ast.Constant()])):
            return _sequence("a tuple", _read(inner, scope), lambda value: isinstance(value, tuple))
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=parts)):
            return _tuple([_read(part, scope) for part in parts])
        case ast.Subscript(value=ast.Name(id="Callable")):
            return KINDS["Callable"]
    raise AssertionError(f"no kind of argument is known for the annotation {ast.unparse(node)}")


def _alternatives(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_alternatives(node.left), *_alternatives(node.right)]
    return [node]


def _named(name: str, scope: Mapping[str, Any]) -> Kind:
    if name in KINDS:
        return KINDS[name]
    cls = scope.get(name) or CLASSES.get(name)
    if isinstance(cls, type):
        return named(cls)
    raise AssertionError(f"no kind of argument is known by the name {name}")


def _either(kinds: list[Kind]) -> Kind:
    if any(kind is ANYTHING for kind in kinds):
        return ANYTHING
    holders = tuple(kind.holds for kind in kinds)
    words, several = ([getattr(kind, which) for kind in kinds] for which in ("words", "several"))
    nearest = next((kind.nearest for kind in kinds if kind.nearest), "")

    def near(value: Any) -> Any:
        return next((found for kind in kinds if (found := kind.near(value)) is not None), None)

    return Kind(_listed(words), _listed(several), lambda value: any(h(value) for h in holders), nearest, near)


def _listed(words: list[str]) -> str:
    unique = list(dict.fromkeys(words))
    return unique[0] if len(unique) == 1 else f"{', '.join(unique[:-1])} or {unique[-1]}"


def _sequence(words: str, inner: Kind, outer: Callable[[Any], bool]) -> Kind:
    def holds(value: Any) -> bool:
        return outer(value) and len(value) <= MOST_ENTRIES and all(inner.holds(part) for part in value)

    several = f"{words}s of {inner.several}".removeprefix("a ")
    return Kind(f"{words} of {inner.several}", several, holds, inner.nearest, _near(inner, 1))


def _near(inner: Kind, count: int) -> Callable[[Any], Any]:
    """The nearest sequence to one entry or to several, at least ``count`` long."""

    def near(value: Any) -> Any:
        parts = value if is_sequence(value) else (value,)
        if len(parts) > MOST_ENTRIES:
            return None
        found = [part if inner.holds(part) else inner.near(part) for part in parts]
        return None if None in found else (*found, *(1,) * (count - len(found)))

    return near


def _tuple(inner: list[Kind]) -> Kind:
    def holds(value: Any) -> bool:
        pairs = zip(inner, value, strict=True) if is_sequence(value) and len(value) == len(inner) else ()
        return is_sequence(value) and len(value) == len(inner) and all(k.holds(v) for k, v in pairs)

    words = f"{len(inner)} {_listed([kind.several for kind in inner])}"
    near = _near(inner[0], len(inner)) if len(set(inner)) == 1 else lambda value: None
    return Kind(words, f"tuples of {words}", holds, near=near)


_WHOLE = KINDS["int"]
KINDS["Pair"] = _tuple([_WHOLE, _WHOLE])._replace(words="two integers, of rows and of columns")


class Signature:
    """The parameters of one function, as `Calls` looks at them.

    Args:
        function: the function.
        most: for some of its parameters the largest number.
    """

    def __init__(self, function: Callable[..., Any], most: Mapping[str, Most]) -> None:
        code = function.__code__
        count, only = code.co_argcount, code.co_kwonlyargcount
        self.function = function
        self.most = most
        self.positional = code.co_varnames[:count]
        self.names = code.co_varnames[: count + only]
        self.rest = code.co_varnames[count + only] if code.co_flags & inspect.CO_VARARGS else None
        self.open = bool(code.co_flags & inspect.CO_VARKEYWORDS)
        self.kinds: dict[str, Kind] | None = None
        self.checks: tuple[Callable[[Any], bool], ...] = ()

    def resolve(self) -> None:
        """Read the annotations, which may name classes that come later in their file."""
        texts = {name: text for name, text in self.function.__annotations__.items() if name != "return"}
        scope = self.function.__globals__
        kinds = {name: read(text, scope) for name, text in texts.items() if isinstance(text, str)}
        self.kinds = {name: self._limited(name, kind) for name, kind in kinds.items()}
        self.checks = tuple(self.kinds.get(name, ANYTHING).holds for name in self.positional)

    def _limited(self, name: str, kind: Kind) -> Kind:
        if name not in self.most:
            return kind
        limit, reason = self.most[name]
        return kind._replace(
            words=f"{kind.words}, at most {limit}: {reason}",
            holds=lambda value: kind.holds(value) and _within(value, limit),
            near=lambda value: _clipped(kind.near(value), limit),
        )

    def wrong(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, Any] | None:
        """The first parameter whose value is not legal, and the value."""
        if self.kinds is None:
            self.resolve()
        kinds = self.kinds or {}
        for at, (check, value) in enumerate(zip(self.checks, args, strict=False)):
            if not check(value):
                return self.positional[at], value
        if self.rest is not None and len(args) > len(self.checks) and self.rest in kinds:
            check = kinds[self.rest].holds
            for value in args[len(self.checks) :]:
                if not check(value):
                    return self.rest, value
        for name, value in kwargs.items():
            if name in kinds and not kinds[name].holds(value):
                return name, value
        return None

    def refusal(self, name: str, value: Any) -> str:
        """What to say of a value that is not legal."""
        kind = (self.kinds or {})[name]
        what = f"{calling(self.function)}({name}={shown(value)}): {name} must be {kind.words}"
        near = kind.near(value)
        nearest = kind.nearest if near is None or kind.holds(near) is False else f"{name}={near}"
        return what + (f"; nearest legal choice: {nearest}" if nearest else "")

    def unknown(self, kwargs: Iterable[str]) -> str | None:
        """What to say of a keyword that the function does not have; None if it has them all."""
        extra = [] if self.open else [name for name in kwargs if name not in self.names]
        if not extra:
            return None
        names = [name for name in self.names if name != "self"]
        return (
            f"{calling(self.function)}() has no parameter {extra[0]!r}{close_to(extra[0], names)}; "
            f"it has {', '.join(names) or 'none'}"
        )


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _clipped(value: Any, limit: int) -> Any:
    """The integers in a value, none above the limit."""
    if isinstance(value, tuple):
        return tuple(_clipped(part, limit) for part in value)
    return min(value, limit) if _whole(value) else value


def _within(value: Any, limit: int) -> bool:
    """Whether all integers in a value are at most the limit; what is not known yet counts as within."""
    if is_sequence(value):
        return all(_within(part, limit) for part in value)
    return not _whole(value) or value <= limit


def calling(function: Callable[..., Any]) -> str:
    """What messages call a function: its name, of a constructor that of the class."""
    qualified = function.__qualname__.removesuffix(".__init__").removesuffix(".__new__")
    owner, _, name = qualified.rpartition(".")
    return qualified if owner and not owner.endswith(">") and not name.startswith("__") else name or owner


class Calls:
    """Makes functions and classes look at their arguments.

    Args:
        refuse: makes the error of a message.
        before: called first, e.g. to ask whether a kernel is being traced at all.
    """

    def __init__(self, refuse: Callable[[str], Exception], before: Callable[[], object] = tuple) -> None:
        self.refuse = refuse
        self.before = before

    @overload
    def __call__(self, what: CallableType, /) -> CallableType: ...
    @overload
    def __call__(self, /, **most: Most) -> Callable[[CallableType], CallableType]: ...
    def __call__(self, what: Any = None, /, **most: Most) -> Any:
        """Decorate a function, a method, or a class whose constructor is meant."""
        if what is None:
            return lambda inner: self._decorated(inner, most)
        return self._decorated(what, most)

    def _decorated(self, what: Any, most: Mapping[str, Most]) -> Any:
        if isinstance(what, type):
            CLASSES[what.__name__] = what
            what.__init__ = self._wrapped(what.__init__, most)  # type: ignore[misc]
            return what
        return self._wrapped(what, most)

    def _wrapped(self, function: CallableType, most: Mapping[str, Most]) -> CallableType:
        signature, before = Signature(function, most), self.before

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                before()
                wrong = signature.wrong(args, kwargs)
                if wrong is not None:
                    raise self.refuse(signature.refusal(*wrong))
                return function(*args, **kwargs)
            except TilewrightError as error:
                __tracebackhide__ = True
                trim(error)
                raise error
            except TypeError as error:
                __tracebackhide__ = True
                if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                    raise
                raise SignatureError(signature.unknown(kwargs) or str(error)) from None

        return cast(CallableType, call)


layouts = Calls(LayoutError)
"""For functions of layouts, views and maps."""

launches = Calls(LaunchError)
"""For functions that take the caller's arrays."""
