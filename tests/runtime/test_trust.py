"""Code that another user may have written is never loaded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime import entries, trust
from tilewright.runtime.cache import Cache, key
from tilewright.runtime.trust import distrust

from .cached import KEY, built, refuse

OTHER = 54321
"""A user that is neither root nor this one."""

GIVEN: set[tuple[int, int]] = set()


def give(path: Path) -> None:
    """Give a file to another user; without root rights, only record that, for `trust` to believe."""
    if os.geteuid() == 0:
        os.lchown(path, OTHER, OTHER)
    else:
        GIVEN.add((path.lstat().st_dev, path.lstat().st_ino))


def accounts(
    monkeypatch: pytest.MonkeyPatch,
    *,
    group: str = "ann",
    primary: bool = True,
    members: tuple[str, ...] = (),
    others: tuple[str, ...] = (),
    known: bool = True,
) -> None:
    """Make this user ann, and fake the system's record of the group of her files.

    Args:
        monkeypatch: pytest's.
        group: the name of the group.
        primary: whether it is ann's primary group.
        members: its listed members.
        others: other users whose primary group it is.
        known: whether ann is in the list of users.
    """
    own = os.getegid()
    gids = {"ann": own if primary else own + 1} if known else {}
    users = [
        SimpleNamespace(pw_name=name, pw_uid=os.geteuid() + at, pw_gid=gid)
        for at, (name, gid) in enumerate((gids | dict.fromkeys(others, own)).items(), start=not known)
    ]
    by_uid = {user.pw_uid: user for user in users}
    named = SimpleNamespace(gr_name=group, gr_mem=[*members])
    monkeypatch.setattr(trust, "pwd", SimpleNamespace(getpwuid=by_uid.__getitem__, getpwall=lambda: users))
    monkeypatch.setattr(trust, "grp", SimpleNamespace(getgrgid={own: named}.__getitem__))


@pytest.fixture(autouse=True)
def believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`trust` believes the recorded gifts, and another user is in the group of our files."""
    accounts(monkeypatch, members=("ann", "bob"))
    real = trust.owned
    GIVEN.clear()
    monkeypatch.setattr(
        trust, "owned", lambda state: (state.st_dev, state.st_ino) not in GIVEN and real(state)
    )


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the place of private directories in this test."""
    place = tmp_path / "private"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    shutil.rmtree(place)


def given_away(root: Path) -> Path:
    give(root)
    return root


def group_may_write(root: Path) -> Path:
    root.chmod(0o775)
    return root


def all_may_write(root: Path) -> Path:
    root.chmod(0o777)
    return root


def sticky(root: Path) -> Path:
    root.chmod(0o1777)
    return root


def behind_a_link_of_another(root: Path) -> Path:
    link = root.parent / "link"
    link.symlink_to(root)
    give(link)
    return link


def beside_a_place_of_another(root: Path) -> Path:
    """Return a link to ``inner/../root``; ``inner`` is a link, too.

    The neighbours of ``inner`` differ from the neighbours of the directory that it leads to.
    """
    place = root.parent / "place"
    (place / "deep").mkdir(parents=True)
    (place / root.name).mkdir()
    give(place)
    (root.parent / "inner").symlink_to(place / "deep")
    link = root.parent / "link"
    link.symlink_to(f"inner/../{root.name}")
    return link


def behind_a_link_that_another_may_change(root: Path) -> Path:
    place = root.parent / "open"
    place.mkdir()
    (place / "link").symlink_to(root)
    place.chmod(0o777)
    return place / "link"


def in_a_directory_of_another(root: Path) -> Path:
    place = root.parent / "theirs"
    place.mkdir()
    root = root.rename(place / root.name)
    give(place)
    return root


def in_a_directory_that_another_may_write(root: Path) -> Path:
    place = root.parent / "open"
    place.mkdir()
    root = root.rename(place / root.name)
    place.chmod(0o777)
    return root


PLANTS = [
    *(given_away, group_may_write, all_may_write, sticky, behind_a_link_of_another),
    *(
        behind_a_link_that_another_may_change,
        beside_a_place_of_another,
        in_a_directory_of_another,
        in_a_directory_that_another_may_write,
    ),
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_root_that_another_may_have_written_is_refused(
    plant: Callable[[Path], Path], tmp_path: Path, private: Path
) -> None:
    root = tmp_path / "cache"
    built(Cache(root), KEY, b"planted")
    cache = Cache(plant(root))
    before = sorted(path for path in tmp_path.rglob("*") if private not in path.parents)
    with pytest.warns(RuntimeWarning, match=r"(?s)cannot keep .*nobody else") as caught:
        entry = cache.get_or_build(KEY, ".bin", lambda: b"ours", {})
    assert Path(caught[0].filename) == Path(__file__)
    assert (entry.data, entry.hit) == (b"ours", False)
    assert entry.path.is_relative_to(private)
    assert [place.stat().st_mode & 0o777 for place in private.iterdir()] == [0o700]
    assert cache.get_or_build(KEY, ".bin", refuse, {}).data == b"ours"
    after = sorted(path for path in tmp_path.rglob("*") if private not in path.parents)
    assert before == after, "it wrote there"


def file_given_away(path: Path) -> None:
    give(path)


def file_that_all_may_write(path: Path) -> None:
    path.chmod(0o666)


def file_behind_a_link(path: Path) -> None:
    moved = path.rename(path.with_name("elsewhere"))
    path.symlink_to(moved)


def in_an_open_directory(path: Path) -> None:
    path.parent.chmod(0o777)


def in_a_foreign_directory(path: Path) -> None:
    give(path.parents[1])


@pytest.mark.parametrize("ending", ["", ".json"])
@pytest.mark.parametrize(
    "plant",
    [
        *(file_given_away, file_that_all_may_write, file_behind_a_link),
        *(in_an_open_directory, in_a_foreign_directory),
    ],
    ids=lambda plant: plant.__name__,
)
def test_an_entry_that_another_may_have_written_is_missing(
    cache: Cache, plant: Callable[[Path], None], ending: str
) -> None:
    path = built(cache, KEY, b"planted").path
    plant(path.with_name(path.name + ending))
    assert entries.load(path) is None


@pytest.mark.parametrize("plant", ["link", "open"])
def test_clearing_and_counting_leave_directories_of_others_alone(cache: Cache, plant: str) -> None:
    path = built(cache, KEY, b"planted").path
    if plant == "link":
        elsewhere = cache.root.parent / "elsewhere"
        path = path.parent.rename(elsewhere) / path.name
        (cache.root / "artifacts" / KEY[:2]).symlink_to(elsewhere)
    else:
        path.parent.chmod(0o777)
    assert cache.stats().entries == 0
    assert cache.clear() == 0
    assert path.read_bytes() == b"planted"


def test_a_link_in_the_place_of_a_lock_is_not_followed(cache: Cache) -> None:
    path, victim = built(cache, KEY, b"old").path, cache.root.parent / "victim"
    victim.write_bytes(b"a diary")
    path.unlink()
    lock = path.with_name(f"{path.name}.lock")
    lock.unlink(missing_ok=True)
    lock.symlink_to(victim)
    assert built(cache, KEY, b"new").data == b"new"
    assert victim.read_bytes() == b"a diary"
    lock.unlink()
    lock.symlink_to(cache.root.parent / "missing")
    path.unlink()
    assert built(cache, KEY, b"newer").data == b"newer"
    assert not (cache.root.parent / "missing").exists()


def test_what_is_made_is_closed_to_others_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cache = Cache(tmp_path / "some" / "where" / "cache")
        path = built(cache, KEY).path
    finally:
        os.umask(before)
    made = [cache.root.parents[1], *(tmp_path / "some").rglob("*")]
    assert all(not place.stat().st_mode & 0o022 for place in made)
    assert cache.get_or_build(KEY, ".bin", refuse, {}).path == path
    assert cache.root.stat().st_mode & 0o777 == 0o700


def test_a_directory_made_under_a_loose_umask_is_closed_when_it_is_written(cache: Cache) -> None:
    path = built(cache, KEY).path
    path.parent.chmod(0o775)
    give(path)
    assert built(cache, KEY, b"new").data == b"new"
    assert cache.get_or_build(KEY, ".bin", refuse, {}).data == b"new"
    assert path.parent.stat().st_mode & 0o022 == 0


SHARED_GROUPS: dict[str, dict[str, Any]] = {
    "another member": {"members": ("ann", "bob")},
    "another user's primary group": {"others": ("bob",)},
    "another name": {"group": "users"},
    "not the primary group": {"primary": False},
    "no entry for the user": {"known": False},
    "no entry but another's": {"known": False, "others": ("bob",)},
}


def group_writable(tmp_path: Path) -> Path:
    """A file with the mode of umask 002, in a folder with that mode."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    path = folder / "project.json"
    path.write_bytes(b"{}")
    folder.chmod(0o775)
    path.chmod(0o664)
    os.chown(folder, -1, os.getegid())  # some systems give the group of the folder above
    os.chown(path, -1, os.getegid())
    return path


@pytest.mark.parametrize("members", [(), ("ann",)], ids=str)
def test_the_private_group_of_a_user_may_write(
    members: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = group_writable(tmp_path)
    accounts(monkeypatch, members=members)
    trust.check_directory(path.parent)
    assert distrust(path.parent) is None
    assert trust.is_own_directory(path.parent)
    assert trust.read_own(path)[0] == b"{}"
    with trust.lock_own(path.with_suffix(".lock")):
        pass
    path.chmod(0o666)
    path.parent.chmod(0o777)
    with pytest.raises(trust.UntrustedError, match=r"other users may write it \(mode 666\)"):
        trust.read_own(path)
    assert "checkout may be written by other users (mode 777)" in (distrust(path.parent) or "")


@pytest.mark.parametrize("given", SHARED_GROUPS.values(), ids=SHARED_GROUPS)
def test_any_other_group_may_not_write(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = group_writable(tmp_path)
    accounts(monkeypatch, **given)
    assert "checkout may be written by other users (mode 775)" in (distrust(path.parent) or "")
    assert not trust.is_own_directory(path.parent)
    with pytest.raises(trust.UntrustedError, match="nearest: a directory that nobody else may write"):
        trust.check_directory(path.parent)
    with pytest.raises(trust.UntrustedError, match=r"other users may write it \(mode 664\); nearest: chmod"):
        trust.read_own(path)
    path.chmod(0o644)  # the nearest choices of the messages
    path.parent.chmod(0o755)
    trust.check_directory(path.parent)
    assert trust.read_own(path)[0] == b"{}"


def test_ordinary_places_are_trusted(tmp_path: Path) -> None:
    assert distrust(Path(tempfile.gettempdir()) / "cache of mine") is None, "in a sticky directory"
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for place in ("real", "link", "link/inside", "missing/deeper", "real/../real"):
        assert distrust(tmp_path / place) is None
    (tmp_path / "circle").symlink_to("circle")
    assert "is a circular symbolic link" in (distrust(tmp_path / "circle" / "x") or "")


def test_the_bytes_that_were_verified_are_loaded_whatever_happens_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is exchanged between the check and the load."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    real = entries.load

    def exchanged(artifact: Path) -> entries.CacheEntry | None:
        found = real(artifact)
        if found is not None:
            artifact.write_bytes(b"planted")
        return found

    x = np.ones(64, np.float32)
    fill.bind(value=1)(x, target="cpu")
    monkeypatch.setattr(entries, "load", exchanged)
    again = tw.kernel(X="N")(fill.program.function).bind(value=1)
    x.fill(np.nan)
    assert again(x, target="cpu").cached
    assert (x == 1).all()


@tw.kernel(X="N")
def fill(X, *, value):
    part = X.tile((64,), (tw.block_index(tw.ceil_div(X.shape[0], 64)),))
    tw.copy(tw.fragment(part.partition((32,)), fill=value), part)


CLEARER = """
import sys
from pathlib import Path
from tilewright.runtime.cache import Cache
cache = Cache(Path(sys.argv[1]))
print("ready", flush=True)
while not Path(sys.argv[2]).exists():
    cache.clear()
"""


def test_clearing_the_cache_in_one_process_fails_nothing_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    fill(np.ones(64, np.float32), value=0, target="cpu")  # makes the directories
    stop = tmp_path / "stop"
    wrong: list[object] = []
    command = [sys.executable, "-c", CLEARER, str(tmp_path / "cache"), str(stop)]

    def launch(turn: int) -> None:
        try:
            x = np.full(100, np.nan, np.float32)
            fresh = tw.kernel(X="N")(fill.program.function)
            fresh(x, value=turn % 4, target="cpu")
            wrong.extend(x[x != turn % 4])
        except Exception as error:  # noqa: BLE001 whatever it is, it is wrong
            wrong.append(error)

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as clearer:
        assert clearer.stdout is not None
        clearer.stdout.readline()
        for turn in range(3):
            threads = [threading.Thread(target=launch, args=(turn,)) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        stop.touch()
    assert not wrong
    assert clearer.returncode == 0


def test_an_untrusted_cache_is_not_cleared(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    path = built(Cache(root), key(["theirs"])).path
    given_away(root)
    cache = Cache(root)
    assert cache.stats().entries == cache.clear() == 0
    assert path.exists()
