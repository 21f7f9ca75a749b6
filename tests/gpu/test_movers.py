"""Every random mover on a GPU: every bit arrives, and nothing else is written."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

MOVERS = runpy.run_path(str(Path(__file__).parents[1] / "movers" / "random_movers.py"))["movers"]()
GROUPS = 10


@pytest.mark.parametrize("group", range(GROUPS))
def test_three_hundred_random_movers(group: int) -> None:
    for made in MOVERS[group::GROUPS]:
        assert made.moves_every_bit("cuda"), made
