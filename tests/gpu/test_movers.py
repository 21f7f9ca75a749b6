"""Every random mover on a GPU: every bit arrives, and nothing else is written."""

from __future__ import annotations

import pytest
from tests.movers.random_movers import COUNT, drawn

pytestmark = pytest.mark.gpu

GROUPS = 10


@pytest.mark.parametrize("group", range(GROUPS))
def test_three_hundred_random_movers(group: int) -> None:
    for number in range(group, COUNT, GROUPS):
        assert (made := drawn(number)).moves_every_bit("cuda"), made
