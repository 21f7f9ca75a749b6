"""A skipped test is a failed test: what cannot run everywhere carries a marker and is deselected.

The `gpu` marker is the only one so far; `-m gpu` asks for those tests, and without a GPU they then fail.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest
from hypothesis import settings

# The same cases on every machine, and no failure because a machine was busy.
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")

NO_SKIPS = "skipping is a failure here; mark what needs a GPU with `pytest.mark.gpu`. The skip said: {}"


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = NO_SKIPS.format(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report
