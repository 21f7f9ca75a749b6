"""Products of grouped rows, with sizes and tokens in memory."""

from __future__ import annotations

import pytest
from tests.targets.grouped import arguments, check, grouped

from tilewright.ir import verify
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda

SIZES = [(70, 0, 5, 64, 131), (0, 0, 3), (64,)]


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_each_row_is_multiplied_by_the_matrix_of_its_group(sizes, gathered: bool, target: str) -> None:
    given = arguments(sizes, 75, 71, gathered)
    assert grouped(*given, gathered=gathered, target=target).target == target
    check(given, given[-1], gathered)


@pytest.mark.parametrize("gathered", [False, True])
def test_it_is_clean_and_compiles(gathered: bool) -> None:
    given = arguments((70, 0, 35), 64, 40, gathered)
    assert not grouped.check(*given, gathered=gathered).findings
    kernel = grouped.trace(*given, gathered=gathered)
    assert not [*verify.violations(kernel), *cuda.violations(kernel, "sm_90a")]
    binary = compile_text(cuda.emit(kernel, "sm_90a").text, "sm_90a")
    assert binary.resources["spill_store_bytes"] == binary.resources["stack_bytes"] == 0


def test_offsets_past_the_rows_are_found() -> None:
    given = arguments((70, 35), 64, 40, False)
    given[1][-1] = 106
    found = grouped.check(*given).findings
    assert "integer outside of its range" in {finding.kind.value for finding in found}
