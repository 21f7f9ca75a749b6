"""The architectures that instances are made for: those of target hip that have their matrix instructions."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.arch import Arch
from tilewright.targets.target import HIP

LDS_BYTES = 64 * 1024
"""Bytes of shared memory of a block, if no architecture says otherwise."""

FEATURES = {"wmma": "wmma", "xdl": "mfma"}
"""The feature of architectures that have the matrix instructions of an instance."""


def machines() -> Mapping[str, Arch]:
    """Every architecture of AMD's by its name, as `DeviceGemm.schedule` knows them."""
    return HIP.architectures


def of_matrix(matrix: str) -> tuple[str, ...]:
    """The architectures that have the matrix instructions of an instance, ``"wmma"`` or ``"xdl"``."""
    return tuple(name for name, arch in machines().items() if FEATURES[matrix] in arch.features)
