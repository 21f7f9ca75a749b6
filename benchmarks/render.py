"""Kept results as Markdown: `python benchmarks/render.py` writes RESULTS.md from results/*.json.

It reads the records of single benchmarks, and the `results.json` of a device run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import against
import candidates
import complex as complex_products
import dense_table
import distributed
import integers_cpu
import split_k
import survey_table
import tuning

from tilewright.runtime.outputs import output

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("files", nargs="*", type=Path, help="default: results/*.json")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    asked = parser.parse_args()
    files = asked.files or sorted((HERE / "results").glob("*.json"))
    if not files:
        sys.exit("no results to render; run a benchmark with --json benchmarks/results/NAME.json")
    with output(asked.out) as file:
        file.write(page(files).encode())


def page(files: Sequence[Path]) -> str:
    """Return the page."""
    intro = (
        "# Measured results\n\n"
        "`python benchmarks/render.py` writes this page from [results/](results). [NOTES.md](NOTES.md)\n"
        "describes the measurements. A speed is ours relative to the other library's: the median and the\n"
        "95 % interval of the ratios within each round. Above 1 we are faster.\n"
    )
    parts = [intro]
    for file in files:
        parts.extend(section(found, file.name) for found in benchmarks(json.loads(file.read_text())))
    return "\n".join(parts)


def benchmarks(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the benchmarks in a file; a device run has several, after the outcomes of its parts."""
    if "parts" not in found:
        yield found
        return
    yield {"benchmark": "device_run", "commit": found["commit"], "rows": found["parts"]}
    for part in found["parts"]:
        if part["result"]:
            yield part["result"]


def section(found: dict[str, Any], file: str) -> str:
    """Return the section of a benchmark: its machine and its table."""
    head = f"\n## {found['benchmark']}\n\n{where(found)}\n\nFile: `{file}`\n\n"
    if seed := found.get("seed"):
        head += f"Seed `{seed}`. `survey_problems.py` states the distribution of each part.\n\n"
    if found["rows"] and (how := found["rows"][0].get("how", "")).startswith("processor time"):
        head += f"Counted: {how}.\n\n"
    return head + TABLES[found["benchmark"]](found["rows"]) + "\n"


def where(found: dict[str, Any]) -> str:
    """Describe the machine in a sentence."""
    record = found.get("machine")
    if record is None:
        return f"Source {found['commit'] or 'unknown'}."
    packages = ", ".join(f"{name} {version}" for name, version in record["packages"].items())
    device = record["device"]
    said = [f"{record['processor']}, {record['processors']} processors, {record['threads']} threads"]
    if device is not None:
        clocks = ", ".join(f"{name} {value}" for name, value in device["clocks"].items())
        said.append(
            f"{device['name']} ({device['arch']}), driver for CUDA {device['driver_version']}; {clocks}"
        )
    said.append(
        f"Python {record['python']}, {packages}, BLAS {record['blas']}, NVRTC {record['nvrtc'] or 'none'}"
    )
    said.append(f"source {record['commit'] or 'unknown'}")
    return "; ".join(said) + "."


def markdown(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """Return a table."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [head, rule, *lines])


def interval(values: Sequence[float]) -> str:
    """Return a median and its interval."""
    return f"{values[0]:.3f} [{values[1]:.3f}, {values[2]:.3f}]"


def gemm(rows: Sequence[dict[str, Any]]) -> str:
    """Speed relative to the other library."""
    # Hand-written kernels have their own columns: their speed relative to the other library.
    by_hand = sorted({name for row in rows for name in row.get("by_hand") or ()})
    lines = []
    for row in rows:
        problem = f"{row['dtype']} {'×'.join(map(str, row['shape']))} {row['layout']}"
        if "failed" in row:
            lines.append([problem, "failed", row["failed"].splitlines()[0], *[""] * 6])
            continue
        ours = row["timings"]["tilewright"]
        again = row["speed"].get("tilewright again")
        rivals = [name for name in row["speed"] if name != "tilewright again"]
        theirs = [[name, f"{row['gflops'][name] / 1e3:.4g}", interval(row["speed"][name])] for name in rivals]
        hand = row.get("by_hand") or {}
        lines.append(
            [
                problem,
                f"{ours['median_us']:.5g}",
                f"{row['gflops']['tilewright'] / 1e3:.4g}",
                *(theirs[0] if theirs else ["–"] * 3),
                interval(again) if again else "–",
                *(interval(hand[name]) if name in hand else "–" for name in by_hand),
            ]
        )
    head = ["problem", "us", "TFlops", "compared with", "TFlops", "speed", "ours again", *by_hand]
    return markdown(head, lines)


def launch_overhead(rows: Sequence[dict[str, Any]]) -> str:
    """Host time per call."""
    (row,) = rows
    lines = [
        [
            name,
            f"{timing['median_us']:.2f}",
            f"{timing['spread']:.1%}",
            interval(row["time_over_rival"][name]),
        ]
        for name, timing in row["timings"].items()
    ]
    return markdown(["call", "us per call", "spread", "time over `torch.mm(out=)`"], lines)


def startup(rows: Sequence[dict[str, Any]]) -> str:
    """Milliseconds of each step."""
    lines: list[list[str]] = []
    for row in rows:
        if "failed" in row:
            lines.append([row["what"], "failed", row["failed"].splitlines()[-1], ""])
        for step, (middle, low, high) in row["seconds"].items():
            lines.append([row["what"], step, f"{1e3 * middle:.1f}", f"{1e3 * low:.1f}–{1e3 * high:.1f}"])
    return markdown(["process", "step", "median ms", "range ms"], lines)


def device_run(rows: Sequence[dict[str, Any]]) -> str:
    """Outcome of each part."""
    lines = [
        [
            row["name"],
            "ok" if row["well"] else "**failed**",
            f"{row['seconds']:.1f}",
            row["ended"] or row["last"][:100],
        ]
        for row in rows
    ]
    return markdown(["part", "ended", "s", "last line"], lines)


def hopper_mutants(rows: Sequence[dict[str, Any]]) -> str:
    """Outcome of each mutant."""
    variants = ("as it is", "with the delay", "correct, with the delay")
    return markdown(
        ["mutant of examples/03", "the checker finds", *variants],
        [
            [row["mutant"], row["checker"], *(row["outcome"].get(each, "–") for each in variants)]
            for row in rows
        ],
    )


def im2col(rows: Sequence[dict[str, Any]]) -> str:
    """Bandwidths, and the share of the faster copy's."""
    lines = [
        [
            "×".join(map(str, row["shape"])),
            name,
            f"{timing['median_us']:.1f}",
            f"{row['gbytes'][name]:.1f}",
            f"{row['of_copy'][name]:.3f}",
        ]
        for row in rows
        for name, timing in row["timings"].items()
    ]
    return markdown(["image", "call", "us", "GB/s", "of the faster copy"], lines)


def kernel_counts(rows: Sequence[dict[str, Any]]) -> str:
    """Number of kernels for random shapes."""
    lines = [
        [row["dtype"], row["shapes"], row["kernels"], max(row["shapes_of_each"]), f"{row['known_ms']:.1f}"]
        for row in rows
    ]
    return markdown(["dtype", "shapes", "kernels", "shapes of the first", "known kernel, ms"], lines)


def levels(rows: Sequence[dict[str, Any]]) -> str:
    """Levels of examples/06 and 07, relative to the previous level and to the other library."""
    lines = [
        [
            f"{'×'.join(map(str, row['shape']))} {name}",
            f"{gflops / 1e3:.4g}",
            *(
                interval(found[name]) if name in found else "–"
                for found in (row["over_the_one_before"], row["over_the_rival"])
            ),
            row["resources"].get(name, {}).get("registers", "–"),
        ]
        for row in rows
        for name, gflops in row["gflops"].items()
    ]
    rival = next((row["rival"] for row in rows if row["rival"]), "a library")
    return markdown(["level", "TFlops", "over the one before", f"over {rival}", "registers"], lines)


def tutorial(rows: Sequence[dict[str, Any]]) -> str:
    """Kernels of the tutorial's steps, relative to the other library."""
    lines = [
        [
            f"{'×'.join(map(str, row['shape']))} {row['step']}",
            f"{row['us']:.4g}",
            f"{row['tflops']:.4g}",
            interval(row["speed"]),
        ]
        for row in rows
    ]
    return markdown(["step", "us", "TFlops", f"over {rows[0]['rival']}"], lines)


def conflicts(rows: Sequence[dict[str, Any]]) -> str:
    """Wavefronts of shared memory by kind, bank conflicts, and the hardware's count of conflicts."""
    kinds = ("loads", "ldmatrix", "stores", "stmatrix", "cp.async")
    names = (*(f"wavefronts of {kind}" for kind in kinds), "all wavefronts", "bank conflicts")
    waits = "conflicts and waits for other warps"
    lines = [
        [f"{row['example']} {row['shape']}", *(beside(row, name) for name in names), beside(row, waits)]
        for row in rows
    ]
    said = "Wavefronts of shared memory, as predicted; measured numbers that differ follow in bold.\n\n"
    failed = [f"\n{row['example']}: {missing(row)}." for row in rows if missing(row)]
    head = ["example", *kinds, "all", "conflicts", "conflicts and waits"]
    return said + "\n".join([markdown(head, lines), *failed])


def missing(row: dict[str, Any]) -> str:
    """Return a line that says why figures are missing; empty if none is."""
    return (row["failed"] or row["unknown"]).partition("\n")[0]


def beside(row: dict[str, Any], name: str) -> str:
    """Return a predicted figure, and the measured one if it differs."""
    predicted, measured = row["predicted"].get(name), row["measured"].get(name)
    if measured is None or predicted is None:
        known = predicted if measured is None else measured
        return "–" if known is None else f"{known:,.0f}"
    return f"{predicted:,.0f}" if measured == predicted else f"{predicted:,.0f}, **{measured:,.0f}**"


def beside_before(rows: Sequence[dict[str, Any]]) -> str:
    """Kernels of two source trees."""
    return markdown(against.HEAD, [against.columns(row) for row in rows])


def hopper_dtypes(rows: Sequence[dict[str, Any]]) -> str:
    """Variants of a kernel relative to cuBLAS, and their errors."""
    head = ["problem", "variant", "TFlops", "speed", "error of its bound", "error in norm"]
    lines = []
    for row in rows:
        if "failed" in row:
            lines.append([row["problem"], row["variant"], "failed", row["failed"].splitlines()[0], "", ""])
            continue
        lines.append(
            [row[key] for key in ("problem", "variant", "tflops", "speed", "error_of_bound", "norm")]
        )
    return markdown(head, lines)


def dense(rows: Sequence[dict[str, Any]]) -> str:
    """Eight-line kernels relative to cuBLAS, with minimum and goal."""
    return markdown(dense_table.HEAD, [*dense_table.lines(rows)])


def tuned(rows: Sequence[dict[str, Any]]) -> str:
    """Time of tuning, and the choice relative to the best."""
    return markdown(tuning.HEAD, tuning.lines(list(rows)))


def swept(rows: Sequence[dict[str, Any]]) -> str:
    """Best number of parts of K, and the rules' choice."""
    return markdown(split_k.HEAD, [*split_k.lines(rows)])


def proposed(rows: Sequence[dict[str, Any]]) -> str:
    """The fastest schedule of each family and its estimate; or the fastest of all records."""
    if rows and "times" in rows[0]:
        return markdown(("problem", "of", "fastest us", "library us", "fastest"), [*map(_fastest, rows)])
    return markdown(candidates.HEAD, [*candidates.lines(rows)])


def _fastest(row: dict[str, Any]) -> list[object]:
    schedule, times = min(row["times"].items(), key=lambda one: one[1][0])
    what = " × ".join(map(str, row["shape"])) + (f", {row['items']} items" if row["items"] else "")
    what += f" in {len(row['sizes'])} groups" if row["sizes"] else ""
    library = f"{row['library_us']:.2f}" if row["library_us"] else ""
    return [f"{row['dtype']} {row['layout']} {what}", row["measured"], f"{times[0]:.2f}", library, schedule]


def timed(rows: Sequence[dict[str, Any]]) -> str:
    """Calls with their times, by problem."""
    problem = next(name for name in ("list", "problem") if name in rows[0])
    head = (problem, "call", "µs", *(["host µs"] if "host_us" in rows[0] else []))
    lines = []
    for row in rows:
        line = [row[problem], row["call"], f"{row['us']:.1f}"]
        lines.append([*line, *([f"{row['host_us']:.0f}"] if "host_us" in row else [])])
    return markdown(head, lines)


def accurate(rows: Sequence[dict[str, Any]]) -> str:
    """Time and errors: the largest error over the sum of magnitudes, in 2**-24."""
    kinds = list(rows[0]["errors"])
    lines = []
    for row in rows:
        tflops = 2 * row["n"] ** 3 / row["us"] / 1e6
        found = [f"{row['errors'][kind][0]:.3g}" for kind in kinds]
        lines.append(
            [row["n"], row["call"], f"{row['us']:.1f}", f"{tflops:.1f}", f"{row['speed']:.2f}", *found]
        )
    return markdown(("n", "call", "µs", "TFlops", "over cuBLAS f32", *kinds), lines)


def errors(rows: Sequence[dict[str, Any]]) -> str:
    """Largest errors over the sum of magnitudes, in 2**-24 (f64: 2**-53), and in norm; and the rival's."""
    kinds, lines = list(rows[0]["ours"]), []
    for row in rows:
        for who, name in (("ours", row["grade"]), ("rival", row["beside"])):
            if found := row[who]:
                lines.append([name, *(f"{found[kind][0]:.3g}; {found[kind][1]:.1e}" for kind in kinds)])
    legend = "A cell holds the largest error of an element over the sum of the sizes of its products, in\n"
    legend += "2⁻²⁴ (f64: 2⁻⁵³); then the Frobenius norm of all errors over that of the exact result.\n\n"
    return legend + markdown(("x".join(map(str, rows[0]["extents"])), *kinds), lines)


def complexes(rows: Sequence[dict[str, Any]]) -> str:
    """Complex products relative to six launches and other libraries, by method."""
    return markdown(complex_products.HEAD, [cells for row in rows for cells in complex_products.columns(row)])


def over_ranks(rows: Sequence[dict[str, Any]]) -> str:
    """Products over ranks: times, the most that overlap can give, and the time relative to both limits."""
    lines = [distributed.columns(row) for row in rows if "failed" not in row]
    lines += [[f"{row['kind']}, {row['of']}", "failed", row["failed"]] for row in rows if "failed" in row]
    return markdown(distributed.HEAD, lines)


def integers(rows: Sequence[dict[str, Any]]) -> str:
    """Products of i8 relative to f32, by instruction set."""
    return markdown(integers_cpu.HEAD, [integers_cpu.columns(row) for row in rows])


def sum_bits(rows: Sequence[dict[str, Any]]) -> str:
    """Model of each atom's sums, and whether it agrees with the hardware bit by bit."""
    head = ["atom", "bits kept", "products in a sum", "rounding", "agrees"]
    models = [(row, row["model"]) for row in rows]
    return markdown(
        head,
        [[row["atom"], one["bits"], one["group"], one["rounding"], row["agrees"]] for row, one in models],
    )


def surveyed(rows: Sequence[dict[str, Any]]) -> str:
    """Speeds of the survey by part, its slowest problems, errors of estimates, and regret."""
    parts = [f"{title}.\n\n{markdown(names, found)}" for title, names, found in survey_table.tables(rows)]
    return "\n\n".join([*parts, survey_table.counts(rows) + "."])


def models(rows: Sequence[dict[str, Any]]) -> str:
    """Milliseconds of a step, and its speed relative to PyTorch's layers; graphs are compared with graphs."""
    lines = []
    for row in rows:
        for how, ms in row["ms"].items():
            peer = row["ms"]["eager, graph" if how.endswith(", graph") else "eager"]
            lines.append([row["problem"], how, f"{ms:.3f}", f"{peer / ms:.2f}"])
    return markdown(["step", "by", "ms", "of PyTorch's layers"], lines)


TABLES = {
    "survey": surveyed,
    "models": models,
    "distributed": over_ranks,
    "complex": complexes,
    "sum_bits": sum_bits,
    "integers_cpu": integers,
    "scaled_cpu": gemm,
    "errors": errors,
    **dict.fromkeys(("accurate", "splittings"), accurate),
    **dict.fromkeys(("epilogues", "int4", "lists", "permuted", "rows", "scaled"), timed),
    "tuning": tuned,
    "split_k": swept,
    "candidates": proposed,
    "dense": dense,
    "schedules": dense,
    "hopper_dtypes": hopper_dtypes,
    "against": beside_before,
    "conflicts": conflicts,
    "im2col": im2col,
    "kernel_counts": kernel_counts,
    "levels": levels,
    "tutorial": tutorial,
    "hopper_mutants": hopper_mutants,
    "gemm_cpu": gemm,
    "gemm_cuda": gemm,
    "attention_cpu": gemm,
    "attention_cuda": gemm,
    "attention_backward_cuda": gemm,
    "attention_varlen_cuda": gemm,
    "attention_rows_cuda": gemm,
    "attention_loss_cuda": gemm,
    "chain_cuda": gemm,
    "launch_overhead": launch_overhead,
    "startup": startup,
    "device_run": device_run,
}


if __name__ == "__main__":
    main()
