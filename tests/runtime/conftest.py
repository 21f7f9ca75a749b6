"""What tests of the runtime share."""

from __future__ import annotations

from .fake_gpu import gpu

__all__ = ["gpu"]
