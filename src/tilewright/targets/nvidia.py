"""NVIDIA's architectures, as data.

Source: CUDA C++ Programming Guide, "Compute Capabilities" and "Arithmetic Instructions"; the white papers of
the A100, GA102, AD102 and H100 for the tensor cores; PTX ISA, "bar", "setmaxnreg" and "cp.async".
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.arch import Arch, Board, BulkRules, Rates, TimeConstants
from tilewright.errors import LaunchError

_GUIDE = 'CUDA C++ Programming Guide, "Arithmetic Instructions"; NVIDIA\'s white paper of the '
_SM_80_FEATURES = frozenset({"sm_80", "cp_async"})

SM_80 = Arch(
    name="sm_80",
    vendor="nvidia",
    features=_SM_80_FEATURES | {"f64_tensor"},
    lanes=32,
    threads=1024,
    grid=(2**31 - 1, 65535, 65535),
    shared_bytes=166912,
    registers=65536,
    thread_registers=255,
    register_unit=8,
    simds=4,
    simd_warps=16,
    role_registers=(24, 240),
    role_warps=4,
    named_barriers=15,
    access_bytes=16,
    async_bytes=(4, 8, 16),
    banks=32,
    bank_bytes=4,
    sector_bytes=32,
    line_bytes=128,
    rates=Rates(
        {"f16": 2048, "bf16": 2048, "tf32": 1024, "i8": 4096, "f64": 128},
        {"f16": 512, "f32": 128, "f64": 64},
        128,
        (Board("A100 SXM 80GB", 108, 1410, 2039, 40),),
        _GUIDE + "A100",
    ),
)
SM_86 = replace(
    SM_80,
    name="sm_86",
    features=_SM_80_FEATURES,
    shared_bytes=101376,
    simd_warps=12,
    rates=Rates(
        {"f16": 1024, "bf16": 1024, "tf32": 512, "i8": 2048},
        {"f16": 256, "f32": 256, "f64": 4},
        128,
        (Board("RTX A6000", 84, 1800, 768, 6),),
        _GUIDE + "GA102",
    ),
)
SM_89 = replace(
    SM_86,
    name="sm_89",
    features=_SM_80_FEATURES | {"sm_89"},
    rates=Rates(
        {"f16": 1024, "bf16": 1024, "tf32": 512, "f8e4m3": 2048, "f8e5m2": 2048, "i8": 2048},
        {"f16": 256, "f32": 256, "f64": 4},
        128,
        (Board("L40S", 142, 2520, 864, 96),),
        _GUIDE + "AD102",
    ),
)
SM_90A = replace(
    SM_80,
    name="sm_90a",
    features=_SM_80_FEATURES
    | {"sm_89", "sm_90", "sm_90a", "wgmma", "cluster", "dependent_launch", "f64_tensor"},
    shared_bytes=232448,
    cluster=8,
    bulk=BulkRules(unit_bytes=16, span_bytes=128, extent=256, rank=5),
    rates=Rates(
        {"f16": 4096, "bf16": 4096, "tf32": 2048, "f8e4m3": 8192, "f8e5m2": 8192, "i8": 8192, "f64": 256},
        {"f16": 512, "f32": 256, "f64": 128},
        128,
        (Board("H200 SXM", 132, 1980, 4800, 50, copied_gbytes_per_s=4250),),
        _GUIDE + "H100; the copy was measured",
    ),
    times=TimeConstants(synchronous=0.62, source="2,611 products on an H200, 2026-11-27"),
)

ARCHITECTURES: dict[str, Arch] = {arch.name: arch for arch in (SM_80, SM_86, SM_89, SM_90A)}
"""Every architecture by name."""


def of_capability(major: int, minor: int) -> Arch:
    """Return the architecture to compile for on a GPU: that of its compute capability, or the nearest below.

    Raises:
        LaunchError: no architecture has the same major version and at most the minor version.

    Example:
        >>> of_capability(9, 0).name, of_capability(8, 7).name, of_capability(8, 9).name
        ('sm_90a', 'sm_86', 'sm_89')
    """
    fits = {}
    for arch in ARCHITECTURES.values():
        big, small = divmod(int(arch.name.strip("sm_a")), 10)
        if big == major and small <= minor:
            fits[small] = arch
    if not fits:
        raise LaunchError(
            f"no architecture for compute capability {major}.{minor}; known: {', '.join(ARCHITECTURES)}"
        )
    return fits[max(fits)]
