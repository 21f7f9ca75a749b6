"""One driver for the GPUs of every vendor: devices, machine code, memory and streams.

A vendor is a `Symbols`: the names of its functions and constants, and the few steps that differ.
`tilewright.runtime.cuda` and `tilewright.runtime.hip_driver` each hold a `Symbols` and its `Driver`.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, Protocol

from tilewright.errors import LaunchError, ToolchainError
from tilewright.runtime.environment import renew_after_fork
from tilewright.targets.target import Target

# ---------------------------------------------------------------- unused machine code
#
# A driver may unload code only after the device has finished, because launches may still run it. We cannot
# wait for the device while a thread captures a graph: that would make the graph invalid.


MOST_UNWANTED = 256
"""Unused modules of a device; if there are more, the next load waits for the device and unloads them."""

_Entry = tuple[int, Any, object]
"""A device, the handle of a module, and an object that identifies it if the handle is used again."""


class UnwantedCode:
    """The unused machine code of one driver."""

    def __init__(self) -> None:
        self._entries = list[_Entry]()

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, index: int, handle: Any) -> None:
        """Add unused code of a device."""
        self._entries.append((index, handle, object()))  # the driver may use a handle again

    def _of(self, index: int) -> list[_Entry]:
        return [entry for entry in list(self._entries) if entry[0] == index]

    def make_room(self, index: int, synchronize: Callable[[int], object]) -> None:
        """Wait for a device with much unused code, which unloads it."""
        if len(self._of(index)) > MOST_UNWANTED:
            with contextlib.suppress(LaunchError):  # a kernel failed
                synchronize(index)

    def unload_after(self, index: int, wait: Callable[[], object], unload: Callable[[Any], object]) -> None:
        """Wait for all launches on a device, then unload the code that was unused before.

        Args:
            index: the device, which is current.
            wait: returns when its launches have ended.
            unload: unloads a handle.
        """
        # Code that becomes unused during the wait may still be running.
        unwanted = self._of(index)
        wait()
        for entry in unwanted:
            with contextlib.suppress(ValueError):  # another thread was faster
                self._entries.remove(entry)
                unload(entry[1])


# ---------------------------------------------------------------- the driver


UNTIMED = 2
"""The flag of an event without timing, in every driver."""

LEGACY_STREAM: tuple[int, ...] = (0, 1)
"""Handles of the default stream that all threads share. It is never destroyed or captured."""

STATIC_SHARED_BYTES = 48 * 1024
"""Shared memory of a block that needs no attribute in any driver."""


class DeviceInfo(Protocol):
    """The description of a GPU."""

    @property
    def name(self) -> str:
        """The name that the driver gives the GPU."""

    @property
    def arch(self) -> str:
        """The architecture to compile for."""

    @property
    def multiprocessors(self) -> int:
        """Number of multiprocessors."""

    @property
    def l2_bytes(self) -> int:
        """Size of the L2 cache."""


@dataclass(frozen=True, kw_only=True)
class Symbols:
    """A vendor's driver as data.

    A function is named by an attribute of the bindings, and returns a status and its results.  Functions with
    one meaning take the same arguments in every driver.  A constant is a number, or a dotted name in the
    bindings.

    Args:
        vendor: the first word of an error.
        library: the driver's name in errors.
        target: the target whose kernels it launches.
        load: starts the driver and returns its bindings; takes whether this process is a fork.  Raises
            `ToolchainError`.
        has: returns whether the bindings have a function; versions differ.
        explain: returns name and meaning of a status, from the bindings and the status.
        spell_version: converts the driver's version number to text.
        describe: returns a device by its index.
        owner: returns a status, and the index of the GPU that owns an address, from the bindings and the
            address.
        absent: the error of a launch without a device, with ``{}`` for the reason; empty: the error about the
            arrays' memory is enough.
        stream: converts a handle to a stream as launches take it, from the bindings and the handle.
        threads_along_x: most threads of a grid along x; 0: only blocks are limited.
        reads_images: whether a loaded module reads its machine code from the caller's memory.
        success: the status of a successful call.
        relaxed: the capture mode in which memory may be allocated.
        not_capturing: the status of a stream that is not captured.
        most_shared: the function attribute that allows more shared memory; needed for dynamic shared memory.
        version: returns the version as a number.
        count: returns the number of devices.
        retain: returns the context of a device from its handle; empty if devices become current by index.
        handle: returns the handle of a device from its index; needed with `retain`.
        get_current: returns the current context or device of this thread.
        set_current: makes a context or device current in this thread.
        wait_device: waits for all work on the current device.
        load_module: loads machine code and returns a module.
        find_function: returns a kernel from a module and a name.
        unload_module: unloads a module.
        set_attribute: sets an attribute of a kernel; needed with `most_shared`.
        launch: takes kernel, extents of grid and block, shared bytes, stream, argument pointers and null.
        resident: returns the resident blocks of a multiprocessor from kernel, threads of a block, shared
            bytes.
        allocate: allocates bytes on the current device and returns the address.
        free: frees memory of a device.
        allocate_host: allocates pinned host memory and returns the address.
        free_host: frees pinned host memory.
        fill: sets bytes; takes address, byte, count, stream.
        copy_in: copies to the device; takes its address, the host's address, bytes.
        copy_out: copies to the host; takes its address, the device's address, bytes.
        copy_in_order: `copy_in` in order with a stream, the fourth argument.
        exchange_capture: sets the capture mode of this thread and returns the previous mode.
        is_capturing: returns the capture status of a stream.
        stream_number: returns the unique number of a stream.
        wait_stream: waits for all work on a stream.
        create_event: creates an event from flags.
        record: records an event on a stream, the second argument.
        query_event: succeeds if an event has completed.
        wait_event: waits for an event.
        elapsed: returns the milliseconds between two events.
        destroy_event: destroys an event.
        more: further arguments of functions in this driver, by function name.
    """

    vendor: str
    library: str
    target: Target
    load: Callable[[bool], Any]
    has: Callable[[Any, str], bool] = hasattr
    explain: Callable[[Any, Any], str]
    spell_version: Callable[[int], str]
    describe: Callable[[Driver, int], DeviceInfo]
    owner: Callable[[Any, int], tuple[Any, int]]
    absent: str = ""
    stream: Callable[[Any, int], Any] = lambda bindings, handle: handle
    threads_along_x: int = 0
    reads_images: bool = False

    success: int | str
    relaxed: int | str
    not_capturing: int | str
    most_shared: int | str = ""

    version: str
    count: str
    retain: str = ""
    handle: str = ""
    get_current: str
    set_current: str
    wait_device: str
    load_module: str
    find_function: str
    unload_module: str
    set_attribute: str = ""
    launch: str
    resident: str
    allocate: str
    free: str
    allocate_host: str
    free_host: str
    fill: str
    copy_in: str
    copy_out: str
    copy_in_order: str
    exchange_capture: str
    is_capturing: str
    stream_number: str
    wait_stream: str
    create_event: str
    record: str
    query_event: str
    wait_event: str
    elapsed: str
    destroy_event: str
    more: dict[str, tuple[Any, ...]]


class Started:
    """A driver's bindings in this process; None before the driver is started."""

    bindings: Any = None
    forked = inherited = False

    def renew(self) -> None:
        """Forget the bindings in a forked child, which cannot use a driver that its parent started."""
        self.forked, self.inherited = True, self.inherited or self.bindings is not None
        self.bindings = None


class Driver:
    """The driver of one vendor's GPUs.

    Args:
        symbols: the vendor's functions and constants.
    """

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols
        self.unwanted = UnwantedCode()
        self.device = lru_cache(maxsize=64)(partial(symbols.describe, self))
        # The primary context of a device, which frameworks use too; without contexts, its index.
        self.context = lru_cache(maxsize=64)(
            lambda index: (
                self.call(symbols.retain, self.call(symbols.handle, index)) if symbols.retain else index
            )
        )
        self._process = renew_after_fork(Started())
        self._constants: dict[str, Any] = {}

    def bindings(self) -> Any:
        """Return the driver's functions; start the driver at the first call.

        Raises:
            ToolchainError: the bindings or the driver are missing.
            LaunchError: the driver was started by a process that forked this one.
        """
        process = self._process
        if process.bindings is None:
            if process.inherited:
                raise LaunchError(
                    f"{self.symbols.library} was started by the process that forked this one, and a forked "
                    "child cannot use it; nearest: start the child with "
                    "multiprocessing.get_context('spawn')"
                )
            process.bindings = self.symbols.load(process.forked)
        return process.bindings

    def constant(self, name: int | str) -> Any:
        """Return a constant of the driver, given as a number or a dotted name."""
        if isinstance(name, int):
            return name
        if name not in self._constants:
            found = self.bindings()
            for word in name.split("."):
                found = getattr(found, word)
            self._constants[name] = found
        return self._constants[name]

    @cached_property
    def success(self) -> Any:
        """The status of a successful call."""
        return self.constant(self.symbols.success)

    @cached_property
    def not_capturing(self) -> Any:
        """The state of a stream that is not captured."""
        return self.constant(self.symbols.not_capturing)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the driver and return its results.

        Raises:
            LaunchError: the driver reports an error; names the function and the error.
            ToolchainError: the driver is missing, or has no such function.
        """
        more = self.symbols.more
        if name in more:
            arguments += more[name]
        status, *values = getattr(self.bindings(), name)(*arguments)
        if status is not self.success and status != self.success:
            raise self.failure(name, status)
        return values[0] if len(values) == 1 else tuple(values)

    def failure(self, what: str, status: Any) -> LaunchError:
        """Return the error for a status of the driver, with the driver's explanation."""
        said = self.symbols.explain(self.bindings(), status)
        return LaunchError(f"{self.symbols.vendor}: {what} failed with {said}")

    def version(self) -> str:
        """Return the version that the driver implements, e.g. ``"13.0"``.

        Raises:
            ToolchainError: no driver.
        """
        return self.symbols.spell_version(int(self.call(self.symbols.version)))

    def device_count(self) -> int:
        """Return the number of GPUs; 0 without a driver."""
        try:
            return int(self.call(self.symbols.count))
        except (ToolchainError, LaunchError):
            return 0

    def missing(self) -> str:
        """Return why a launch finds no device; empty if it finds one, or if `Symbols.absent` is empty."""
        if not self.symbols.absent:
            return ""
        try:
            if self.call(self.symbols.count):
                return ""
            reason = f"{self.symbols.library} finds no device"
        except (LaunchError, ToolchainError) as problem:
            reason = str(problem)
        return self.symbols.absent.format(reason)

    def device_of(self, pointer: int) -> int | None:
        """Return the index of the GPU that owns an address; None if the driver does not know."""
        try:
            status, index = self.symbols.owner(self.bindings(), pointer)
        except (ToolchainError, LaunchError):
            return None
        return int(index) if int(status) == int(self.success) else None

    # ------------------------------------------------------------ the current device

    def activate(self, index: int) -> Any | None:
        """Make a device current in this thread.

        Returns:
            The context to pass to `restore` afterwards; None if there is nothing to restore.  If no context
            was current, that of device 0 stays, because the CUDA runtime would choose device 0 too.
        """
        wanted = self.context(index)
        status, now = getattr(self.bindings(), self.symbols.get_current)()
        if status == self.success and int(now) == int(wanted):
            return None
        self.call(self.symbols.set_current, wanted)
        return now if int(now) or index else None

    def restore(self, before: Any | None) -> None:
        """Make the context from `activate` current again."""
        if before is not None:
            self.call(self.symbols.set_current, before)

    def current(self, index: int) -> Current:
        """Return a context manager that makes a device current in this thread."""
        return Current(self, index)

    def any_capture(self) -> AnyCapture:
        """Return a context manager that lets this thread allocate and free memory during a graph capture."""
        return AnyCapture(self)

    def synchronize(self, index: int = 0) -> None:
        """Wait for all work on a device, and unload unused code.

        Raises:
            LaunchError: a kernel failed.
        """
        with self.current(index):
            wait = partial(self.call, self.symbols.wait_device)
            unload = getattr(self.bindings(), self.symbols.unload_module)
            # The status of an unload is ignored: nobody could act on it.
            self.unwanted.unload_after(index, wait, lambda module: unload(module.handle))

    # ------------------------------------------------------------ streams and events

    def is_capturing(self, stream: int) -> bool:
        """Return whether a stream is captured into a graph; the default stream never is."""
        if stream in LEGACY_STREAM:
            return False
        status, state = getattr(self.bindings(), self.symbols.is_capturing)(stream)[:2]
        is_known = status == self.success
        return bool(is_known and state != self.not_capturing)

    def stream_number(self, stream: int) -> int:
        """Return the driver's unique number of a stream, which a later stream with its handle does not get.

        ROCm before 7.1 does not number streams.  The handle is returned there, and a stream that is created
        after this one was destroyed may get it.
        """
        name = self.symbols.stream_number
        return int(self.call(name, stream)) if self.symbols.has(self.bindings(), name) else stream

    def has_passed(self, event: Any) -> bool:
        """Return whether an event has completed."""
        status, *_ = getattr(self.bindings(), self.symbols.query_event)(event)
        return bool(status == self.success)

    # ------------------------------------------------------------ machine code and memory

    def load(self, image: bytes, entry: str, index: int, shared_bytes: int) -> LoadedFunction:
        """Load a kernel on a device; see `LoadedFunction`."""
        return LoadedFunction(self, image, entry, index, shared_bytes)

    def resident_blocks(self, function: LoadedFunction, threads: int) -> int:
        """Return how many blocks of a kernel a device holds at once."""
        with self.current(function.index):
            each = self.call(self.symbols.resident, function.handle, threads, function.shared_bytes)
        return int(each) * self.device(function.index).multiprocessors

    def give_back(self, owner: object, index: int, name: str, handle: Any) -> None:
        """Free a resource of a device when its owner is collected.

        The interpreter's end does not free it, because the driver may be gone before the owner.
        """

        def free() -> None:
            if self._process.bindings is None:  # a forked child owns nothing
                return
            if isinstance(handle, _Module):
                self.unwanted.append(index, handle)
                return
            with self.current(index), self.any_capture():
                getattr(self.bindings(), name)(handle)  # the status is ignored: nobody could act on it

        weakref.finalize(owner, free).atexit = False


class Current:
    """A context manager that makes a device current in this thread.

    Args:
        driver: the device's driver.
        index: the device.
    """

    __slots__ = ("_before", "_driver", "_index")

    def __init__(self, driver: Driver, index: int) -> None:
        self._driver, self._index = driver, index
        self._before: Any | None = None

    def __enter__(self) -> None:
        self._before = self._driver.activate(self._index)

    def __exit__(self, *_: object) -> None:
        self._driver.restore(self._before)


class AnyCapture:
    """A context manager that lets this thread allocate and free memory during a graph capture.

    Args:
        driver: the driver.
    """

    __slots__ = ("_before", "_driver")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __enter__(self) -> None:
        symbols = self._driver.symbols
        self._before = self._driver.call(symbols.exchange_capture, self._driver.constant(symbols.relaxed))

    def __exit__(self, *_: object) -> None:
        self._driver.call(self._driver.symbols.exchange_capture, self._before)


@dataclass(frozen=True, eq=False)
class _Module:
    """A loaded module; keeps its machine code alive if the driver reads it from there."""

    handle: Any
    image: bytes


class LoadedFunction:
    """A kernel loaded on one device.

    Args:
        driver: the device's driver.
        image: the machine code.
        entry: the kernel's name.
        index: the device.
        shared_bytes: dynamic shared memory per block.
    """

    def __init__(self, driver: Driver, image: bytes, entry: str, index: int, shared_bytes: int) -> None:
        self.index = index
        self.shared_bytes = shared_bytes
        symbols = driver.symbols
        with driver.current(index):
            driver.unwanted.make_room(index, driver.synchronize)
            module = _Module(driver.call(symbols.load_module, image), image if symbols.reads_images else b"")
            # Every prepared launch of the code holds this object.
            driver.give_back(self, index, symbols.unload_module, module)
            self.handle = driver.call(symbols.find_function, module.handle, entry.encode())
            if shared_bytes > STATIC_SHARED_BYTES:
                most = driver.constant(symbols.most_shared)
                driver.call(symbols.set_attribute, self.handle, most, shared_bytes)
