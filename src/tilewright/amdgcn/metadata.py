"""What a listing says beside its instructions: the arguments of each kernel, and how a wave begins."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tilewright.amdgcn.faults import ListingParseError

METADATA_BEGIN, METADATA_END = ".amdgpu_metadata", ".end_amdgpu_metadata"
"""What stands before and behind it in a listing."""

MOST_BYTES = 1 << 16
"""Bytes of a kernel's arguments, at most."""

_ENTRY = re.compile(r"^(\s*)(- )?\s*(?:(\.?[\w.]+):)?\s*(.*)$")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel, as its metadata says.

    Args:
        name: as in the source, or ``""``.
        offset: bytes from the begin of the kernel's arguments.
        size: in bytes.
        kind: ``global_buffer``, ``by_value``, or ``hidden_…``, which the runtime gives.
    """

    name: str
    offset: int
    size: int
    kind: str


@dataclass(slots=True)
class KernelRecord:
    """The metadata of one kernel: its arguments, and its other fields by their names."""

    arguments: list[Argument] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)


def read_metadata(text: str) -> dict[str, KernelRecord]:
    """The kernels that the metadata of a listing names; none where it has no metadata.

    Args:
        text: the whole listing.

    Example:
        >>> text = '''
        ... .amdgpu_metadata
        ... amdhsa.kernels:
        ...   - .args: []
        ...     .name: nothing
        ...     .vgpr_count: 5
        ... .end_amdgpu_metadata
        ... '''
        >>> read_metadata(text)["nothing"].fields[".vgpr_count"]
        '5'
    """
    _, _, behind = text.partition(METADATA_BEGIN)
    return kernel_records(behind.partition(METADATA_END)[0].splitlines())


def kernel_records(lines: list[str]) -> dict[str, KernelRecord]:
    """The kernels that the metadata of a listing names, by their names.

    Args:
        lines: what stands between ``.amdgpu_metadata`` and ``.end_amdgpu_metadata``.

    Raises:
        ListingParseError: a kernel without a name.
    """
    records: list[tuple[dict[str, str], list[dict[str, str]]]] = []
    inside, nested = False, 0
    for line in lines:
        if not line.strip() or (match := _ENTRY.match(line)) is None:
            continue
        spaces, dash, key, value = match.groups()
        indent = len(spaces) + (2 if dash else 0)
        value = value.strip().strip("'\"")
        if indent == 0:
            inside = key == "amdhsa.kernels"
            continue
        if not inside:
            continue
        if dash and len(spaces) <= 2:
            records.append(({}, []))
            nested = 0
        if not records:
            raise ListingParseError(f"the metadata has {line.strip()!r} before the first kernel")
        if nested and indent <= nested:
            nested = 0
        if nested:
            if dash:
                records[-1][1].append({})
            if key and records[-1][1]:
                records[-1][1][-1][key] = value
        elif key == ".args":
            nested = indent
        elif key:
            records[-1][0][key] = value
    if any(".name" not in fields for fields, _ in records):
        raise ListingParseError("the metadata has a kernel without .name")
    return {
        fields[".name"]: KernelRecord([_argument(item) for item in arguments], fields)
        for fields, arguments in records
    }


def _argument(item: dict[str, str]) -> Argument:
    name, kind = item.get(".name", ""), item.get(".value_kind", "")
    offset, size = (_bytes(item, field) for field in (".offset", ".size"))
    if kind == "global_buffer" and size != 8:
        raise ListingParseError(f"the metadata has an array with .size {size}; an address has 8 bytes")
    return Argument(name, offset, size, kind)


def _bytes(item: dict[str, str], field: str) -> int:
    """A field of an argument that counts bytes."""
    text = item.get(field, "")
    if not (text.isascii() and text.isdigit() and len(text) < 9 and int(text) <= MOST_BYTES):
        raise ListingParseError(
            f"the metadata has an argument with {field} {text!r}; it is an integer up to {MOST_BYTES}"
        )
    return int(text)
