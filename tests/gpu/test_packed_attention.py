"""`tw.attention` of packed sequences on a GPU, between canaries."""

from __future__ import annotations

import pytest
from tests.ops.attending import Packed
from tests.ops.test_packed_attention import PACKED, named

import tilewright as tw
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu

LENGTHS = [(300, 300), (1, 2000), (0, 70), (1500, 900), (129, 0), (700, 1300)]
LARGE = [
    Packed((16, 16), LENGTHS, (64, 64), tw.bf16),
    Packed((16, 4), LENGTHS, (64, 64), tw.f16, diagonal=0),
    Packed((24, 8), LENGTHS, (128, 128), tw.bf16, diagonal="last"),
    Packed((8, 8), LENGTHS, (96, 128), tw.f16, diagonal=-100),
    Packed((4, 2), LENGTHS, (33, 17), tw.f16, diagonal="last"),
    Packed((4, 2), LENGTHS[:4], (64, 64), tw.f32, diagonal=0),
    Packed((8, 2), [(1, 5000), (1, 300), (1, 0), (1, 7001)], (128, 128), tw.bf16, diagonal="last"),
]
"""Tiles of all warpgroups, of `mma.sync` and of multiply-adds, and rows that decode."""


@pytest.mark.parametrize("packed", [*PACKED, *LARGE], ids=named)
def test_every_sequence(packed: Packed) -> None:
    given = [DeviceArray.of(one) for one in (packed.q, packed.k, packed.v)]
    offsets = [DeviceArray.of(one) for one in (packed.q_offsets, packed.k_offsets)]
    for _ in range(2):  # the second call is a replay
        out, lse = (DeviceArray.of(one) for one in packed.poisoned())
        words = {**packed.words, "q_offsets": offsets[0], "k_offsets": offsets[1]}
        assert tw.attention(*given, **words, out=out, lse=lse, target="cuda") is out
        packed.check(out.host(), lse.host())
