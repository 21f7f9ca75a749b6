"""What launching asks of a GPU's driver: the same of every vendor's, each by its own names.

`tilewright.runtime.cuda` and `tilewright.runtime.hip_driver` are such drivers: modules with these names.
Memory, workspaces, tables and clocks are given one of them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from tilewright.namespaces import import_whole
from tilewright.targets.target import TARGETS

UNTIMED = 2
"""The flag of an event that keeps no time, of every driver."""

LEGACY_STREAM: tuple[int, ...] = (0, 1)
"""The handles of the default stream that all threads share: it is never destroyed, nor captured."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """What a vendor calls the functions that every driver has, with the same arguments.

    Args:
        allocate: bytes to the address of memory of the current device.
        free: gives that back.
        allocate_host: bytes to the address of memory of the host that copies in the background read.
        free_host: gives that back.
        fill: sets bytes: address, byte, how many, stream.
        copy_in: to the device: its address, the host's, bytes.
        copy_out: to the host: its address, the device's, bytes.
        copy_in_order: `copy_in` in order with a stream, the fourth argument.
        create_event: flags to an event.
        record: an event behind all that a stream, the second argument, was given.
        wait_event: returns when an event has come to pass.
        elapsed: milliseconds from one event to another.
        destroy_event: gives an event back.
        wait_stream: returns when a stream has ended all that it was given.
    """

    allocate: str
    free: str
    allocate_host: str
    free_host: str
    fill: str
    copy_in: str
    copy_out: str
    copy_in_order: str
    create_event: str
    record: str
    wait_event: str
    elapsed: str
    destroy_event: str
    wait_stream: str


class Started:
    """A driver's library, once it was started in this process."""

    bindings: Any = None
    forked = inherited = False

    def renew(self) -> None:
        """In a forked child, which cannot use a driver that its parent started."""
        self.forked, self.inherited = True, self.inherited or self.bindings is not None
        self.bindings = None


class DeviceInfo(Protocol):
    """What is known of a GPU."""

    @property
    def name(self) -> str:
        """As the driver reports it."""

    @property
    def arch(self) -> str:
        """The architecture to compile for."""

    @property
    def multiprocessors(self) -> int:
        """How many there are."""

    @property
    def l2_bytes(self) -> int:
        """Size of its second-level cache."""


class LoadedFunction(Protocol):
    """A kernel loaded on one device."""

    index: int
    shared_bytes: int
    handle: Any


class Driver(Protocol):
    """A module that speaks to a driver."""

    NAMES: Names

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the driver and give back its value; its errors are `LaunchError`."""

    def version(self) -> str:
        """The driver's version."""

    def device_count(self) -> int:
        """Number of GPUs; 0 without a driver."""

    def device(self, index: int = 0) -> DeviceInfo:
        """What is known of a GPU."""

    def Current(self, index: int) -> AbstractContextManager[None]:  # noqa: N802
        """While it is entered, a device is current in this thread; then what was before."""

    def AnyCapture(self) -> AbstractContextManager[None]:  # noqa: N802
        """While it is entered, this thread may allocate memory though a graph is being captured."""

    def is_capturing(self, stream: int) -> bool:
        """Whether launches on a stream go into a graph."""

    def stream_number(self, stream: int) -> int:
        """A number that no other stream has."""

    def has_passed(self, event: Any) -> bool:
        """Whether an event has come to pass."""

    def give_back(self, owner: object, index: int, name: str, handle: Any) -> None:
        """Have the driver take something of a device back when its owner is collected."""

    def synchronize(self, index: int = 0) -> None:
        """Wait for everything on a device."""

    def Function(  # noqa: N802
        self, image: bytes, entry: str, index: int, shared_bytes: int
    ) -> LoadedFunction:
        """A kernel loaded on one device."""


@cache
def driver_of(memory: str) -> Driver:
    """The driver of the GPUs that arrays lie in.

    Args:
        memory: what frameworks call such a device.
    """
    place = next(found.driver for found in TARGETS.values() if found.driver and found.memory == memory)
    made: Any = import_whole(place)
    return made  # type: ignore[no-any-return]
