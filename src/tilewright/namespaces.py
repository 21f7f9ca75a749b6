"""What is said of a name that a public namespace does not have: where it is, or what was meant.

A namespace is a module with ``__all__``; `dir` shows that and nothing else.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from importlib import import_module
from importlib.machinery import PathFinder

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SPELLED = {
    "tilewright": "tw",
    "tilewright.ck": "tw.ck",
    "tilewright.hopper": "tw.hopper",
    "tilewright.layouts": "tw.layouts",
    "tilewright.ir": "tw.ir",
    "tilewright.testing": "tw.testing",
    "tilewright.targets.atoms": "tw.atoms",
    "tilewright.inspect.draw": "tw.draw",
}
"""The public namespaces, and how authors write them."""

ELSEWHERE = {"bmm": "matmul", "cdiv": "ceil_div", "dot": "matmul", "gemm": "matmul", "mm": "matmul"}
"""What other libraries call functions of ``tw``."""


def namespace(
    module: str, names: list[str], find: Callable[[str], Any] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a module that is a public namespace.

    Args:
        module: its name.
        names: what is public in it.
        find: finds, or imports, what is not there yet; None if there is no such thing.

    Example:
        >>> absent, names = namespace("tilewright.hopper", ["wait"])
        >>> names()
        ['wait']
        >>> absent("coalesce")
        Traceback (most recent call last):
        AttributeError: module 'tilewright.hopper' has no attribute 'coalesce'; it is tw.layouts.coalesce
    """

    def absent(name: str) -> Any:
        try:
            found = None if find is None else find(name)
            if found is None:
                raise missing(module, name)
        except AttributeError as error:
            import_module("tilewright.tracebacks").trim(error)
            raise  # bare: it adds no entry for this frame
        return found

    return absent, lambda: names


def submodule(package: str, path: list[str], name: str) -> Any:
    """The module of a package by this name, imported now; None if there is none.

    Args:
        package: the package's name.
        path: its ``__path__``.
        name: what follows its dot.
    """
    found = None if name.startswith("__") else PathFinder.find_spec(f"{package}.{name}", path)
    return None if found is None else import_whole(found.name)


_importing: list[int] = []
"""The threads that import a module now, while handlers of signals wait."""


def import_whole(name: str) -> Any:
    """Import a module; handlers of signals that arrive meanwhile run when it is whole.

    A handler runs on the thread that imports, and would find half of the module.  Python's own handler of
    interrupts does not wait: it ends the import.

    Args:
        name: the module's full name.

    Raises:
        ImportError: there is no such module.
    """
    known = sys.modules.get(name)
    if known is not None and not getattr(known.__spec__, "_initializing", False):
        return known
    signal: Any = sys.modules["_signal"]  # always there; the module `signal` gives names to its numbers
    waiting: list[tuple[int, Any]] = []
    handlers: dict[int, Any] = {}
    try:
        if get_ident() not in _importing:
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if callable(handler) and handler is not signal.default_int_handler:
                    signal.signal(number, lambda number, frame: waiting.append((number, frame)))
                    handlers[number] = handler
    except ValueError:  # handlers run on the main thread alone, and this is another one
        return import_module(name)
    _importing.append(get_ident())
    try:
        return import_module(name)
    finally:
        _importing.remove(get_ident())
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in waiting:
            handlers[number](number, frame)


def missing(module: str, name: str) -> AttributeError:
    """The error for a name that a namespace does not have; it says where the name is.

    Example:
        >>> print(missing("tilewright", "tma_load"))
        module 'tilewright' has no attribute 'tma_load'; it is tw.hopper.tma_load
        >>> print(missing("tilewright.hopper", "tma_lode"))
        module 'tilewright.hopper' has no attribute 'tma_lode'; did you mean tw.hopper.tma_load?
    """
    text = f"module {module!r} has no attribute {name!r}"
    if name.startswith("_"):  # what Python, test runners and debuggers look for: nobody's mistake
        return AttributeError(text)
    # Without an object Python has no guess of its own to add.
    error = AttributeError(text + (_elsewhere(module, name) or _near(module, name)), name=name, obj=None)
    error.of_users = True  # type: ignore[attr-defined]
    return error


def _names(module: str) -> list[str]:
    return list(import_module(module).__all__)


def _elsewhere(module: str, name: str) -> str:
    places = [spelled for other, spelled in SPELLED.items() if other != module and name in _names(other)]
    return f"; it is {places[0]}.{name}" if places else ""


def _near(module: str, name: str) -> str:
    if name in ELSEWHERE:
        return f"; did you mean tw.{ELSEWHERE[name]}?"
    close = import_module("difflib").get_close_matches
    for at, spelled in sorted(SPELLED.items(), key=lambda item: item[0] != module):
        if near := close(name, _names(at), 1, 0.7):
            return f"; did you mean {spelled}.{near[0]}?"
    return ""
