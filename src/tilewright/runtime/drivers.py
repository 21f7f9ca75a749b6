"""The driver of each target that runs on GPUs."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from tilewright.targets.target import CUDA, HIP, TARGETS, TargetParts, target_named

if TYPE_CHECKING:  # a driver is loaded on demand
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
    """Return the driver of a target; None if its kernels run on the host.

    Raises:
        LaunchError: no such target; lists the names.
    """
    return DRIVERS.get(target_named(target).name)


@cache
def driver_of(memory: str) -> Driver:
    """Return the driver of the GPUs that hold arrays.

    Args:
        memory: the frameworks' name for the kind of device.
    """
    return next(DRIVERS[name] for name in DRIVERS if TARGETS[name].memory == memory)


def synchronize(target: str) -> None:
    """Wait for all kernels of a target on device 0; on the host, a launch has already waited."""
    driver = driver_for(target)
    if driver is not None:
        driver.synchronize()


def has_device(target: str) -> bool:
    """Return whether this machine has a device for a target's kernels; the host counts."""
    driver = driver_for(target)
    return driver is None or driver.device_count() > 0
