"""Shared parts of the tests of the artifact cache."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from tilewright.runtime.cache import Cache, CacheEntry, key

KEY = key(["kernel gemm"])


def refuse() -> bytes:
    raise AssertionError("built again")


def built(cache: Cache, key: str, data: bytes = b"code", suffix: str = ".bin") -> CacheEntry:
    return cache.get_or_build(key, suffix, lambda: data, {})


def files(cache: Cache) -> list[str]:
    return sorted(path.suffix for path in cache.root.rglob("*") if path.is_file())


def age(entry: CacheEntry, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(f"{entry.path}.json", (then, then))


def wait_for(happened: Callable[[], object]) -> None:
    for _ in range(3000):
        if happened():
            return
        time.sleep(0.01)
    raise AssertionError("nothing happened in 30 s")
