"""Every public function, and every method of tensors and fragments, is shown at work where it is documented.

The examples themselves run as doctests.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from operator import attrgetter
from types import ModuleType

import pytest

import tilewright as tw

SPACES = {
    "": tw,
    "hopper.": tw.hopper,
    "layouts.": tw.layouts,
    "ir.": tw.ir,
    "atoms.": tw.atoms,
    "draw.": tw.draw,
}

MADE_BY_OTHERS = {
    "BarrierStage",
    "Barriers",
    "Bound",
    "Condition",
    "Executable",
    "Fragment",
    "MutableIndex",
    "Number",
    "Packed",
    "PreparedLaunch",
    "Report",
    "Scalar",
    "Specimen",
    "Tensor",
}
"""Classes whose constructors no user calls: functions make them, as tracing makes those of `tw.ir`."""

OPEN_IN_NAMESPACES: set[str] = set()
"""Names of the namespaces that have none yet."""

OPEN_METHODS: set[str] = set()
"""Methods of tensors and fragments that have none yet."""


def has_example(what: object) -> bool:
    """Whether a docstring of its own has an example, which names it; a class may be seen in what it makes."""
    _, found, example = (inspect.unwrap(what).__doc__ or "").partition("Example:")  # type: ignore[arg-type]
    shown = isinstance(what, type) or f"{what.__name__}(" in example  # type: ignore[attr-defined]
    return bool(found) and ">>>" in example and shown


def called_by_users(space: ModuleType) -> Iterator[str]:
    """The functions of a namespace, and the classes whose constructors users call."""
    for name in space.__all__:
        what = getattr(space, name)
        if isinstance(what, type):
            made = name in MADE_BY_OTHERS or issubclass(what, Exception) or space is tw.ir
        else:
            made = not inspect.isroutine(what)
        if not made:
            yield name


def methods(kind: type) -> Iterator[str]:
    """What is called on a value: no properties, and none of Python's own names."""
    for name, _ in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_"):
            yield name


NAMES = [space + name for space, module in SPACES.items() for name in called_by_users(module)]
METHODS = [f"{kind.__name__}.{name}" for kind in (tw.Tensor, tw.Fragment) for name in methods(kind)]
LISTED = OPEN_IN_NAMESPACES | OPEN_METHODS


@pytest.mark.parametrize("name", [*NAMES, *METHODS])
def test_a_public_name_has_an_example(name: str) -> None:
    assert has_example(attrgetter(name)(tw)) == (name not in LISTED), "take it from the list, or give it one"


def test_only_public_names_are_listed() -> None:
    assert {*NAMES, *METHODS} >= LISTED
    assert {*tw.__all__, *tw.hopper.__all__} >= MADE_BY_OTHERS
