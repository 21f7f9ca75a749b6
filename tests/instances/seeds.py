"""The tuned instance of the reference: 128 x 256 x 64 by 256 threads, WMMA of f16, and one by XDL."""

from __future__ import annotations

from typing import Any

import tilewright as tw

HALF = dict.fromkeys(("a_dtype", "b_dtype", "c_shuffle_dtype", "c_dtype"), tw.f16) | {"acc_dtype": tw.f32}

SEED = tw.ck.DeviceGemmWmma(
    **HALF,
    block_size=256,
    m_per_block=128,
    n_per_block=256,
    k_per_block=64,
    k1=8,
    m_per_wmma=16,
    n_per_wmma=16,
    m_repeat=4,
    n_repeat=4,
    a_block_transfer=tw.ck.BlockTransfer(
        thread_cluster_lengths=(4, 64, 1),
        thread_cluster_arrange_order=(1, 0, 2),
        src_access_order=(1, 0, 2),
        src_vector_dim=2,
        src_scalar_per_vector=8,
        dst_scalar_per_vector_k1=8,
        lds_extra=True,
    ),
    b_block_transfer=tw.ck.BlockTransfer(
        thread_cluster_lengths=(4, 64, 1),
        thread_cluster_arrange_order=(0, 2, 1),
        src_access_order=(0, 2, 1),
        src_vector_dim=1,
        src_scalar_per_vector=1,
        dst_scalar_per_vector_k1=8,
        lds_extra=True,
    ),
    c_shuffle=tw.ck.CShuffle(
        m_repeat_per_shuffle=1, n_repeat_per_shuffle=1, cluster_lengths=(1, 32, 1, 8), scalar_per_vector=8
    ),
)
"""Every parameter of the reference's instance."""


def along_k(lengths: tuple[int, int, int] = (4, 64, 1), **changes: Any) -> tw.ck.BlockTransfer:
    """Return a transfer of a matrix that is contiguous along K."""
    known: dict[str, Any] = {
        "thread_cluster_lengths": lengths,
        "thread_cluster_arrange_order": (1, 0, 2),
        "src_access_order": (1, 0, 2),
        "src_vector_dim": 2,
        "src_scalar_per_vector": 8,
        "dst_scalar_per_vector_k1": 8,
        "lds_extra": True,
    }
    return tw.ck.BlockTransfer(**known | changes)


XDL = tw.ck.DeviceGemmXdl(
    **HALF,
    block_size=256,
    m_per_block=256,
    n_per_block=128,
    k_per_block=32,
    ak1=8,
    bk1=8,
    m_per_xdl=32,
    n_per_xdl=32,
    m_xdl_per_wave=4,
    n_xdl_per_wave=2,
    a_block_transfer=along_k(),
    b_block_transfer=along_k(),
    b_layout="column",
    c_shuffle=tw.ck.CShuffle(
        m_repeat_per_shuffle=1, n_repeat_per_shuffle=1, cluster_lengths=(1, 32, 1, 8), scalar_per_vector=8
    ),
)

NARROW = tw.ck.DeviceGemmWmma(
    **HALF,
    block_size=64,
    m_per_block=32,
    n_per_block=32,
    k_per_block=32,
    k1=8,
    m_per_wmma=16,
    n_per_wmma=16,
    m_repeat=1,
    n_repeat=2,
    a_block_transfer=along_k((4, 16, 1)),
    b_block_transfer=along_k((4, 16, 1)),
    b_layout="column",
    c_shuffle=tw.ck.CShuffle(
        m_repeat_per_shuffle=1, n_repeat_per_shuffle=1, cluster_lengths=(1, 16, 1, 4), scalar_per_vector=4
    ),
)
"""Two waves along M and one along N, so that A goes straight to registers."""
