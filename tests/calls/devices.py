"""An instance of a device GEMM, and fields of others, for calls of `tw.ck`."""

from __future__ import annotations

from typing import Any

from tests.instances.seeds import SEED, XDL

DEVICES: dict[str, Any] = {
    "device": SEED,
    "wmma": {name: getattr(SEED, name) for name in SEED.__dataclass_fields__ if name != "k1"},
    "xdl": {name: getattr(XDL, name) for name in XDL.__dataclass_fields__ if name != "ak1"},
    "transfer": {
        **dict.fromkeys(("thread_cluster_arrange_order", "src_access_order"), (1, 0, 2)),
        **dict.fromkeys(("src_scalar_per_vector", "dst_scalar_per_vector_k1"), 8),
    },
    "repeats": {"m_repeat_per_shuffle": 1, "n_repeat_per_shuffle": 1},
}
"""Values that calls name."""
