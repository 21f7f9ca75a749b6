"""Fixtures that tests of the runtime share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.runtime.cache import Cache

from .fake_gpu import gpu

__all__ = ["gpu"]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """An empty cache."""
    return Cache(tmp_path / "cache")
