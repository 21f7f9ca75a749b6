"""The meaning of environment variables, and the errors for bad values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.runtime import environment
from tilewright.runtime.environment import SettingError, settings


def test_defaults() -> None:
    found = settings({})
    assert found.cache_dir is None
    assert found.cache_bytes == 1 << 30
    assert found.threads == environment.usable_processors() >= 1


def test_the_process_environment_is_read_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_THREADS", "3")
    assert settings().threads == 3
    monkeypatch.setenv("TILEWRIGHT_THREADS", "5")
    assert settings().threads == 5


@pytest.mark.parametrize("variable", [environment.CACHE_DIR, environment.CACHE_BYTES, environment.THREADS])
def test_an_empty_variable_is_unset(variable: str) -> None:
    assert settings({variable: "  "}) == settings({})


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("4096", 4096), ("64K", 65536), ("2 MiB", 2 << 20), ("3g", 3 << 30), ("1TB", 1 << 40)],
)
def test_sizes(text: str, count: int) -> None:
    assert settings({environment.CACHE_BYTES: text}).cache_bytes == count


def test_a_relative_cache_directory_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert settings({environment.CACHE_DIR: "kernels"}).cache_dir == tmp_path / "kernels"


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert settings({environment.CACHE_DIR: "~/kernels"}).cache_dir == tmp_path / "kernels"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *((environment.CACHE_BYTES, text) for text in ("-1", "1.5G", "much", "1GG", "0x10", "²")),
        *((environment.THREADS, text) for text in ("0", "-2", "all", "1.0", "5000", "²", "1_0")),
    ],
)
def test_a_bad_value_names_variable_value_and_a_legal_example(variable: str, value: str) -> None:
    with pytest.raises(SettingError) as caught:
        settings({variable: value})
    message = str(caught.value)
    assert message.startswith(f"{variable}={value!r}: ")
    example = message.rpartition(f"{variable}=")[2]
    settings({variable: example})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        (environment.CACHE_DIR, "/" + "x" * 300),
        (environment.CACHE_DIR, "~" + "x" * 9000),
        (environment.CACHE_BYTES, "9" * 5000),
        (environment.CACHE_BYTES, "9" * 5000 + "G"),
        (environment.THREADS, "9" * 5000),
        (environment.TRACEBACK, "full" * 5000),
    ],
)
def test_a_long_value_is_refused_in_a_short_message(variable: str, value: str) -> None:
    with pytest.raises(SettingError) as caught:
        settings({variable: value})
    message = str(caught.value)
    assert message.startswith(f"{variable}={value[:3]!r}"[:-1])
    assert len(message) < 400
    assert settings({variable: message.rpartition(f"{variable}=")[2]})


def test_leading_zeros_count_for_nothing() -> None:
    found = settings({environment.CACHE_BYTES: "0" * 5000 + "7K", environment.THREADS: "0" * 5000 + "3"})
    assert (found.cache_bytes, found.threads) == (7168, 3)


def test_a_folder_of_rocm_that_is_no_path_is_refused() -> None:
    with pytest.raises(SettingError, match=r"ROCM_PATH='/x.*no path that this system can use .*=/opt/rocm"):
        environment.rocm_folder({environment.ROCM_PATH: "/" + "x" * 300})


def test_a_cache_directory_that_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(SettingError, match=r"TILEWRIGHT_CACHE_DIR=.*a file, not a directory; .*~/kernels"):
        settings({environment.CACHE_DIR: str(path)})
