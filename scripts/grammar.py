"""Write docs/grammar.md: the grammar of printed kernels, and the accesses and orderings of each operation.

    python scripts/grammar.py

The page comes from the operations' fields, roles and traits. A test compares it with this script's output.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tilewright.dataflow.printer import VERSION as FLOW_VERSION
from tilewright.dtypes import ALL
from tilewright.functions.table import FUNCTIONS
from tilewright.ir import types
from tilewright.ir.op import ENGINES, SCOPES, Block, Op
from tilewright.ir.ops import OPS, For, If
from tilewright.ir.printer import VERSION
from tilewright.views.transforms import TRANSFORMS

PAGE = Path(__file__).parents[1] / "docs" / "grammar.md"

INTRODUCTION = f"""\
# The grammar of printed kernels

`python scripts/grammar.py` writes this page from the operations themselves. `tw.ir.print_kernel(kernel)`
prints a traced kernel. `tw.ir.parse_kernel(text)` reads it back; printed again, it gives the same text. The
grammar is a subset of Python's, so that Python's own parser reads it. Names are unique in a kernel, and
defined before use.

```text
kernel      = "# tilewright ir {VERSION}"
              "kernel(" name ", threads=" n ", lanes=" n [", resident=" n] ")"
              (size | tensor | number | workspace)* grid* cluster* tensor_map* guard*
              (distribution | atom | tiled_mma)*            named, because several operations share them
              statement*
size        = name "= size(" source ", low=" n ", high=" n ", divisor=" n ", bits=" n ")"
source      = "Extent(tensor=" name ", dim=" n ")" | "Stride(…)" | "Argument(…)" | "Derived(…)"
tensor      = name "= tensor(" dtype "," view ", align=" n ")"
number      = name "= scalar(" dtype ")"
workspace   = name "= workspace(" dtype "," view ", align=" n ", elems=" int ", zeroed=" bool
                     [", resets=True"] ")"
grid        = name "= grid(" int "," kind ")"
cluster     = name "= cluster(" axis "," n ")"
tensor_map  = name "= tensor_map(" tensor "," box "," dtype "," order "," steps ")"
guard       = "guard(" condition "," message ("," int)* ")"

statement   = [name ("," name)* "="] operation "(" operands "," attribute "=" value … ")"
            | "for" name "in range(" int "," int "," n ["," "unroll=" ("True" | n)] "):" block
            | "if" condition ":" block ["else:" block]
            | "with role(first=" n ", count=" n ["registers=" n] "):" block
block       = statements, indented by four spaces, or "pass"

view        = "view(" shape "," int "," elems ["," condition] ")"      offset and validity in i0, i1, …
distribution = "distribution(" shape ", (" mode* "), (" mode* "))"     of threads, and of the values of each
mode        = "(" extent "," dim or None "," step ")"
tiled_mma   = "tiled_mma(" atom "," warps "," repeats ["," "interleaved=True"] ")"
atom        = "atom(" name "," a dtype "," b dtype "," c dtype "," a map "," b map "," c map
                     [", field=value" …] ")"
aligned_sum = "AlignedSum(" "bits=" bits ", group=" group [", field=value" …] ")"    of the field sums

int         = n | name | int ("+" | "-" | "*" | "//" | "%" | "^") int
            | ("min" | "max") "(" int "," int ")" | "select(" condition "," int "," int ")"
condition   = "True" | "False" | int "<" int | int "==" int
            | condition ("and" | "or") condition | "not" condition
```

The outermost statements are not indented. An attribute that has its default is left out.
"""


FLOWS = f"""\
## Dataflow kernels

A loop over `tw.tiles` records a graph. `tw.ir.print_flow(flow)` prints it, one line for each value, and
`tw.ir.parse_flow(text)` reads it back as an equal graph. The line of a value has its dtype and its axes. An
axis is a span, or 1 if it is broadcast. A plain number among the arguments of a function has the dtype of the
others.

```text
flow        = "# tilewright flow {FLOW_VERSION}"
              "flow(" name ")"
              (size | array | number | integer)* span* line*
size        = name "= size(low=" n ", high=" n ", divisor=" n ")"
array       = name "= array(" dtype "," shape ")"
number      = name "= number(" dtype ")"
integer     = name "= integer(low=" n ", high=" n ", divisor=" n ")"
span        = name "=" ("batch" | "tile" | "steps") "(" int ")"
view        = name "= view(" array "," shape ("," transform)* ")"

line        = span | view | fold
            | name ":" dtype ["[" axis ("," axis)* "]"] "=" value
            | array "[" span ("," span)* "] =" argument            a store
axis        = span | "1"
value       = array "[" span ("," span)* "]"                       elements along some spans
            | function "(" argument ("," argument)* ")"            element by element, from the table below,
                                                                   with and_ and or_ for Python's words
            | "rearrange(" argument ")"                            axes in another order, or new ones
            | "sum(" span "," argument "," argument word* ")"               of products along a span
            | "reduce(" ("'sum'" | "'max'" | "'min'") "," argument ", axis=" n ")"
            | "scan(" argument ", axis=" n [", reverse=True"] ")"  sums up to each element, or from it
            | "cell(" name "," argument ")"                        a value that a fold carries, and its start
            | "folded(" fold "," n ")"                             a cell after the last step
            | "literal(" number ")" | "integer(" int ")"
word        = ", precision=" kind                                  how exactly products are added up
            | ", scale_a=" argument | ", scale_b=" argument        scales of the products
fold        = name "= fold(" span ("," "(" cell "," argument ")")* ")"     cells, and their next values
argument    = name | number
```
"""


def page() -> str:
    """Return the page."""
    parts = [
        INTRODUCTION,
        _section("Types of values", _types()),
        _section("Transforms of views", _transforms()),
        _section("Operations", _operations()),
        _section("What orders accesses", _orders()),
        FLOWS,
        _section("Elementwise functions", _functions()),
    ]
    return "\n".join(parts)


def _section(title: str, lines: Iterator[str]) -> str:
    return "\n".join([f"## {title}", "", *lines]) + "\n"


def _said(what: object) -> str:
    """Return the first line of a docstring, for a cell of a table."""
    line = (inspect.getdoc(what) or "").partition("\n")[0]
    line = re.sub(r"; see `Kernel`\.$", ".", line)
    return line.replace("``", "`").replace("|", "\\|").replace("](", "] (")


def _kind(field: dataclasses.Field[Any]) -> str:
    return str(field.type).replace(" | ", " or ")


def _types() -> Iterator[str]:
    dtypes = ", ".join(f"`{name}`" for name, kind in ALL.items() if kind.kind != "exponent")
    yield f"Dtypes: {dtypes}."
    yield ""
    yield "| Type | Fields | What it is |"
    yield "|---|---|---|"
    for cls in (
        *(types.TensorType, types.FragmentType, types.ScalarType),
        *(types.VariableType, types.BarrierType),
    ):
        named = ", ".join(f"`{field.name}`: {_kind(field)}" for field in dataclasses.fields(cls))
        yield f"| `{cls.__name__}` | {named} | {_said(cls)} |"


def _transforms() -> Iterator[str]:
    yield "| Transform | What it does |"
    yield "|---|---|"
    for cls in TRANSFORMS:
        named = ", ".join(f"{field.name}=" for field in dataclasses.fields(cls))
        yield f"| `{cls.__name__}({named})` | {_said(cls)} |"


def _form(op: type[Op]) -> str:
    """Return how an operation prints."""
    if op is For:
        return "for index in range(start, stop, step): body"
    if op is If:
        return "if condition: then else: otherwise"
    results, operands, attributes = [], [], []
    for field in dataclasses.fields(op):
        role = op.roles.get(field.name)
        if field.name == "location" or field.type == Block.__name__:
            continue
        if role == "defines":
            results.append(field.name.rstrip("_"))
        elif role is not None and field.default is dataclasses.MISSING:
            operands.append(field.name.rstrip("_"))
        elif field.default is dataclasses.MISSING:
            attributes.append(f"{field.name}=…")
        else:
            attributes.append(f"{field.name}={field.default!r}")
    text = f"{op.name}({', '.join([*operands, *attributes])})"
    return f"{', '.join(results)} = {text}" if results else text


def _effects(op: type[Op]) -> str:
    """List the operands that an operation reads, writes and updates."""
    kinds = {"reads": [], "writes": [], "updates": []}  # type: dict[str, list[str]]
    for name, role in op.roles.items():
        if role in kinds:
            kinds[role].append(f"`{name.rstrip('_')}`")
    return "; ".join(f"{role} {', '.join(names)}" for role, names in kinds.items() if names)


def _operations() -> Iterator[str]:
    yield "The column Memories lists the memories that an operation may read and write. The column Engines"
    yield "lists the units that may execute it: the threads themselves, or units that work asynchronously. An"
    yield "operation without an engine only declares or names something."
    yield ""
    yield "| Printed as | What it means | Effects | Memories | Engines |"
    yield "|---|---|---|---|---|"
    for op in OPS:
        memories, engines = (", ".join(names) for names in op.traits)
        yield f"| `{_form(op)}` | {_said(op)} | {_effects(op)} | {memories} | {engines} |"


def _orders() -> Iterator[str]:
    yield f"Scopes, the smallest first: {', '.join(SCOPES)}."
    yield f"Engines: {', '.join(ENGINES)}."
    yield "A release and the acquire that sees it together order the accesses before and after them."
    yield ""
    yield "| Operation | Within | Accesses to | by | come before those by | Half |"
    yield "|---|---|---|---|---|---|"
    for op in OPS:
        if (order := op.orders) is not None:
            lists = (", ".join(names) for names in (order.memories, order.before, order.after))
            yield f"| `{op.name}` | {order.scope} | {' | '.join(lists)} | {order.half} |"


def _functions() -> Iterator[str]:
    yield "These are the functions of `elementwise`. For types narrower than f32 they compute in f32, and"
    yield "round once. The error is the largest one on any target, in units in the last place of f32 or f64."
    yield "If the cell is empty, all targets give the same bits."
    yield ""
    yield "| Function | Operands | In C | Error |"
    yield "|---|---|---|---|"
    for row in FUNCTIONS.values():
        yield f"| `{row.name}` | {row.arity} | {f'`{row.c}`' if row.c else ''} | {row.ulp or ''} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
    sys.exit(0)
