"""Reductions by TMA on a GPU: every block counts, and the memory around is unchanged."""

from __future__ import annotations

import pytest
from tests.targets.cuda.bulk_reductions import CASES, combine, expected, made

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_every_block_is_counted(kind: str, name: str) -> None:
    x, y = made(name)
    wanted = expected(kind, x, y)
    (kept, source), (buffer, place) = x.on_gpu(), y.on_gpu()
    assert combine(source, place, kind=kind).target == "cuda"
    y.buffer[...] = buffer.host()
    del kept  # its memory is needed until the kernel has ended
    assert (y.array == wanted).all()
    assert y.is_whole_around()
