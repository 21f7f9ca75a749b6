"""The traced kernels of `cases.py` as fixtures: a test that takes ``case`` runs once for each of them."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilewright.ir.kernel import Kernel

from .cases import CASES, CLUSTERS, SIGNALS

_ROOM = Path(__file__).parent
EMULATED: dict[str, Callable[[], Kernel]] = {**CASES, **CLUSTERS}
"""What the host's emulator runs, one block after the other."""
ALL: dict[str, Callable[[], Kernel]] = {**EMULATED, **SIGNALS}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", sorted(EMULATED if "emulator" in metafunc.fixturenames else ALL))


@pytest.fixture
def kernel(case: str) -> Kernel:
    """The traced kernel of a case."""
    return ALL[case]()


@pytest.fixture(scope="session")
def cases() -> dict[str, Callable[[], Kernel]]:
    """Return, for each case, a function that traces its kernel."""
    return ALL


@pytest.fixture(scope="session")
def emulated() -> dict[str, Callable[[], Kernel]]:
    """Return the cases that the host's emulator runs."""
    return EMULATED


@pytest.fixture(scope="session")
def archs() -> Callable[[str], list[str]]:
    """Return the architectures that a case is compiled for."""
    return lambda case: ["sm_90a"] if case in CLUSTERS else ["sm_80", "sm_90a"]


@pytest.fixture(scope="session")
def emulation() -> dict[str, Any]:
    """Return the definitions of `emulation.py`."""
    return runpy.run_path(str(_ROOM / "emulation.py"))
