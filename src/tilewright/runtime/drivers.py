"""The driver of each target that runs on GPUs."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from tilewright.targets.target import CUDA, HIP, TARGETS, TargetParts, target_named

if TYPE_CHECKING:  # a driver is loaded when it is asked for
    from tilewright.runtime.driver import Driver


def _cuda() -> Driver:
    from tilewright.runtime.cuda import CUDA_DRIVER

    return CUDA_DRIVER


def _hip() -> Driver:
    from tilewright.runtime.hip_driver import HIP_DRIVER

    return HIP_DRIVER


DRIVERS: TargetParts[Driver] = TargetParts({CUDA.name: _cuda, HIP.name: _hip})
"""The drivers by target."""


def driver_for(target: str) -> Driver | None:
    """The driver of a target; None if its kernels run on the host.

    Raises:
        LaunchError: no such target; lists the names.
    """
    return DRIVERS.get(target_named(target).name)


@cache
def driver_of(memory: str) -> Driver:
    """The driver of the GPUs that arrays lie in.

    Args:
        memory: what frameworks call such a device.
    """
    return next(DRIVERS[name] for name in DRIVERS if TARGETS[name].memory == memory)


def synchronize(target: str) -> None:
    """Return when all kernels of a target on device 0 have ended; on the host a launch returns no earlier."""
    driver = driver_for(target)
    if driver is not None:
        driver.synchronize()


def has_device(target: str) -> bool:
    """Whether this machine has a device for a target's kernels; the host is one."""
    driver = driver_for(target)
    return driver is None or driver.device_count() > 0
