"""Write docs/options.md: the options that each operation takes, by dtype and target.

    python scripts/options.py [--check SHARE]

The script makes every call with one option, on simulated machines that launch nothing, and records the error
of each refused call. If an operation has no argument for an option, the reason is in `ABSENT`. With
``--check 1/8`` the script repeats every eighth call, and fails if the page says something else.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent))

from unchanged import called, machines

from tilewright.errors import TilewrightError
from tilewright.runtime import backends

PAGE = Path(__file__).parents[1] / "docs" / "options.md"

DTYPES = ("f64", "f32", "f16", "f8e4m3", "i8", "u8", "c64")
ASKED = {"cpu": "x86-64-v4", "cuda": "sm_90a", "hip": "gfx942"}
"""The architecture that is tried for each target."""

EXTENTS = {"M": 24, "N": 40, "K": 32, "L": 3}

ADDED = {"f64": "f64", "i8": "i32", "u8": "u8", "c64": "c64"}
"""Dtype of arrays that are added to a result, by the operands' dtype; default f32."""

OPTIONS = (
    *("alpha", "beta", "bias", "activation", "residual", "multiply", "dropout", "saturate", "precision"),
    *("scales", "group", "split_k", "batch_invariant", "out_dtype"),
)

ADDEND = {"bias": "bias={v}(N)", "activation": 'activation="relu"'}
SPLIT = {"split_k": "split_k=2", "batch_invariant": "batch_invariant=True"}
SCALES = {"scales": "scale_a=f32(M), scale_b=f32(N)"}
HOW = {"precision": 'precision="tf32"', "out_dtype": 'out_dtype="{w}"'}


Question: TypeAlias = tuple[str, str, str, str]
"""Operation, option, dtype and target."""


class Operation(NamedTuple):
    """An operation: its options, and a call in which ``{k}`` is the dtype and ``{more}`` the option."""

    call: str
    options: Mapping[str, str]


ALPHA = {"alpha": "alpha=2"}
BETA = {"beta": "c={v}(M, N), beta=2"}
LATE = {"multiply": "multiply={v}(M, N)", "dropout": "dropout=0.5", "residual": "residual={v}(M, N)"}
SATURATES = {"saturate": 'saturate=True, out_dtype="i8"'}
OPERATIONS = {
    "matmul": Operation(
        "matmul({k}(M, K), {k}(K, N), {more})",
        ALPHA | BETA | ADDEND | LATE | SATURATES | HOW | SPLIT,
    ),
    "scaled_mm": Operation(
        "scaled_mm({k}(M, K), {k}(K, N), {more})",
        {"bias": "bias=f32(N)", "activation": ADDEND["activation"], "group": "scale_b=f32(4, N), group=8"}
        | {name: text.format(v="f32") for name, text in (BETA | LATE).items()}
        | SCALES
        | {"out_dtype": 'out_dtype="f32"'}
        | SPLIT,
    ),
    "gated_matmul": Operation(
        "gated_matmul({k}(M, K), {k}(K, N), {k}(K, N), {more})",
        {"bias": "bias_b={s}(N), bias_c={s}(N)", "activation": 'activation="gelu"'}
        | {name: text.replace("{v}", "{s}") for name, text in LATE.items()}
        | SCALES
        | HOW
        | SPLIT,
    ),
    "grouped_matmul": Operation(
        "grouped_matmul({k}(M, K), {k}(L, K, N), ends(5, 9, M), {more})",
        ALPHA | BETA | ADDEND | {"bias": "bias={v}(L, N)"} | LATE | SATURATES | HOW,
    ),
    "grouped_matmul of lists": Operation(
        "grouped_matmul([{k}(M, K)], [{k}(K, N)], {more})",
        {"bias": "bias=[{v}(N)]", "activation": ADDEND["activation"]} | HOW,
    ),
    "complex_matmul": Operation(
        "complex_matmul({k}(M, K), {k}(K, N), {more})",
        ALPHA | BETA | {"multiply": LATE["multiply"], "dropout": LATE["dropout"]} | HOW | SPLIT,
    ),
    "einsum": Operation(
        'einsum("mk,kn->mn", {k}(M, K), {k}(K, N), {more})',
        ALPHA | BETA | ADDEND | LATE | SATURATES | HOW | SPLIT | SCALES,
    ),
    "reduced_matmul": Operation(
        'reduced_matmul({k}(M, K), {k}(K, N), "max", {more})',
        ALPHA | ADDEND | {"precision": HOW["precision"]},
    ),
    "gemm_chain": Operation(
        "gemm_chain({k}(M, K), {k}(K, N), {k}(N, 24), {more})",
        ALPHA
        | {"bias": "bias_b={s}(N), bias_c={s}(24)", "activation": ADDEND["activation"]}
        | {name: text.replace("{v}(M, N)", "{s}(M, 24)") for name, text in LATE.items()}
        | SATURATES
        | HOW,
    ),
    "attention": Operation(
        "attention({k}(M, K), {k}(N, K), {k}(N, K), {more})",
        {"alpha": "scale=2.0", "dropout": LATE["dropout"], "out_dtype": 'out_dtype="f32"'},
    ),
}

TO_COME = "the operation has no argument for it yet"
ABSENT: dict[tuple[str, str], str] = {}
"""Why an operation has no argument for an option; default `TO_COME`."""
REAL = "not defined for complex numbers, which have no order"
for _name in ("activation", "saturate"):
    ABSENT["complex_matmul", _name] = REAL
for _op in OPERATIONS:
    if _op != "scaled_mm":
        ABSENT[_op, "group"] = "only scaled_mm takes weights with group scales"
    if _op not in ("scaled_mm", "gated_matmul", "einsum"):
        ABSENT[_op, "scales"] = "only scaled_mm, gated_matmul and einsum take scales of rows and columns"
for _name in ("alpha", "precision"):
    ABSENT["scaled_mm", _name] = {
        "alpha": "pass a number as scale_a or scale_b",
        "precision": "f32 operands are always multiplied exactly",
    }[_name]
ABSENT["scaled_mm", "saturate"] = ABSENT["gated_matmul", "saturate"] = "8-bit results always saturate"
ABSENT["gated_matmul", "beta"] = ABSENT["gemm_chain", "beta"] = (
    "c is an operand; residual adds an array to the result"
)
ABSENT["complex_matmul", "bias"] = ABSENT["complex_matmul", "residual"] = "c adds an array to the result"
ABSENT["gated_matmul", "alpha"] = "pass a number as scale_a"
for _name in ("bias", "activation", "residual", "multiply", "beta", "saturate"):
    ABSENT["attention", _name] = "the result is a weighted mean of rows of v, and nothing is applied to it"
for _name in ("residual", "beta", "dropout", "multiply", "saturate", "out_dtype"):
    ABSENT["reduced_matmul", _name] = "the results are f32 or f64 numbers of rows or columns"
for _op in ("attention", "gemm_chain", "reduced_matmul"):
    ABSENT[_op, "split_k"] = ABSENT[_op, "batch_invariant"] = "this operation never splits K"
for _name in ("alpha", "beta", "residual", "multiply", "dropout", "saturate"):
    ABSENT["grouped_matmul of lists", _name] = "the kernel of lists reads only the lists a, b and bias"
for _op in ("grouped_matmul", "grouped_matmul of lists"):
    ABSENT[_op, "split_k"] = ABSENT[_op, "batch_invariant"] = (
        "the sizes of the groups are not known when K is split"
    )


class PlannedError(Exception):
    """Raised in place of compiling a kernel: all checks have accepted the call."""


def _stop(*_: Any) -> Any:
    raise PlannedError


def answer(op: str, option: str, kind: str, target: str) -> str:
    """Make a call with an option; return the first line of the error, or "" if it is accepted."""
    made = OPERATIONS[op]
    wide = "c128" if kind == "c64" else "f64" if kind in ("f64", "u8") else "f32"
    scale = "f64" if kind == "f64" else "f32"
    more = made.options[option].format(v=ADDED.get(kind, "f32"), w=wide, s=scale)
    line = made.call.format(k=kind, more=more)
    try:
        called(line, EXTENTS, ASKED[target], filled=False)
    except PlannedError:
        return ""
    except TilewrightError as error:
        return re.sub(r"\s+", " ", str(error).splitlines()[0]).strip()
    return ""


def questions() -> Iterator[Question]:
    """Yield every combination of operation, option, dtype and target."""
    for op, made in OPERATIONS.items():
        for option in (one for one in OPTIONS if one in made.options):
            for kind in DTYPES:
                yield from ((op, option, kind, target) for target in ASKED)


def answered(asked: Iterable[Question]) -> dict[Question, str]:
    """Return the answers to some questions."""
    with machines():
        for arch in ASKED.values():
            backend = backends.BACKENDS[arch]
            patch.object(backend, "compile", _stop).start()
        try:
            return {one: answer(*one) for one in asked}
        finally:
            patch.stopall()


def page(found: Mapping[Question, str]) -> str:
    """Return the page for all answers."""
    reasons: dict[str, int] = {}
    architectures = ", ".join(f"`{arch}` ({name})" for name, arch in ASKED.items())
    lines = [
        "# Options of the operations\n",
        "`python scripts/options.py` writes this page. It tries each call with one option, and records the",
        "error if the call is refused. `yes` means that every target takes the option. A number in brackets",
        "refers to the reasons at the end of the page. The script tries these architectures:",
        f"{architectures}. It does not try `reference`.\n",
    ]
    for op, made in OPERATIONS.items():
        lines += [f"## {heading(op)}\n"]
        lines += [f"| Option | {' | '.join(DTYPES)} |", "|---" * (1 + len(DTYPES)) + "|"]
        for option in OPTIONS:
            if option not in made.options:
                reason = ABSENT.get((op, option), TO_COME)
                cells = [f"no ({reasons.setdefault(reason, len(reasons) + 1)})", *[""] * (len(DTYPES) - 1)]
            else:
                cells = [_cell(op, option, kind, found, reasons) for kind in DTYPES]
            lines.append(f"| {option} | {' | '.join(cells)} |")
        lines.append("")
    lines += ["## Reasons\n", *(f"{number}. {reason}" for reason, number in reasons.items()), ""]
    return "\n".join(lines)


def heading(op: str) -> str:
    """Return the heading of an operation's table."""
    name, _, kind = op.partition(" of ")
    return f"`tw.{name}`" + (f", {kind}" if kind else "")


def _cell(
    op: str,
    option: str,
    kind: str,
    found: Mapping[Question, str],
    reasons: dict[str, int],
) -> str:
    """Return the cell of a table for an option and a dtype."""
    said = {target: found[op, option, kind, target] for target in ASKED}
    numbers = {t: reasons.setdefault(one, len(reasons) + 1) for t, one in said.items() if one}
    if not numbers:
        return "yes"
    if len(numbers) == len(ASKED) and len({*numbers.values()}) == 1:
        return f"no ({next(iter(numbers.values()))})"
    return ", ".join(f"{t}: no ({number})" for t, number in numbers.items())


NUMBERED = re.compile(r"^(\d+)\. (.*)$", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", type=Fraction, metavar="SHARE")
    asked = parser.parse_args()
    every = [*questions()]
    if asked.check is None:
        PAGE.write_text(page(answered(every)))
        return
    step = round(1 / asked.check)
    wrong = differing(answered(every[::step]), PAGE.read_text())
    sys.exit("\n".join(wrong) or 0)


def differing(found: Mapping[Question, str], text: str) -> list[str]:
    """Return the answers that differ from the page."""
    reasons = dict(NUMBERED.findall(text))
    tables = dict(re.findall(r"^## (.*)\n\n((?:\|.*\n)+)", text, re.MULTILINE))
    wrong = []
    for (op, option, kind, target), error in found.items():
        row = next(line for line in tables[heading(op)].splitlines() if line.startswith(f"| {option} |"))
        cell = row.split("|")[2 + DTYPES.index(kind)].strip()
        one = re.search(rf"{target}: no \((\d+)\)", cell) or re.fullmatch(r"no \((\d+)\)", cell)
        said = reasons[one[1]] if one else ""
        if said != error:
            wrong.append(f"{op}, {option}, {kind}, {target}: the page says {said!r}, the call {error!r}")
    return wrong


if __name__ == "__main__":
    main()
