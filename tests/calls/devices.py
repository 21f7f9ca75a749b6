"""An instance of a device GEMM, and fields of others, for calls of `tw.ck`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tests.instances.seeds import SEED, XDL

DEVICES: dict[str, Any] = {
    "device": SEED,
    "wmma": {field.name: getattr(SEED, field.name) for field in fields(SEED) if field.name != "k1"},
    "xdl": {field.name: getattr(XDL, field.name) for field in fields(XDL) if field.name != "ak1"},
    "transfer": {
        **dict.fromkeys(("thread_cluster_arrange_order", "src_access_order"), (1, 0, 2)),
        **dict.fromkeys(("src_scalar_per_vector", "dst_scalar_per_vector_k1"), 8),
    },
    "repeats": {"m_repeat_per_shuffle": 1, "n_repeat_per_shuffle": 1},
}
"""Values that calls name."""
