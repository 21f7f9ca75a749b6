"""Where tables of measured schedules lie, and the one that speaks of this machine.

A user's tables lie in the cache's directory, those that come with the package beside its source.  A table is
read once in a process, when the first schedule is chosen; kernels that are known need none.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from tilewright.arch import Arch
from tilewright.runtime.backends import backend_named
from tilewright.runtime.cache import Cache
from tilewright.runtime.environment import settings
from tilewright.runtime.trust import (
    UntrustedError,
    check_directory,
    make_directories,
    open_own,
    read_own,
    write_own,
)
from tilewright.schedule.tables import ScheduleTable, TableError, Version
from tilewright.targets.target import owner

SHIPPED = Path(__file__).parents[1] / "tables"
"""The tables that come with the package; there need be none."""

MOST_BYTES = 1 << 26

_read: dict[tuple[str, int, Path | None], ScheduleTable | None] = {}


def table_for(arch: Arch, processors: int) -> ScheduleTable | None:
    """The measured schedules of this machine; None if there are none, or it is not of the architecture.

    Args:
        arch: for which a schedule is chosen.
        processors: of this machine that are used; 0: it is not of the architecture.

    Warns:
        RuntimeWarning: once for each table that lies there and cannot be used, with the reason.
    """
    key = (arch.name, processors, settings().cache_dir)
    if key not in _read:
        version = version_of(arch, processors)
        _read[key] = None if version is None else _joined(version)
    return _read[key]


def version_of(arch: Arch, processors: int) -> Version | None:
    """The version of a table of this machine; None if no tables are kept of it."""
    target = owner(arch.name)
    name = backend_named(target.name).device_name() if processors and target.machine_code else ""
    return Version.now(arch.name, name, processors) if name else None


def forget() -> None:
    """Read the tables again when the next schedule is chosen."""
    _read.clear()


def user_table(version: Version) -> Path:
    """Where the user's table of a machine lies."""
    return _directory() / file_name(version)


def file_name(version: Version) -> str:
    """The name of a table's file.

    Example:
        >>> file_name(Version("", "", "sm_90a", "NVIDIA H200", 132))
        'sm_90a-nvidia-h200-132.json'
    """
    words = re.findall(r"[a-z0-9]+", f"{version.device} {version.processors}".lower())
    return f"{version.arch}-{'-'.join(words)}.json"


def load(path: Path, version: Version) -> ScheduleTable:
    """The table in a file; one that comes with the package is trusted as its source is.

    Raises:
        OtherVersionError: it is of another version, or of another machine.
        TableError: it is damaged.
        UntrustedError: another user may have written it.
        OSError: it cannot be read.
    """
    if path.parent == SHIPPED:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    else:
        check_directory(path.parent)
        data, _ = read_own(path, MOST_BYTES + 1)
    try:
        if len(data) > MOST_BYTES:
            raise TableError(f"more than {MOST_BYTES} bytes")
        return ScheduleTable.of(json.loads(data), version)
    except TableError as error:
        raise type(error)(f"table {path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise TableError(f"table {path}: damaged: {error}") from None


def save(table: ScheduleTable, path: Path) -> None:
    """Write a table, as a whole or not at all.

    Raises:
        UntrustedError: another user may write its directory, or may have written what is there.
        OSError: it cannot be written.
    """
    prepare_directory(path)
    with contextlib.suppress(FileNotFoundError):
        os.close(open_own(path, os.O_RDWR))
    write_own(path, f"{json.dumps(table.record(), indent=1)}\n".encode())


def prepare_directory(path: Path) -> None:
    """Make the directory of a table or journal, if it is missing, and check that no other user may write it.

    Raises:
        UntrustedError: another user may.
        OSError: it cannot be made.
    """
    root = Cache.default().root
    if root in path.parents:
        make_directories(root, 0o700)
    make_directories(path.parent)
    check_directory(path.parent)


def _directory() -> Path:
    return Cache.default().root / "tables"


def _joined(version: Version) -> ScheduleTable | None:
    """What comes with the package, and the user's own entries in its place."""
    found: ScheduleTable | None = None
    for path in _places(version):
        try:
            table = load(path, version)
        except FileNotFoundError:
            continue
        except (TableError, OSError) as error:
            anew = (
                "" if isinstance(error, UntrustedError) else "; it is not used; tilewright tune makes it anew"
            )
            message = f"{error}{anew}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
            continue
        found = table if found is None else found.joined(table.entries)
    return found


def _places(version: Version) -> Iterator[Path]:
    yield SHIPPED / file_name(version)
    if Cache.default().distrust() is None:
        yield user_table(version)
