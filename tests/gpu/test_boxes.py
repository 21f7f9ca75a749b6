"""TMA of tensors of two to five dimensions on a GPU: all edges, all kinds of strides, and every byte."""

from __future__ import annotations

from typing import Any

import pytest
from tests.targets.cuda.boxes import LEGAL, REFUSED, Case, store_boxes

import tilewright as tw

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("made", "kernel"), LEGAL)
def test_every_byte(made: Case, kernel: Any) -> None:
    assert made.is_right(kernel, "cuda")


@pytest.mark.parametrize("name", REFUSED)
def test_stores_of_rows_that_end_within_16_bytes_are_refused(name: str) -> None:
    """On an H200 they wrote beyond every row."""
    with pytest.raises(tw.LegalityError, match="a store by TMA writes whole units of 16 bytes"):
        REFUSED[name].is_right(store_boxes, "cuda")
