"""A code object for AMD GPUs: its symbols and their bytes, and what the instructions of a listing encode to.

Source: System V ABI, "Object Files"; LLVM, "User Guide for AMDGPU Backend", "Code Object".
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

from tilewright.runtime.amdgcn import TRIPLE, AmdToolchain

_ENCODED = re.compile(r"^\s(?P<text>[a-z].*?)\s*; encoding: \[(?P<bytes>.*)\]$")
_FIXUP = re.compile(r"^\s*;\s+fixup A - offset: 0, value: (?P<label>\S+), kind: fixup_si_sopp_br$")
_DISTANCE = re.compile(r"^\s*;\s+fixup A - offset: 4, value: \S+@rel32@")
_LABEL = re.compile(r"^(?P<label>[.\w]+):")
_CUT = re.compile(r"\s*//.*$")


def functions(data: bytes) -> dict[str, bytes]:
    """Return the machine code of each function of a code object, by its symbol."""
    (at,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, at + size * n) for n in range(count)]
    found = {}
    for kind, offset, length, link in ((s[1], s[4], s[5], s[6]) for s in sections):
        if kind != 2:  # no table of symbols
            continue
        names = sections[link][4]
        for entry in range(offset, offset + length, 24):
            name, about, _, section, value, extent = struct.unpack_from("<IBBHQQ", data, entry)
            if about & 15 == 2:
                begin = sections[section][4] + value - sections[section][3]
                text = data[names + name : data.index(b"\0", names + name)].decode()
                found[text] = data[begin : begin + extent]
    return found


def encoded(
    listing: str, arch: str, toolchain: AmdToolchain, folder: Path
) -> tuple[dict[str, bytes], dict[str, list[int]]]:
    """Return the encodings of a listing's instructions, in order, by the label before them.

    Linking decides distances to constants; so their values are unknown, and only their places are returned.
    """
    (folder / "kernel.s").write_text(listing)
    options = ("-cc1as", "-triple", TRIPLE, "-target-cpu", arch, "-filetype", "asm", "-show-encoding")
    command = [*toolchain.compiler, *options, "kernel.s", "-o", "encoded.s"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    found: dict[str, bytearray] = {}
    branches: list[tuple[bytearray, int, str]] = []
    places: dict[str, int] = {}
    distances: dict[str, list[int]] = {}
    code, far = bytearray(), list[int]()
    for line in (folder / "encoded.s").read_text().splitlines():
        if label := _LABEL.match(line):
            name = label["label"]
            if not name.startswith(".L"):
                code, far = found.setdefault(name, bytearray()), distances.setdefault(name, [])
            places[name] = len(code)
        elif one := _ENCODED.match(line):
            bytes_ = one["bytes"].split(",")
            code += bytes(0 if byte == "A" else int(byte, 16) for byte in bytes_)
        elif branch := _FIXUP.match(line):
            branches.append((code, len(code) - 4, branch["label"]))
        elif _DISTANCE.match(line):
            far.append(len(code) - 4)
    for code, at, label in branches:
        struct.pack_into("<h", code, at, (places[label] - at - 4) // 4)
    return {name: bytes(code) for name, code in found.items() if code}, distances


def without(data: bytes, distances: list[int]) -> bytes:
    """Return machine code with zeros in place of distances."""
    made = bytearray(data)
    for at in distances:
        made[at : at + 4] = bytes(4)
    return bytes(made)


def compiler_version(toolchain: AmdToolchain) -> int:
    """Return the version of a compiler's LLVM."""
    said = subprocess.run([*toolchain.compiler, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"clang version (\d+)", said.stdout)
    assert found
    return int(found[1])


def disassembler(least: int) -> str:
    """Return an ``llvm-objdump`` on PATH of at least some version.

    Args:
        least: the compiler's version; older disassemblers do not know all of its instructions.

    Raises:
        FileNotFoundError: PATH has none.
    """
    seen = []
    for name in (*(f"llvm-objdump-{version}" for version in range(30, 13, -1)), "llvm-objdump"):
        where = shutil.which(name)
        if where is None:
            continue
        said = subprocess.run([where, "--version"], capture_output=True, text=True, check=False).stdout
        version = re.search(r"version (\d+)", said)
        if version and int(version[1]) >= least:
            return where
        seen.append(f"{where} of LLVM {version[1] if version else 'unknown'}")
    raise FileNotFoundError(f"no llvm-objdump of LLVM {least} or later on PATH; there is {seen or 'none'}")


def disassembled(data: bytes, arch: str, where: str, folder: Path) -> dict[str, list[str]]:
    """Return the instructions of each function in a disassembler's words, without addresses."""
    (folder / "kernel.hsaco").write_bytes(data)
    command = [where, "-d", f"--mcpu={arch}", "--no-show-raw-insn", "--no-leading-addr", "kernel.hsaco"]
    said = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in said.splitlines():
        if head := re.match(r"^<(\S+)>:$", line):
            lines = found[head[1]] = []
        elif line.startswith("\t"):
            lines.append(plain(line))
    return found


def plain(line: str) -> str:
    """Return an instruction without comments, with single spaces; of a branch only the mnemonic.

    An offset of 0 is called the null register by some disassemblers, which is encoded alike.
    """
    text = " ".join(_CUT.sub("", line).partition(";")[0].split())
    text = re.sub(r"^(s_load_.*), null$", r"\1, 0x0", text)
    return text.split()[0] if re.match(r"s_c?branch", text) else text
