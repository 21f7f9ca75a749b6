"""Every public function, and all members of tensors and fragments, have an example in their docstrings.

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
    "ck.": tw.ck,
    "hopper.": tw.hopper,
    "layouts.": tw.layouts,
    "ir.": tw.ir,
    "testing.": tw.testing,
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
    "KernelReport",
    "MutableIndex",
    "Number",
    "Packed",
    "RearrangedWeights",
    "PreparedLaunch",
    "Report",
    "Scalar",
    "Specimen",
    "Tensor",
    "Tile",
}
"""Classes whose constructors no user calls: functions make them."""


def has_example(name: str, what: object) -> bool:
    """Return whether a name's docstring has an example of it; a class may occur as the value of a call."""
    _, found, example = (inspect.unwrap(what).__doc__ or "").partition("Example:")  # type: ignore[arg-type]
    last = name.rpartition(".")[2] + ("" if isinstance(what, property) else "(")
    return bool(found) and ">>>" in example and (isinstance(what, type) or last in example)


def called_by_users(space: ModuleType) -> Iterator[str]:
    """Return the functions of a namespace, and the classes whose constructors users call."""
    for name in space.__all__:
        what = getattr(space, name)
        if isinstance(what, type):
            made = name in MADE_BY_OTHERS or issubclass(what, Exception)
        else:
            made = not inspect.isroutine(what)
        if not made:
            yield name


def methods(kind: type) -> Iterator[str]:
    """Return the public methods and properties of a value, without Python's own names."""
    for name, _ in inspect.getmembers(
        kind, lambda what: inspect.isfunction(what) or isinstance(what, property)
    ):
        if not name.startswith("_"):
            yield name


NAMES = [space + name for space, module in SPACES.items() for name in called_by_users(module)]
METHODS = [f"{kind.__name__}.{name}" for kind in (tw.Tensor, tw.Fragment, tw.Tile) for name in methods(kind)]


@pytest.mark.parametrize("name", [*NAMES, *METHODS])
def test_a_public_name_has_an_example(name: str) -> None:
    assert has_example(name, attrgetter(name)(tw)), "its docstring has no Example: that calls it"


def test_only_public_classes_are_made_by_others() -> None:
    assert {*tw.__all__, *tw.hopper.__all__} >= MADE_BY_OTHERS
