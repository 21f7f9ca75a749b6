"""`tw.attention` of packed sequences on a GPU, between canaries."""

from __future__ import annotations

from typing import Any

import pytest
from tests.ops.attending import Packed
from tests.ops.test_packed_attention import GRADIENTS, PACKED, PackedBackward, named

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


@pytest.mark.parametrize("case", GRADIENTS, ids=str)
def test_gradients_of_every_sequence(case: Any) -> None:
    packed = PackedBackward(case, [(300, 200), (0, 70), (1, 900), (700, 1), (130, 0), (260, 333)])
    given = {name: DeviceArray.of(one) for name, one in packed.arrays.items()}
    offsets = zip(("q_offsets", "k_offsets"), map(DeviceArray.of, packed.offsets), strict=True)
    results = {name: DeviceArray.of(one) for name, one in packed.results.items()}
    tw.attention_backward(**given, **packed.words, **dict(offsets), **results, target="cuda")
    packed.check({name: one.host() for name, one in results.items()})
