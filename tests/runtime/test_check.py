"""`Kernel.check` also checks the rules of a named target."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import HazardError, LaunchError, LegalityError


@tw.kernel(X="N", Y="N")
def through_shared(X, Y, *, elems, threads, ordered=True):
    """Other threads store the elements than load them."""
    held = tw.shared((elems,), X.dtype)
    tw.copy(X.tile((elems,), (0,)), held, threads=(threads,))
    if ordered:
        tw.barrier()
    tw.copy(held, Y.tile((elems,), (0,)), threads=(threads // 2,))


def checked(elems, threads, **how):
    x = np.ones(elems, np.float32)
    return through_shared.check(x, np.empty_like(x), elems=elems, threads=threads, **how)


LARGE, MANY = 1 << 16, 2048
"""Elements of 256 KiB, and threads: more than a block of any GPU has."""


def test_a_target_that_is_named_says_what_it_cannot_run() -> None:
    assert checked(LARGE, 128).is_clean, "no target, no limit of one"
    report = checked(LARGE, MANY, target="cuda", arch="sm_90a")
    assert not report.is_clean
    assert report.findings == ()
    assert report.target == "cuda sm_90a"
    assert sorted(broken.rule for broken in report.violations) == ["shared bytes", "threads"]
    with pytest.raises(LegalityError, match="not legal for cuda sm_90a: 2 violations"):
        report.raise_if_any()
    assert "2048 threads per block; sm_90a has at most 1024" in str(report)


def test_a_kernel_that_is_legal_for_the_target_is_clean() -> None:
    report = checked(1024, 128, target="cuda", arch="sm_80")
    assert report.is_clean
    assert report.target == "cuda sm_80"
    assert checked(1024, 128, target="cpu").is_clean


def test_hazards_and_broken_rules_are_reported_together() -> None:
    report = checked(LARGE, MANY, ordered=False, target="cuda", arch="sm_90a")
    assert report.findings
    assert len(report.violations) == 2
    with pytest.raises(
        HazardError, match=r"(?s)race on shared held.*not legal for cuda sm_90a: 2 violations"
    ):
        report.raise_if_any()


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"target": "gpu"}, "unknown target 'gpu'"),
        ({"target": "cuda", "arch": "sm_10"}, "unknown architecture 'sm_10'"),
        ({"arch": "sm_90a"}, "arch='sm_90a' without a target"),
    ],
)
def test_targets_and_architectures_that_do_not_exist_are_refused(how, text) -> None:
    with pytest.raises(LaunchError, match=text):
        checked(64, 32, **how)
