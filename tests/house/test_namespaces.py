"""Public names, their namespaces, and the message about a name in the wrong namespace."""

from __future__ import annotations

import ast
import subprocess
import sys
from types import ModuleType

import pytest

import tilewright as tw

SPACES = {
    space.__name__: space
    for space in (tw, tw.ck, tw.hopper, tw.layouts, tw.ir, tw.testing, tw.atoms, tw.draw)
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_a_namespace_shows_what_is_public_and_nothing_else(space: ModuleType) -> None:
    assert dir(space) == sorted(set(space.__all__))
    for name in space.__all__:
        assert getattr(space, name) is not None


def test_no_name_is_in_two_places() -> None:
    places = [name for space in SPACES.values() for name in space.__all__]
    twice = {name for name in places if places.count(name) > 1}
    assert twice == {"fma", "Kernel"}, "an operation and the atom that does it; an author's kernel and its IR"


def test_a_star_import_brings_the_same() -> None:
    names: dict[str, object] = {}
    exec("from tilewright import *", names)
    assert {*names} - {"__builtins__"} == {*tw.__all__}
    assert names["hopper"] is tw.hopper


@pytest.mark.parametrize(
    ("space", "name", "said"),
    [
        (tw, "tma_load", "; it is tw.hopper.tma_load"),
        (tw, "parse_kernel", "; it is tw.ir.parse_kernel"),
        (tw, "composition", "; it is tw.layouts.composition"),
        (tw, "do_bench", "; it is tw.testing.do_bench"),
        (tw.testing, "allclose", ""),
        (tw, "MMA_F16", "; it is tw.atoms.MMA_F16"),
        (tw, "draw_layout", "; it is tw.draw.draw_layout"),
        (tw.hopper, "shared", "; it is tw.shared"),
        (tw.ir, "coalesce", "; it is tw.layouts.coalesce"),
        (tw, "coppy", "; did you mean tw.copy?"),
        (tw, "tma_lode", "; did you mean tw.hopper.tma_load?"),
        (tw.layouts, "coalesced", "; did you mean tw.layouts.coalesce?"),
        (tw, "mm", "; did you mean tw.matmul?"),
        (tw, "cdiv", "; did you mean tw.ceil_div?"),
        (
            *(tw, "cumsum"),
            "; write x.cumsum(axis) for a tile of a kernel with tw.tiles, tw.prefix_sum in an explicit one",
        ),
        (tw, "xyzzy", ""),
        (tw.atoms, "__wrapped__", ""),
    ],
)
def test_a_name_that_is_not_there_is_told_where_it_is(space: ModuleType, name: str, said: str) -> None:
    with pytest.raises(AttributeError) as failure:
        getattr(space, name)
    assert str(failure.value) == f"module {space.__name__!r} has no attribute {name!r}{said}"


def test_the_error_is_at_the_users_line() -> None:
    with pytest.raises(AttributeError) as failure:
        tw.tma_load  # noqa: B018
    assert [entry.path.name for entry in failure.traceback] == ["test_namespaces.py"]


@pytest.mark.parametrize("space", ["ck", "hopper", "layouts", "testing", "draw"])
def test_a_namespace_costs_nothing_before_it_is_used(space: str) -> None:
    code = "import sys, tilewright as tw; tw.copy; print(sorted(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = ast.literal_eval(ran.stdout)
    assert "tilewright.public" in names
    assert not [name for name in names if name.endswith(f".{space}")]


def test_a_name_that_comes_late_is_found_at_once_the_second_time() -> None:
    seen = "import tilewright as tw; old = 'einsum' in vars(tw); tw.einsum; print(old, 'einsum' in vars(tw))"
    done = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
