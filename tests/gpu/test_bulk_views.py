"""Bulk copies of tiles, slices, permuted, padded and im2col views on a GPU: every byte, inside of poison."""

from __future__ import annotations

import pytest
from tests.targets.cuda.bulk_views import CASES, ViewCase

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("made", "way"), [pytest.param(case, way, id=f"{name}, {way}") for name, case, way in CASES]
)
def test_every_byte(made: ViewCase, way: str) -> None:
    assert made.is_right(way, "cuda")
