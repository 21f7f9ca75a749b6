"""`help(tw)` and `help(tw.name)` name only existing things, and show them."""

from __future__ import annotations

import inspect
import re
from operator import attrgetter
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.targets.target import TARGETS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operations.md"
ABSENT = re.compile(r"\bMetal\b|\bXPU\b")
"""Names of what no target here runs on."""


def programs() -> list[str]:
    documents = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]
    return [path.read_text() for path in documents if path != PAGE]


PROGRAMS = "\n".join(programs())


def shown(name: str) -> bool:
    """Return whether a name has an example, or refers to one or to the function that makes it."""
    doc = inspect.getdoc(attrgetter(name)(tw)) or ""
    other = re.search(r"[Ss]ee `(\w+)`|[Mm]ade by `(?:[A-Z]\w+\.)?(\w+)`", doc)
    return ">>>" in doc or other is not None or re.search(rf"\btw\.{re.escape(name)}\b", PROGRAMS) is not None


INSIDE = [
    f"{space}.{name}" for space in ("ck", "hopper", "layouts", "ir") for name in getattr(tw, space).__all__
]


@pytest.mark.parametrize("name", [*tw.__all__, *INSIDE])
def test_help_tells_of_every_name_and_shows_it(name: str) -> None:
    what = attrgetter(name)(tw)
    if isinstance(what, str | tw.DType):
        return  # constants, of which their class tells
    doc = inspect.getdoc(what)
    assert doc
    assert not ABSENT.search(doc), "what is not there is not promised"
    error = isinstance(what, type) and issubclass(what, Exception)
    assert error or shown(name), "an example in its docstring, in another one that it names, or in a program"


def test_help_of_the_package_promises_only_the_targets_that_are_there() -> None:
    assert {*TARGETS} == {"reference", "cpu", "cuda", "hip"}
    assert tw.__doc__
    assert not ABSENT.search(tw.__doc__)


@pytest.mark.parametrize(
    "name",
    [*("copy", "layouts.composition", "matmul", "Layout", "TiledMma", "role", "kernel"), "hopper.tma_load"],
)
def test_signatures_are_those_that_were_written(name: str) -> None:
    """Reading arguments changes neither what `help` shows nor what editors complete."""
    what = attrgetter(name)(tw)
    signature = inspect.signature(what)
    assert not {"args", "kwargs"} & {*signature.parameters}
    assert inspect.unwrap(what).__doc__ == what.__doc__
