"""Ten wrong calls and their messages, word for word.

`python tests/layout/test_errors.py` writes the files anew; read the difference before committing it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tilewright.errors import LayoutError
from tilewright.layout.algebra import complement, composition, logical_divide
from tilewright.layout.layout import Layout, row_major
from tilewright.symbolic.nodes import Sym
from tilewright.threads.banks import bank_conflicts
from tilewright.threads.distribution import blocked
from tilewright.views.im2col import im2col
from tilewright.views.transforms import Slice, Swizzle, Tile, Unmerge
from tilewright.views.view import View

GOLDEN = Path(__file__).parent / "golden"
M, K = Sym("M", 1), Sym("K", 16, divisor=16)
IMAGE = View.strided((2, 6, 6, 4), (144, 24, 4, 1))

BAD_CALLS: dict[str, Callable[[], object]] = {
    "structure": lambda: Layout((4, (2, 3)), (1, 4, 8)),
    "outside": lambda: row_major((4, 8))(4, 0),
    "partial_slice": lambda: Layout((4, 8))[1:3, 0],
    "composition": lambda: composition(Layout((4, 2), (1, 10)), Layout((4, 4), (1, 1))),
    "complement": lambda: complement(Layout(4, 2), 30),
    "undecidable": lambda: logical_divide(row_major((M, K)), (1, 32)),
    "tile": lambda: Tile((128, 32), (2, 0)).apply(View.strided((256, K), (K, 1))),
    "slice": lambda: Slice(((0, 9), None)).apply(View.strided((8, 16), (16, 1))),
    "unmerge": lambda: Unmerge(1, (5, 8)).apply(View.strided((8, K), (K, 1))),
    "swizzle": lambda: Swizzle(3, 3, 3).apply(View.strided((9, 40), (40, 1))),
    "threads": lambda: blocked((256, 48), (64, 5), order=(1, 0)),
    "im2col": lambda: im2col(IMAGE, spatial=(1, 2), filter=(3, 7)),
    "groups": lambda: im2col(IMAGE, spatial=(1, 2), filter=(3, 3), groups=3),
    "banks": lambda: bank_conflicts(View.strided((8, 64), (68, 1)), blocked((8, 64), (8, 8), (1, 0)), 8, 2),
    "array": lambda: row_major((M, K))(np.arange(4)),
}


def message(call: Callable[[], object]) -> str:
    with pytest.raises(LayoutError) as caught:
        call()
    return f"{caught.value}\n"


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_bad_call_says_what_to_do(name: str) -> None:
    assert message(BAD_CALLS[name]) == (GOLDEN / f"{name}.txt").read_text()


def test_there_is_no_message_too_many() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(BAD_CALLS)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, call in BAD_CALLS.items():
        (GOLDEN / f"{name}.txt").write_text(message(call))
