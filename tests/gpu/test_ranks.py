"""Products over ranks that each have a GPU, through peers' memory and through NCCL; random problems."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tilewright.runtime.cuda import CUDA_DRIVER

pytestmark = pytest.mark.two_gpus

SPLIT = 4
"""Tests among which the cases are divided, so that a rank that hangs ends few of them."""


@pytest.mark.parametrize("turn", range(SPLIT))
def test_ranks_with_a_gpu_each(turn: int, tmp_path: Path, canaries: Any) -> None:
    pytest.importorskip("torch")
    from tests.distributed.on_gpus import EVERY, PEERS
    from tests.distributed.ranks import GPUS, failures, run_ranks

    assert CUDA_DRIVER.device_count() >= 2, "two GPUs are needed"
    mine: Sequence[str] = (
        list(PEERS) if turn == 0 else [one for one in EVERY if one not in PEERS][turn - 1 :: 3]
    )
    answers = run_ranks(2, tmp_path, [EVERY[one] for one in mine], 30, GPUS)
    failed = failures(mine, answers)
    assert not failed, failed
