"""A row of a batch-invariant product has the same bits among any other rows.

`scripts/try_rows.py` tries all forms of products.
"""

from __future__ import annotations

import inspect
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import dtypes
from tilewright.errors import DTypeError
from tilewright.runtime import native

from .rows_apart import CASES, MACHINES, ROWS, Case, command

ROOT = Path(__file__).resolve().parents[2]


GROUPS = 17
"""Processes that share the cases."""


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("number", range(GROUPS))
def test_a_row_has_its_bits_among_any_number_of_rows(number: int) -> None:
    """The test has a sixth of the row counts, two matrices, and one compiler, one machine, 1 or 2 threads.

    `scripts/try_rows.py` tries all compilers with each case.
    """
    names = [*CASES][number::GROUPS]
    compilers = [one.name for one in native.find_toolchains()]
    asked = command(1 + number % 2, MACHINES[number // 2 % 2], 1 + number % 12, str(number // 4), *names)
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.rsplit("; ", 1) for line in done.stdout.splitlines()]
    assert [one for one, _ in said] == names
    assert {words.split(",")[0] for _, words in said} == {compilers[number // 4 % len(compilers)]}
    compared = [int(number) for number in re.findall(r": (\d+) numbers of rows", done.stdout)]
    assert len(compared) == len(names)
    assert min(compared) >= ROWS // 6 - 1


def test_the_sweep_finds_rows_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    from . import rows_apart

    product = rows_apart.Product(CASES[str(Case("matmul", "f32", "f32"))], 20, 3)
    bits = product.rows

    def rows(first: int, count: int) -> Any:
        made = bits(first, count).copy()
        made[0, -1, 0] ^= count == 7
        return made

    monkeypatch.setattr(product, "rows", rows)
    (line,) = product.differing(range(1, 9), lambda count: None)
    assert line.startswith("7 rows from 5: 1 rows differ")


def test_all_that_takes_the_option_is_tried() -> None:
    verbs = {name: verb for name in dir(tw) if inspect.isroutine(verb := getattr(tw, name))}
    taking = {name for name, verb in verbs.items() if "batch_invariant" in inspect.signature(verb).parameters}
    assert taking == {case.op for case in CASES.values()}
    for name, dtype in dtypes.ALL.items():
        if dtype.is_packed:
            continue
        op, ones = "complex_matmul" if dtype.components > 1 else "matmul", np.zeros((3, 3), dtype.numpy)
        try:
            getattr(tw, op)(ones, ones, batch_invariant=True, target="reference")
        except DTypeError:
            continue
        assert any((case.op, case.a, case.b) == (op, name, name) for case in CASES.values()), name
