"""The report on copies on the CPU, compared with the compiled text."""

from __future__ import annotations

import re

import numpy as np

import tilewright as tw
from tilewright.inspect.report import movements, resources
from tilewright.runtime.executable import Executable


@tw.kernel(X="M N", Y="M N")
def moved(X, Y, *, steps=()):
    source = X
    for name, *arguments in steps:
        source = getattr(source, name)(*arguments)
    at = tw.block_index((1, 1))
    tw.copy(source.tile((32, 32), at), Y.tile((32, 32), at), threads=(32, 1))


@tw.kernel(X="M N", Y="M N")
def added(X, Y):
    spread = tw.blocked((32, 32), (32, 1))
    x = tw.load(X.tile((32, 32), (0, 0)), spread)
    y = tw.fragment(x)
    tw.copy(x, y)
    tw.copy(x + y, Y.tile((32, 32), (0, 0)))


def compiled(kernel, order="C", dtype=np.float32, **constants) -> Executable:
    x, y = np.ones((32, 32), dtype, order=order), np.zeros((32, 32), dtype)
    return kernel.compile(x, y, target="cpu", arch="x86-64-v3", **constants)


def said(executable: Executable) -> list[str]:
    lines = [line for line in resources(executable).splitlines() if line.startswith("copy ")]
    assert lines
    return [re.sub(r", test_accesses.*", "", line.partition(": ")[2]) for line in lines]


def test_neighbours_on_both_sides_are_left_to_the_compiler() -> None:
    made = compiled(moved)
    assert said(made) == [
        "width: the compiler's choice, a loop over 32 neighbours on both sides, up to 8 in a vector"
    ]
    assert "INDEPENDENT" in made.source
    _, whole, rest = made.source.split("limit1 == 32")[1].partition("INDEPENDENT")
    assert whole
    assert "copy_f32(" not in rest.partition("else")[0]
    assert "copy_f32(" in rest


def test_a_vector_holds_as_many_as_the_wider_side_has_room_for() -> None:
    x, y = np.ones((32, 32), np.float16), np.zeros((32, 32))
    made = moved.compile(x, y, target="cpu", arch="x86-64-v3")
    assert said(made)[0].endswith("up to 4 in a vector")


def test_blocks_are_transposed_in_registers() -> None:
    made = compiled(moved, order="F")
    assert said(made) == [
        "8 elements (32 bytes) per access, in blocks of 8 x 8 that are transposed in registers"
    ]
    assert "vector_size(32)" in made.source
    assert re.search(r"\btranspose_f32\(", made.source)


def test_neighbours_that_lie_apart_are_named() -> None:
    x, y = np.ones((32, 64), np.float32)[:, ::2], np.zeros((32, 32), np.float32)
    made = moved.compile(x, y, target="cpu", arch="x86-64-v3")
    apart = "a loop over 32 elements that lie X_stride1 elements apart in X"
    assert said(made) == [f"width: the compiler's choice, {apart}"]


def test_elements_that_may_not_exist_are_asked_for() -> None:
    made = compiled(moved, steps=(("embed", 1, (32, 2), (1, 1), 1), ("merge", 1, 2)))
    asks = "a loop that checks the bounds of each element of X"
    assert said(made) == [f"width: the compiler's choice, {asks}"]


def test_copies_within_registers_share_a_loop() -> None:
    made = compiled(added)
    assert "width: the compiler's choice, a loop that it shares with its neighbours" in said(made)


def test_every_copy_of_a_kernel_is_explained() -> None:
    for order in "CF":
        for made in (compiled(moved, order=order), compiled(added, order=order)):
            assert made.listing is not None
            found = movements(made.listing.kernel, "cpu", made.kernel, made.listing.accesses)
            assert found
            assert all(movement.how for movement in found)
            assert "not chosen" not in resources(made)
