"""Listings of the small HIP programs in this folder, as the PyPI compiler writes them."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.amdgcn import Listing, read_listing

KERNELS = Path(__file__).parent / "kernels"
ARCHS = ("gfx1151", "gfx942")
OPTIONS = (
    *("-x", "hip", "--cuda-device-only", "-nogpulib", "-nogpuinc"),
    *("-O3", "-std=c++17", "-mcode-object-version=5", "-S"),
)


@functools.cache
def listing_text(program: str, arch: str) -> str:
    """Return the listing of a program for an architecture."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "out.s"
        command = [sys.executable, "-m", "ziglang", "clang", *OPTIONS, f"--offload-arch={arch}"]
        subprocess.run([*command, str(KERNELS / f"{program}.hip"), "-o", str(made)], check=True)
        return made.read_text()


@functools.cache
def listing(program: str, arch: str) -> Listing:
    return read_listing(listing_text(program, arch))


def typed(arguments: Sequence[Any]) -> list[Any]:
    """Return integers as i32 and floats as f32, as the programs take them."""
    kinds = {int: np.int32, float: np.float32}
    return [kinds[type(one)](one) if type(one) in kinds else one for one in arguments]
