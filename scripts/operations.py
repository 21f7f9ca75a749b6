"""Write docs/operations.md: every public name by its purpose, and the targets that execute each operation.

    python scripts/operations.py

The page is made from docstrings and the targets' own tables; a test compares it with this script's output.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import tilewright as tw
from tilewright.ir.async_ops import ASYNC_OPS
from tilewright.ir.copies import BULK_VERBS
from tilewright.targets.amd import ARCHITECTURES as OF_AMD
from tilewright.targets.atoms import WGMMA
from tilewright.targets.cpu.legality import INSTEAD
from tilewright.targets.cuda.legality import SINCE_SM_90
from tilewright.targets.matrix_cores import MATRIX_CORES
from tilewright.targets.nvidia import ARCHITECTURES

PAGE = Path(__file__).parents[1] / "docs" / "operations.md"

INTRODUCTION = """\
# Operations, and the targets that execute them

`python scripts/operations.py` writes this page from docstrings and the targets' tables. `help(tw.copy)` shows
the whole text of an operation; [coverage.txt](../tests/targets/golden/coverage.txt) shows its generated code.

- `reference` executes everything.
- `cuda` executes everything on `sm_90a`. On `sm_80`, `sm_86` and `sm_89` it executes everything that this
  page does not mark `sm_90a`.
- `cpu` executes everything that has no entry in the column "on `cpu`, write instead". It moves complex
  numbers, but does not compute with them.
- `hip` compiles everything outside `tw.hopper` for AMD GPUs, with the MMA instructions of the last table. It
  launches kernels if it finds ROCm. No AMD hardware has run it.
"""

SECTIONS = {
    "Verifying and timing kernels": ("checking", "functions", "tune", "runtime.gpu_memory", "report"),
    "Kernels and arrays": ("runtime", "packing", "lang.specs", "targets.reference.report"),
    "Operations on arrays": ("ops",),
    "Dataflow kernels": ("lang.dataflow", "schedule"),
    "The grid, control flow, and integers of the kernel": (
        "lang.launch",
        "lang.control",
        "lang.scalars",
    ),
    "Arithmetic of fragments": (
        "lang.functions",
        "lang.exact_functions",
        "lang.tile_arithmetic",
    ),
    "Signals between blocks": ("lang.signals",),
    "Warp roles, and asynchronous operations": (
        "lang.roles",
        "lang.transaction_barriers",
        "lang.asynchrony",
    ),
    "Tensors, copies and products": ("lang",),
    "Layouts, views and maps": ("layout", "views", "threads", "ir.mma", "module"),
    "The IR of a kernel": ("ir", "dataflow"),
    "Device GEMMs": ("instances",),
    "Exported kernels": ("shipping",),
    "Errors and warnings": ("errors",),
}
"""Files or folders of each section. A name goes to the first one that contains it."""

NAMESPACES = ("ck", "hopper", "layouts", "ir", "testing")

NAMES = [
    *(name for name in tw.__all__ if name not in NAMESPACES),
    *(f"{space}.{name}" for space in NAMESPACES for name in getattr(tw, space).__all__),
]
"""All public names, as written after ``tw.``."""

CONSTANTS = {
    "NF4": "| 4 | the 16 numbers of NF4, as a table for `tw.take` and `tw.scaled_mm`; codes are `tw.u4` |"
}
"""Public constants, as rows of the table of dtypes."""

ASYNCHRONOUS = {op.name for op in ASYNC_OPS} | {*BULK_VERBS}


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    homes = {name: _home(name) for name in NAMES if name not in ("__version__", *CONSTANTS)}
    for section, files in SECTIONS.items():
        names = [name for file in files for name, home in homes.items() if _within(home, file)]
        homes = {name: home for name, home in homes.items() if name not in names}
        parts.append("\n".join([f"## {section}", "", *_table(names)]) + "\n")
    parts.append("\n".join(["## Dtypes", "", *_dtypes()]) + "\n")
    parts.append("\n".join(["## MMA instructions", "", *_atoms()]) + "\n")
    assert set(homes.values()) == {"dtypes"}, f"no section for {homes}"
    return "\n".join(parts)


def _home(name: str) -> str:
    """Return the module that defines a public name."""
    found = attrgetter(name)(tw)
    module = "module" if inspect.ismodule(found) else getattr(found, "__module__", type(found).__module__)
    return str(module).removeprefix("tilewright.")


def _within(home: str, file: str) -> bool:
    return home == file or home.startswith(f"{file}.")


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def _table(names: list[str]) -> Iterator[str]:
    is_asynchronous = any(_last_part(name) in ASYNCHRONOUS for name in names)
    yield "| Name | What it does |" + (" on `cuda` | on `cpu`, write instead |" if is_asynchronous else "")
    yield "|---|---|" + ("---|---|" if is_asynchronous else "")
    for name in names:
        row = f"| `tw.{name}` | {_first_line(attrgetter(name)(tw))} |"
        if is_asynchronous:
            last = _last_part(name)
            arch = "`sm_90a`" if last in SINCE_SM_90 else "yes"
            arch = "" if inspect.isclass(attrgetter(name)(tw)) else arch
            row += f" {arch} | {INSTEAD.get(last, 'tw.barrier') if last in ASYNCHRONOUS else ''} |"
        yield row


def _first_line(found: object) -> str:
    """Return the first line of a docstring, for a cell of a table."""
    line = (inspect.getdoc(found) or "").partition("\n")[0]
    return line.replace("``", "`").replace("|", "\\|").replace("](", "] (")  # otherwise it would be a link


def _dtypes() -> Iterator[str]:
    yield "| Name | Bits | Kind |"
    yield "|---|---|---|"
    yield from (f"| `tw.{name}` {cells}" for name, cells in CONSTANTS.items())
    for name in tw.__all__:
        if isinstance(dtype := getattr(tw, name), tw.DType):
            kind = f"complex, of two {dtype.component}" if dtype.components > 1 else dtype.kind
            yield f"| `tw.{name}` | {dtype.bits} | {kind} |"
    yield ""
    yield f"Their class is `tw.DType`. `tw.dtype(name)`: {_first_line(tw.dtype)}"


def _atoms() -> Iterator[str]:
    yield "On `cpu` an atom selects only the dtypes of the operands and of the sum."
    yield ""
    yield "| Atom | A and B | Sum | on `cuda` |"
    yield "|---|---|---|---|"
    for name, atom in vars(tw.atoms).items():
        if isinstance(atom, tw.MmaAtom) and name not in MATRIX_CORES:
            since = [arch for arch, known in ARCHITECTURES.items() if atom.feature in known.features]
            yield f"| `tw.atoms.{name}` | {atom.a_dtype} | {atom.c_dtype} | `{since[0]}` on |"
    yield "| `tw.atoms.fma(dtype)` | any | f32, f64, i32 | all |"
    yield "| `tw.atoms.dots(dtype)` | floats | f32, f64 | processors |"
    for row in WGMMA:
        given = f"{row.a}" if row.a == row.b else f"{row.a} by {row.b}"
        yield f"| `tw.atoms.wgmma`, for `tw.hopper.mma_async` | {given} | {row.c} | `{row.feature}` |"
    yield ""
    yield "| Atom | A and B | Sum | on `hip` |"
    yield "|---|---|---|---|"
    for name, atom in MATRIX_CORES.items():
        able = ", ".join(f"`{arch}`" for arch, known in OF_AMD.items() if atom.feature in known.features)
        yield f"| `tw.atoms.{name}` | {atom.a_dtype} | {atom.c_dtype} | {able} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
    sys.exit(0)
