"""Integers that no machine can serve are refused at once, with the limit and its reason."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.calls.performed import Call, failure_of, perform

import tilewright as tw

MMA = tw.TiledMma(tw.atoms.MMA_F16)
IMAGE = tw.View.strided((2, 9, 9, 8), (648, 72, 8, 1))

OUTSIDE: dict[str, tuple[Callable[[], object], str]] = {
    "threads": (lambda: tw.blocked((2**41,), (2**40,)), "at most 16777216"),
    "threads that do not divide": (
        lambda: tw.blocked((256, 32), (2**40, 4)),
        "number of threads: 256",
    ),
    "more threads than a block has": (lambda: tw.blocked((2**20,), (2**20,)), "at most 65536 threads"),
    "a map of a huge tile": (lambda: tw.raked((2**30, 2**30), (8, 4), 4, 1), "at most 16777216"),
    "values of each thread": (lambda: tw.blocked((2**23,), (1,)), "at most 4194304 pairs"),
    "vectors": (
        lambda: tw.raked((256, 32), (32, 4), 2**50, 1),
        "nearest legal choice: vector=8",
    ),
    "groups": (
        lambda: tw.im2col(IMAGE, spatial=(1, 2), filter=(3, 3), groups=2**31),
        "nearest legal choice: groups=8",
    ),
    "stages": (
        lambda: tw.Schedule(tw.atoms.MMA_F16, (64, 64, 32), stages=10**6),
        "at most 256: each holds a tile of every operand",
    ),
    "warps": (lambda: tw.TiledMma(tw.atoms.MMA_F16, (2**20, 1)), "at most 1024: a block of a GPU has 1024"),
    "repeats": (
        lambda: tw.TiledMma(tw.atoms.MMA_F16, (1, 1), (2**30, 1)),
        "at most 4096: each needs",
    ),
    "unrolled turns": (lambda: tw.unroll(10**7), "at most 65536: the body is traced once for each"),
    "a table of a layout": (lambda: tw.draw.offset_table(tw.Layout(10**18)), "too many to look at"),
    "a picture of a layout": (lambda: tw.draw.draw_layout(tw.Layout((10**9, 10**9))), "too many to look at"),
    "the bits of a swizzle": (lambda: tw.Swizzle(3, 10**9, 3), "at most 40 bits"),
    "an extent of 100 bits": (lambda: tw.Layout(2**100), "at most 64 bits"),
    "an extent of 16,000 bits": (lambda: tw.Layout(10**5000), "an integer of 16610 bits"),
    "a nested shape": (lambda: tw.Layout(nested(5000)), "more than 32 levels"),
    "many entries": (lambda: tw.Layout(range(10**9)), "more than 1024 entries"),
}

INSIDE = {
    "for k in tw.unroll(10000000): tw.barrier()": "at most 65536",
    "with tw.role(1099511627776): tw.barrier()": "at most 1024",
    "tw.hopper.mbarrier(1099511627776, 1)": "at most 4096: each takes 8 bytes of shared memory",
    "tw.hopper.mbarrier(1, 1099511627776)": "at most 1048575: the hardware counter ends there",
    "S.partition((1099511627776, 1))": "cannot share the extent 32",
    "X.tile((1073741824, 32), (0, 0)).partition((8, 4))": "at most 16777216",
    "tw.shared((1073741824, 32), 'f32')": "at most 67108864 bytes",
    "tw.reduce_sum(f, 1, block=1099511627776)": "nearest legal choice: block=32",
    "n << 1099511627776": "from 0 to 63",
}

SECONDS = 0.5
"""Processor time that a refusal may take; each takes some milliseconds."""


def nested(depth: int) -> object:
    made: object = 4
    for _ in range(depth):
        made = (made,)
    return made


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_huge_integer_is_refused_at_once(name: str) -> None:
    call, said = OUTSIDE[name]
    start = time.process_time()
    with pytest.raises(tw.TilewrightError) as caught:
        call()
    assert time.process_time() - start < SECONDS
    assert said in str(caught.value)


@pytest.mark.parametrize("text", INSIDE)
def test_a_huge_integer_is_refused_at_once_in_a_kernel(text: str) -> None:
    start = time.process_time()
    with pytest.raises(tw.TilewrightError) as caught:
        perform(Call(text, "in a kernel"))
    assert time.process_time() - start < SECONDS
    assert INSIDE[text] in str(caught.value)
    assert failure_of(Call(text, "in a kernel")) is None
