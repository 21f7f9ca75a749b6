"""One driver for the GPUs of every vendor: devices, machine code, memory, streams, over a record of symbols.

A vendor is a `Symbols`: the names of its functions and constants, and the few steps that only it has.
`tilewright.runtime.cuda` and `tilewright.runtime.hip_driver` each hold one, and the `Driver` made of it.
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

# ---------------------------------------------------------------- machine code that nobody holds
#
# A driver may unload it only after the device has finished: launches may still run it. We cannot wait for the
# device while a thread captures a graph, because that would spoil the graph.


MOST_UNWANTED = 256
"""Pieces of such code; when a device has more, the next that it loads waits for it."""

_Entry = tuple[int, Any, object]
"""A device, the handle of machine code, and what tells it from other code that has that handle later."""


class UnwantedCode:
    """The machine code that nobody holds any more, of one driver."""

    def __init__(self, most: int = MOST_UNWANTED) -> None:
        self.most = most
        self._entries = list[_Entry]()

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, index: int, handle: Any) -> None:
        """Nobody holds the code of a device any more."""
        self._entries.append((index, handle, object()))  # the driver may give a handle to other code later

    def _of(self, index: int) -> list[_Entry]:
        return [entry for entry in list(self._entries) if entry[0] == index]

    def make_room(self, index: int, synchronize: Callable[[int], object]) -> None:
        """Wait for a device of which there is much; that unloads it."""
        if len(self._of(index)) > self.most:
            with contextlib.suppress(LaunchError):  # of a kernel that failed
                synchronize(index)

    def unload_after(self, index: int, wait: Callable[[], object], unload: Callable[[Any], object]) -> None:
        """Wait for all launches on a device, and unload what nobody held before.

        Args:
            index: the device, which is current.
            wait: returns when its launches have ended.
            unload: how the driver lets go of a handle.
        """
        # What is let go while it waits was perhaps launched in the meantime.
        unwanted = self._of(index)
        wait()
        for entry in unwanted:
            with contextlib.suppress(ValueError):  # another thread was faster
                self._entries.remove(entry)
                unload(entry[1])


# ---------------------------------------------------------------- the driver


UNTIMED = 2
"""The flag of an event that keeps no time, in every driver."""

LEGACY_STREAM: tuple[int, ...] = (0, 1)
"""The handles of the default stream that all threads share: it is never destroyed, nor captured."""

STATIC_SHARED_BYTES = 48 * 1024
"""Shared memory of a block that every driver gives without being asked for more."""


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


@dataclass(frozen=True, kw_only=True)
class Symbols:
    """A vendor's driver as data.

    A function is given by its name among the bindings; it returns a status and its results.  Functions of one
    meaning take the same arguments in every driver.  A constant is a number, or a dotted name there.

    Args:
        vendor: the first word of an error.
        library: what an error calls the driver.
        target: the target whose kernels it launches.
        load: starts the driver and returns its bindings, an object that has the functions as attributes;
            given whether this process is a fork of another.  Raises `ToolchainError`.
        has: whether bindings have a function; versions differ.
        explain: the name and the meaning of a status, from the bindings and the status.
        spell_version: spells the number that the driver gives as its version.
        describe: a device by its number.
        absent: the error of a launch where there is no device, with ``{}`` for the reason; empty: an error
            about the arrays' memory is enough.
        stream: a stream as launches take it, from the bindings and a handle.
        threads_along_x: most threads of a grid along x; 0: its blocks alone are limited.
        reads_images: whether a loaded module reads its machine code where the caller put it.
        success: the status of a call that succeeded.
        relaxed: the capture mode in which memory may be allocated.
        not_capturing: the status of a stream that is not captured.
        ordinal: the attribute of a pointer that is the number of its device.
        most_shared: the attribute of a function that allows more shared memory; needed where launches say how
            much they use.
        version: the version as a number.
        count: how many devices there are.
        retain: the context of a device, from its handle; empty: a device is made current by its number.
        handle: the handle of a device, from its number; needed with `retain`.
        get_current: what is current in this thread.
        set_current: makes that current.
        wait_device: returns when the current device has ended all that it was given.
        load_module: machine code to a module.
        find_function: a module and a name to a kernel.
        unload_module: gives a module back.
        set_attribute: sets an attribute of a kernel; needed with `most_shared`.
        launch: kernel, extents of the grid and of a block, shared bytes, stream, arguments, nothing.
        resident: kernel, threads of a block, shared bytes to the blocks that a multiprocessor holds at once.
        allocate: bytes to the address of memory of the current device.
        free: gives that back.
        allocate_host: bytes to the address of memory of the host that copies in the background read.
        free_host: gives that back.
        fill: sets bytes: address, byte, how many, stream.
        copy_in: to the device: its address, the host's, bytes.
        copy_out: to the host: its address, the device's, bytes.
        copy_in_order: `copy_in` in order with a stream, the fourth argument.
        pointer_attribute: an attribute of the memory at an address.
        exchange_capture: sets the capture mode of this thread and returns the one before.
        is_capturing: a stream to whether it is captured.
        stream_number: a stream to a number that no other has.
        wait_stream: returns when a stream has ended all that it was given.
        create_event: flags to an event.
        record: an event after all that a stream, the second argument, was given.
        query_event: succeeds when an event has come to pass.
        wait_event: returns when an event has come to pass.
        elapsed: milliseconds from one event to another.
        destroy_event: gives an event back.
        more: arguments that a function takes after those of every driver, by its name.
    """

    vendor: str
    library: str
    target: Target
    load: Callable[[bool], Any]
    has: Callable[[Any, str], bool] = hasattr
    explain: Callable[[Any, Any], str]
    spell_version: Callable[[int], str]
    describe: Callable[[Driver, int], DeviceInfo]
    absent: str = ""
    stream: Callable[[Any, int], Any] = lambda bindings, handle: handle
    threads_along_x: int = 0
    reads_images: bool = False

    success: int | str
    relaxed: int | str
    not_capturing: int | str
    ordinal: int | str
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
    pointer_attribute: str
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
    """A driver's bindings, once it was started in this process."""

    bindings: Any = None
    forked = inherited = False

    def renew(self) -> None:
        """In a forked child, which cannot use a driver that its parent started."""
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
        self.context = lru_cache(maxsize=64)(self._context)
        self._process = renew_after_fork(Started())
        self._constants: dict[str, Any] = {}

    def bindings(self) -> Any:
        """The driver's functions, started.

        Raises:
            ToolchainError: the bindings or the driver are missing.
            LaunchError: the driver was started by a process that forked this one.
        """
        if self._process.bindings is None:
            self._process.bindings = self._start()
        return self._process.bindings

    def _start(self) -> Any:
        if self._process.inherited:
            raise LaunchError(
                f"{self.symbols.library} was started by the process that forked this one, and a forked child "
                "cannot use it; nearest: start the child with multiprocessing.get_context('spawn')"
            )
        return self.symbols.load(self._process.forked)

    def constant(self, name: int | str) -> Any:
        """A constant of the driver: a number as it is, or what a dotted name means."""
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
        """The status of a function that succeeded."""
        return self.constant(self.symbols.success)

    @cached_property
    def not_capturing(self) -> Any:
        """The state of a stream whose launches go into no graph."""
        return self.constant(self.symbols.not_capturing)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the driver and give back its value.

        Raises:
            LaunchError: the driver reports an error; names the function and the error.
            ToolchainError: there is no driver, or it has no such function.
        """
        arguments += self.symbols.more.get(name, ())
        status, *values = getattr(self.bindings(), name)(*arguments)
        if status != self.success:
            raise self.failure(name, status)
        return values[0] if len(values) == 1 else tuple(values)

    def failure(self, what: str, status: Any) -> LaunchError:
        """The error for a status of the driver: its name, and what the driver says about it."""
        said = self.symbols.explain(self.bindings(), status)
        return LaunchError(f"{self.symbols.vendor}: {what} failed with {said}")

    def version(self) -> str:
        """The version that the driver implements, e.g. ``"13.0"``.

        Raises:
            ToolchainError: no driver.
        """
        return self.symbols.spell_version(int(self.call(self.symbols.version)))

    def device_count(self) -> int:
        """Number of GPUs that the driver reaches; 0 without a driver."""
        try:
            return int(self.call(self.symbols.count))
        except (ToolchainError, LaunchError):
            return 0

    def missing(self) -> str:
        """Why a launch finds no device; empty if there is one, or if `Symbols.absent` is empty."""
        if not self.symbols.absent:
            return ""
        try:
            if self.call(self.symbols.count):
                return ""
            reason = f"{self.symbols.library} knows no device"
        except (LaunchError, ToolchainError) as problem:
            reason = str(problem)
        return self.symbols.absent.format(reason)

    def device_of(self, pointer: int) -> int | None:
        """The number of the GPU in whose memory an address lies; None if the driver does not know."""
        try:
            ask = getattr(self.bindings(), self.symbols.pointer_attribute)
            status, index = ask(self.constant(self.symbols.ordinal), pointer)
        except (ToolchainError, LaunchError):
            return None
        return int(index) if status == self.success else None

    # ------------------------------------------------------------ the current device

    def _context(self, index: int) -> Any:
        """The context to make current for a device: its primary one, which frameworks use, or its number."""
        if not self.symbols.retain:
            return index
        return self.call(self.symbols.retain, self.call(self.symbols.handle, index))

    def activate(self, index: int) -> Any | None:
        """Make a device current in this thread, if it is not.

        Returns:
            The context to give back to `restore` afterwards; None if there is nothing to restore.  Where no
            context was current, that of device 0 stays: without one, the CUDA runtime takes device 0 too.
        """
        wanted = self.context(index)
        status, now = getattr(self.bindings(), self.symbols.get_current)()
        if status == self.success and int(now) == int(wanted):
            return None
        self.call(self.symbols.set_current, wanted)
        return now if int(now) or index else None

    def restore(self, before: Any | None) -> None:
        """Make current again what `activate` found."""
        if before is not None:
            self.call(self.symbols.set_current, before)

    def current(self, index: int) -> Current:
        """While it is entered, a device is current in this thread; then what was before."""
        return Current(self, index)

    def any_capture(self) -> AnyCapture:
        """While it is entered, this thread may allocate and free memory though a graph is being captured."""
        return AnyCapture(self)

    def synchronize(self, index: int = 0) -> None:
        """Wait for everything on a device, and unload what nobody holds.

        Raises:
            LaunchError: a kernel failed.
        """
        with self.current(index):
            wait = partial(self.call, self.symbols.wait_device)
            self.unwanted.unload_after(index, wait, self._unload)

    # ------------------------------------------------------------ streams and events

    def is_capturing(self, stream: int) -> bool:
        """Whether launches on a stream go into a graph, which launches them later; never on stream 0."""
        if stream in LEGACY_STREAM:
            return False
        symbols = self.symbols
        status, state = getattr(self.bindings(), symbols.is_capturing)(stream)[:2]
        is_known = status == self.success
        return bool(is_known and state != self.not_capturing)

    def stream_number(self, stream: int) -> int:
        """A number that no other stream has, not even one that has its handle later.

        ROCm's runtimes before 7.1 number no streams.  There the handle stands for the number, which another
        stream may have after this one was destroyed.
        """
        name = self.symbols.stream_number
        return int(self.call(name, stream)) if self.symbols.has(self.bindings(), name) else stream

    def has_passed(self, event: Any) -> bool:
        """Whether an event has come to pass."""
        status, *_ = getattr(self.bindings(), self.symbols.query_event)(event)
        return bool(status == self.success)

    # ------------------------------------------------------------ machine code and memory

    def load(self, image: bytes, entry: str, index: int, shared_bytes: int) -> LoadedFunction:
        """A kernel loaded on a device; see `LoadedFunction`."""
        return LoadedFunction(self, image, entry, index, shared_bytes)

    def resident_blocks(self, function: LoadedFunction, threads: int) -> int:
        """How many blocks of a kernel a device holds at once."""
        with self.current(function.index):
            each = self.call(self.symbols.resident, function.handle, threads, function.shared_bytes)
        return int(each) * self.device(function.index).multiprocessors

    def give_back(self, owner: object, index: int, name: str, handle: Any) -> None:
        """Have the driver take something of a device back when its owner is collected.

        Not at the interpreter's end, when the driver may be gone before the owner is.
        """
        weakref.finalize(owner, self._take, index, name, handle).atexit = False

    def _take(self, index: int, name: str, handle: Any) -> None:
        if self._process.bindings is None:  # a forked child, to which nothing belongs
            return
        if isinstance(handle, _Module):
            self.unwanted.append(index, handle)
            return
        with self.current(index), self.any_capture():
            self._quietly(name, handle)

    def _unload(self, module: _Module) -> None:
        self._quietly(self.symbols.unload_module, module.handle)

    def _quietly(self, name: str, handle: Any) -> None:
        """Call a function of the driver, and ignore its status: an error would help nobody."""
        getattr(self.bindings(), name)(handle)


class Current:
    """While it is entered, a device is current in this thread; then what was before.

    Args:
        driver: of the device.
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
    """While it is entered, this thread may allocate and free memory though a graph is being captured.

    Args:
        driver: of whose streams.
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
    """A loaded module, with its machine code if the driver reads that while the module is loaded."""

    handle: Any
    image: bytes


class LoadedFunction:
    """A kernel loaded on one device.

    Args:
        driver: of the device.
        image: its machine code.
        entry: its name.
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
            # Every launch prepared with the code holds this object.
            driver.give_back(self, index, symbols.unload_module, module)
            self.handle = driver.call(symbols.find_function, module.handle, entry.encode())
            if shared_bytes > STATIC_SHARED_BYTES:
                most = driver.constant(symbols.most_shared)
                driver.call(symbols.set_attribute, self.handle, most, shared_bytes)
