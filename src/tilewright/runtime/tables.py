"""Files with tables of measured schedules, and the table of this machine.

A user's tables lie in the cache's directory, and tables of the package lie in the package. A process reads a
table once, when it chooses the first schedule; known kernels need no table.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import warnings
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
"""The folder of the package's tables, which may not exist."""

MOST_BYTES = 1 << 26

_read: dict[tuple[str, int, Path | None], ScheduleTable | None] = {}


def table_for(arch: Arch, processors: int) -> ScheduleTable | None:
    """Return the measured schedules of this machine; None if there are none, or it has another architecture.

    Args:
        arch: the architecture that a schedule is chosen for.
        processors: processors of this machine that are used; 0: it has another architecture.

    Warns:
        RuntimeWarning: once for each table that cannot be used, with the reason.
    """
    key = (arch.name, processors, settings().cache_dir)
    if key not in _read:
        version = version_of(arch, processors)
        _read[key] = None if version is None else _joined(version)
    return _read[key]


def version_of(arch: Arch, processors: int) -> Version | None:
    """Return the version of this machine's table; None if this machine has no tables."""
    target = owner(arch.name)
    name = backend_named(target.name).device_name() if processors and target.machine_code else ""
    return Version.now(arch.name, name, processors) if name else None


def forget() -> None:
    """Forget the tables; the next choice of a schedule reads them again."""
    _read.clear()


def user_table(version: Version) -> Path:
    """Return the path of the user's table of a machine."""
    return directory() / file_name(version)


def file_name(version: Version) -> str:
    """Return the name of a table's file.

    Example:
        >>> file_name(Version("", "", "sm_90a", "NVIDIA H200", 132))
        'sm_90a-nvidia-h200-132.json'
    """
    words = re.findall(r"[a-z0-9]+", f"{version.device} {version.processors}".lower())
    return f"{version.arch}-{'-'.join(words)}.json"


def load(path: Path, version: Version) -> ScheduleTable:
    """Load a table from a file; the package's own tables are trusted like its source.

    Raises:
        OtherVersionError: the table has another version, or belongs to another machine.
        TableError: the table is damaged.
        UntrustedError: another user may have written it.
        OSError: the file cannot be read.
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
    """Write a table, whole or not at all.

    Raises:
        UntrustedError: another user may write its directory, or may have written the existing file.
        OSError: it cannot be written.
    """
    prepare_directory(path)
    with contextlib.suppress(FileNotFoundError):
        os.close(open_own(path, os.O_RDWR))
    write_own(path, f"{json.dumps(table.record(), indent=1)}\n".encode())


def prepare_directory(path: Path) -> None:
    """Make the directory of a table or journal if it is missing, and check that no other user may write it.

    Raises:
        UntrustedError: another user may write it.
        OSError: it cannot be made.
    """
    root = Cache.default().root
    if root in path.parents:
        make_directories(root, 0o700)
    make_directories(path.parent)
    check_directory(path.parent)


def directory() -> Path:
    """Return the folder of the user's tables, which need not exist."""
    return Cache.default().root / "tables"


def _joined(version: Version) -> ScheduleTable | None:
    """Return the package's table with the user's own entries, which replace others."""
    found: ScheduleTable | None = None
    places = [SHIPPED / file_name(version)]
    if Cache.default().distrust() is None:
        places.append(user_table(version))
    for path in places:
        try:
            table = load(path, version)
        except FileNotFoundError:
            continue
        except (TableError, OSError) as error:
            advice = "; it is not used; tilewright tune makes it anew"
            message = str(error) if isinstance(error, UntrustedError) else f"{error}{advice}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
            continue
        found = table if found is None else found.joined(table.entries)
    return found
