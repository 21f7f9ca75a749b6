"""An integer that another block writes must be read after the wait for it; the checker requires that."""

from __future__ import annotations

import numpy as np
import pytest
from tests.targets.chained import arguments, chained, expected

from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("blocks", [1, 2, 9])
def test_blocks_hand_an_integer_on(blocks: int, target: str) -> None:
    x, counts, y = arguments(blocks, blocks)
    assert chained(x, counts, y, target=target).target == target
    np.testing.assert_array_equal(y, expected(x, counts, len(y)))


def test_the_text_reads_it_after_the_wait() -> None:
    text = cuda.emit(chained.trace(*arguments(9, 9)), "sm_90a").text
    kernel = text[text.index("extern") :]
    assert 0 < kernel.index("await") < kernel.index("= ends[block - 1];")
    assert compile_text(text, "sm_90a")


def test_a_read_that_nothing_orders_is_found() -> None:
    given = arguments(5, 5)
    assert not chained.check(*given, partial=("Y",)).findings
    found = chained.check(*given, partial=("Y",), awaits=False).findings
    assert any(finding.access.op.name == "read_index" for finding in found)
    assert any(finding.tensor == "ends" for finding in found)
