"""The main loop of a listing, and what is wrong with it: gates that a product's kernel passes or fails."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

_HEADER = re.compile(r"^\.L(BB\d+_\d+):\s*;.*This (?:Inner )?Loop Header")
_MEMBER = re.compile(r"in Loop: Header=(BB\d+_\d+)")
_LABEL = re.compile(r"^(?:\.L(BB\d+_\d+):|; %bb\.\d+:)(.*)")
MATRIX = re.compile(r"v_(mfma|wmma)_\w+")


def main_loop(assembly: str) -> list[str]:
    """The instructions of the loop that multiplies most, with their operands."""
    loops: dict[str, list[str]] = {}
    current = ""
    for line in assembly.splitlines():
        if found := _HEADER.match(line):
            current = found[1]
        elif _LABEL.match(line):
            member = _MEMBER.search(line)
            current = member[1] if member else ""
        elif current and re.match(r"\t[a-z]", line):
            loops.setdefault(current, []).append(line.strip())
    return max(loops.values(), key=lambda body: sum(bool(MATRIX.match(one)) for one in body))


def names(body: list[str]) -> Counter[str]:
    """How often each instruction stands there."""
    return Counter(line.split()[0] for line in body)


def complaints(assembly: str, loads: int) -> Iterator[str]:
    """What is wrong with a main loop that matrix cores should keep busy.

    Args:
        assembly: the compiler's listing.
        loads: accesses of 16 bytes by which a thread should read its parts of A and B.
    """
    body = main_loop(assembly)
    found = names(body)
    matrix = sum(count for name, count in found.items() if MATRIX.match(name))
    read = {name: count for name, count in found.items() if name.startswith("global_load")}
    if not {*read} <= {"global_load_dwordx4", "global_load_b128"} or sum(read.values()) != loads:
        yield f"global memory is read by {read}"
    if matrix < 4 * sum(read.values()):
        yield f"{matrix} matrix instructions for {sum(read.values())} loads"
    if narrow := [name for name in found if re.match(r"ds_(read|load)", name) and not name.endswith("b128")]:
        yield f"shared memory is read by {narrow}"
    if narrow := [name for name in found if re.match(r"ds_(write|store)_b(8|16)", name)]:
        yield f"shared memory is written by {narrow}"
    if bad := [name for name in found if re.match(r"scratch|flat|buffer|v_(read|write)lane", name)]:
        yield f"spills, or caches that are invalidated: {bad}"
    if found["s_barrier"] != 2:
        yield f"{found['s_barrier']} barriers"
    yield from _waits(body)


def _waits(body: list[str]) -> Iterator[str]:
    """Loads that are waited for while there is something to multiply: behind the first product of a turn."""
    products = [at for at, line in enumerate(body) if MATRIX.match(line)]
    waits = [at for at, line in enumerate(body) if re.match(r"s_waitcnt.*vmcnt", line)]
    if any(products[0] < at < products[-1] for at in waits):
        yield "products wait for the next tile"
