"""Compilation by hiprtc's library, with a stand-in that uses the PyPI compiler."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tilewright.errors import CompileError, ToolchainError
from tilewright.runtime import amdgcn, comgr, environment, native

from .standin import _HANDLER, put

ARCH = "gfx942"
ACTIONS = {
    2: {2: "compile", 7: "to listing", 10: "assemble", 9: "link"},
    3: {2: "compile", 5: "to listing", 8: "assemble", 7: "link"},
}
"""Numbers of actions in `amd_comgr.h`, by its version."""

LANGUAGES = {2: 4, 3: 3}
SOURCE, LOG, BITCODE, OBJECT, EXECUTABLE = 1, 5, 6, 7, 8

TEXT = """extern "C" __attribute__((global)) void twice(float* x) {
  x[__builtin_amdgcn_workitem_id_x()] *= 2;
}
"""


class Library:
    """The functions of the library; ``things`` are the objects made and not yet released."""

    def __init__(self, major: int) -> None:
        self.major = major
        self.things: dict[int, Any] = {}
        self.actions: list[tuple[str, list[str]]] = []
        self.handler = _HANDLER(self._handle)
        self._next = iter(range(1, 1000))
        (self._zig,) = [found for found in amdgcn.find_toolchains() if found.name == "zig"]

    def _handle(self, name: bytes, words: Any, count: int) -> int:
        return int(getattr(self, name.decode())(*(int(words[at]) for at in range(count))) or 0)

    def _make(self, made: int, thing: Any) -> None:
        handle = next(self._next)
        self.things[handle] = thing
        put(made, "Q", handle)

    def get_version(self, major: int, minor: int) -> None:
        put(major, "Q", self.major)
        put(minor, "Q", 1)

    def create_data(self, kind: int, made: int) -> None:
        self._make(made, [kind, b""])

    def set_data(self, data: int, size: int, content: int) -> None:
        self.things[data][1] = ctypes.string_at(content, size)

    def set_data_name(self, data: int, name: int) -> None:
        assert ctypes.string_at(name).startswith(b"kernel.")

    def get_data(self, data: int, size: int, content: int) -> None:
        held = self.things[data][1]
        if content:
            ctypes.memmove(content, held, ctypes.c_size_t.from_address(size).value)
        put(size, "Q", len(held))

    def release_data(self, data: int) -> None:
        del self.things[data]

    def create_data_set(self, made: int) -> None:
        self._make(made, [])

    def data_set_add(self, made: int, data: int) -> None:
        self.things[made].append(self.things[data])

    def destroy_data_set(self, made: int) -> None:
        del self.things[made]

    def create_action_info(self, made: int) -> None:
        self._make(made, {})

    def destroy_action_info(self, info: int) -> None:
        del self.things[info]

    def action_info_set_language(self, info: int, language: int) -> None:
        assert language == LANGUAGES[self.major]

    def action_info_set_isa_name(self, info: int, name: int) -> None:
        self.things[info]["arch"] = ctypes.string_at(name).decode().removeprefix("amdgcn-amd-amdhsa--")

    def action_info_set_option_list(self, info: int, options: int, count: int) -> None:
        words = (ctypes.c_char_p * count).from_address(options)
        self.things[info]["options"] = [word.decode() for word in words]

    def action_info_set_logging(self, info: int, logging: int) -> None:
        assert logging == 1

    def do_action(self, kind: int, info: int, before: int, after: int) -> int:
        said, ((given, content),) = self.things[info], self.things[before]
        action = ACTIONS[self.major][kind]
        self.actions.append((action, said["options"]))
        try:
            made: dict[str, Any] = {
                "compile": lambda: (SOURCE, BITCODE, self._compiled(content, said["arch"])),
                "to listing": lambda: (BITCODE, SOURCE, content),
                "assemble": lambda: (SOURCE, OBJECT, content),
                "link": lambda: (OBJECT, EXECUTABLE, self._assembled(content, said["arch"])),
            }
            wanted, kind_made, result = made[action]()
        except CompileError as refused:
            self.things[after].append([LOG, refused.log.encode()])
            return 1
        assert given == wanted
        self.things[after] += [[LOG, b""], [kind_made, result]]
        return 0

    def _compiled(self, content: bytes, arch: str) -> bytes:
        return amdgcn.compile_text(content.decode(), arch, "kernel", self._zig).encode()

    def _assembled(self, content: bytes, arch: str) -> bytes:
        return amdgcn.assemble(content.decode(), arch, "kernel", self._zig)

    def action_data_count(self, made: int, kind: int, count: int) -> None:
        put(count, "Q", len([one for one in self.things[made] if one[0] == kind]))

    def action_data_get_data(self, made: int, kind: int, index: int, found: int) -> None:
        self._make(found, [one for one in self.things[made] if one[0] == kind][index])


@pytest.fixture
def library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Library]:
    """Return the stand-in below ROCM_PATH, with a major version."""
    (tmp_path / "lib").mkdir()
    source = (Path(__file__).parent / "comgr_standin.cpp").read_text()
    (tmp_path / "stand_in.so").write_bytes(native.compile_library(source))
    path = tmp_path / "lib" / "libamd_comgr.so"
    path.symlink_to(tmp_path / "stand_in.so")
    made = Library(getattr(request, "param", 3))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setattr(environment, "ROCM", tmp_path)
    monkeypatch.setattr(comgr, "MAPPED", tmp_path / "nothing")
    ctypes.CDLL(str(path)).standin_handler(made.handler)
    comgr.library.cache_clear()
    yield made
    comgr.library.cache_clear()


@pytest.mark.parametrize("library", [2, 3], indirect=True)
def test_the_listing_comes_first_and_the_code_object_is_made_of_it(library: Library) -> None:
    *others, last = amdgcn.find_toolchains()
    assert (last.name, last.version) == ("comgr", f"{library.major}.1")
    assert str(last) == f"comgr {library.major}.1"
    (zig,) = [one for one in others if one.name == "zig"]
    library.actions.clear()  # those of the probe
    listing = amdgcn.compile_text(TEXT, ARCH, "twice", last)
    assert listing == amdgcn.compile_text(TEXT, ARCH, "twice", zig)
    assert ".amdhsa_code_object_version 5" in listing
    assert [action for action, _ in library.actions] == ["compile", "to listing"]
    assert all("-mcode-object-version=5" in options for _, options in library.actions)
    assert "-ffp-contract=off" in library.actions[0][1]
    image = amdgcn.assemble(listing, ARCH, "twice", last)
    assert image == amdgcn.assemble(listing, ARCH, "twice", zig)
    assert [action for action, _ in library.actions[2:]] == ["assemble", "link"]
    assert "-mcode-object-version=5" in library.actions[2][1]
    assert library.things == {}, "everything was given back"


def test_what_the_library_refuses_is_shown_with_its_line(library: Library) -> None:
    last = amdgcn.find_toolchains()[-1]
    with pytest.raises(CompileError, match=r"libamd_comgr\.so refused broken for gfx942") as caught:
        amdgcn.compile_text("int fine;\nint wrong = nothing;\n", ARCH, "broken", last)
    assert "2 | int wrong = nothing;" in str(caught.value)
    assert "undeclared" in caught.value.log
    assert library.things == {}


def test_it_is_not_loaded_where_another_compiler_is_found(library: Library) -> None:
    amdgcn.find_toolchain.cache_clear()
    assert amdgcn.find_toolchain().name != "comgr"
    assert comgr.library.cache_info().currsize == 0


@pytest.mark.parametrize("library", [4], indirect=True)
def test_a_version_that_is_not_known_is_not_used(library: Library) -> None:
    assert "comgr" not in [found.name for found in amdgcn.find_toolchains()]
    with pytest.raises(ToolchainError, match=r"version 4\.1; 2 and 3 are known"):
        comgr.version()
