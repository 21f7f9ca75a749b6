"""Every target checks a kernel's requirements on sizes at launch, before anything runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.verify import violations

from .fake_gpu import Driver, OnGpu

TARGETS = ("reference", "cpu", "cuda")


@tw.kernel(X="N", Y="N", count=int)
def picky(X, Y, count, *, tile=64):
    tiles = tw.derived(X.shape[0] // tile)
    tw.require(X.shape[0] % tile == 0, f"N must be a multiple of {tile}; pad X")
    tw.require((count >= 1) & (count <= tiles), "count must be from 1 to the number of tiles")
    n = tw.block_index(tiles)
    tw.copy(tw.load(X.tile((tile,), (n,)).partition((32,))), Y.tile((tile,), (n,)))


def arrays(n: int, target: str) -> tuple[Any, Any]:
    made = np.arange(n, dtype=np.float32), np.full(n, np.nan, np.float32)
    return made if target != "cuda" else tuple(map(OnGpu, made))  # type: ignore[return-value]


@pytest.mark.parametrize("target", TARGETS)
def test_what_holds_runs_and_what_does_not_is_refused_with_the_authors_words(
    target: str, gpu: Driver
) -> None:
    x, y = arrays(128, target)
    for count in (1, 2):
        assert picky(x, y, count, target=target).target == target
    done = len(gpu.launched)
    for n, count, message in (
        (100, 1, "kernel picky: N must be a multiple of 64; pad X"),
        (128, 0, "kernel picky: count must be from 1 to the number of tiles"),
        (128, 3, "kernel picky: count must be from 1 to the number of tiles"),
    ):
        x, y = arrays(n, target)
        for start in (picky, picky.bind().prepare):
            with pytest.raises(tw.LaunchError, match=f"^{message}$"):
                start(x, y, count, target=target)
        assert np.isnan(y.array if target == "cuda" else y).all()
    assert len(gpu.launched) == done


def test_the_checker_asks_too() -> None:
    with pytest.raises(tw.LaunchError, match="pad X"):
        picky.check(*arrays(100, "cpu"), 1)


def test_it_prints_parses_and_verifies() -> None:
    kernel = picky.trace(*arrays(100, "cpu"), 1)
    assert [guard.message for guard in kernel.guards] == [
        "N must be a multiple of 64; pad X",
        "count must be from 1 to the number of tiles",
    ]
    text = tw.ir.print_kernel(kernel)
    assert tw.ir.print_kernel(tw.ir.parse_kernel(text)) == text
    assert violations(kernel) == []


def test_what_is_known_to_hold_leaves_nothing_to_check() -> None:
    assert len(picky.trace(*arrays(128, "cpu"), 1).guards) == 1


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_what_is_known_not_to_hold_is_refused_at_launch(target: str) -> None:
    @tw.kernel(X="N")
    def odd(X, *, sure=True):
        tw.require(X.shape[0] % 2 == 1, "N must be odd")
        tw.require(sure, "be sure")

    odd(np.zeros(3), target=target)
    for wrong, given, message in ((2, {}, "N must be odd"), (3, {"sure": False}, "be sure")):
        with pytest.raises(tw.LaunchError, match=message):
            odd(np.zeros(wrong), target=target, **given)
        text = tw.ir.print_kernel(kernel := odd.trace(np.zeros(wrong), **given))
        assert tw.ir.parse_kernel(text).guards == kernel.guards


def test_only_the_launchers_integers_can_be_required() -> None:
    @tw.kernel(X="N")
    def late(X):
        n = tw.block_index(X.shape[0])
        tw.require(n < 4, "few")

    with pytest.raises(tw.TraceError, match=r"a requirement n < 4 depends on n, which is known only when"):
        late(np.zeros(3))

    @tw.kernel(X="N")
    def number(X):
        tw.require(X.shape[0], "some")  # type: ignore[arg-type]

    with pytest.raises(tw.TraceError, match="must be a Condition"):
        number(np.zeros(3))
