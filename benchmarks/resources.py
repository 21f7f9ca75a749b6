"""Compile time and resources of the examples' CUDA kernels, in this source tree and in an older one.

    git worktree add --detach ../before d7a2864
    python benchmarks/resources.py --before ../before [--turns 3] [--texts DIRECTORY] [--only 03]

The table has registers, spilled bytes, shared bytes, characters of text, and CPU seconds of a cold
compilation: those of tracing, lowering and emitting, and those of NVRTC. No GPU is needed. Each tree runs its
own examples in its own process, in turns; seconds are the least of all turns. "same code" means that the
machine code is byte-equal. The exit status is 1 if a kernel of this tree takes more registers, spills more,
or fails to compile.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from inspect import signature
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

HERE = Path(__file__).resolve()
ROOT = HERE.parents[1]
ARCH = "sm_90a"
FIGURES = {
    "registers": r"Used (\d+) registers",
    "spill_store_bytes": r"(\d+) bytes spill stores",
    "spill_load_bytes": r"(\d+) bytes spill loads",
}
"""Patterns of the assembler's figures."""


def zeros(dtype: Any, *shape: int, ragged: bool = False) -> np.ndarray:
    """Return an array with aligned rows; ragged: rows have an odd number of elements and no gaps."""
    row = shape[-1] - 1 if ragged else shape[-1]
    elems = int(np.prod(shape[:-1])) * row
    kind = np.dtype(dtype)
    memory = np.zeros(elems * kind.itemsize + 256, np.uint8)
    start = -memory.ctypes.data % 256
    flat = memory[start : start + elems * kind.itemsize].view(kind)
    return flat.reshape(*shape[:-1], row)


def matrices(dtype: Any, ragged: bool = False, out: Any = None) -> list[np.ndarray]:
    """Return A, B and C of a GEMM."""
    return [zeros(kind, 512, 512, ragged=ragged) for kind in (dtype, dtype, out or dtype)]


def heads(dtype: Any, depth: int) -> list[Any]:
    """Return Q, K, V and O of an attention, its scale and its shift."""
    return [*(zeros(dtype, 2, 4, 512, depth) for _ in range(4)), 0.125, 0]


def kernels(examples: Path) -> Iterable[tuple[str, Callable[[], tuple[Any, list[Any]]]]]:
    """Return each kernel's name, and a function that makes it with its arguments."""

    def example(number: str) -> dict[str, Any]:
        [path] = examples.glob(f"{number}_*.py")
        return runpy.run_path(str(path))

    half, bf16 = np.float16, ml_dtypes.bfloat16
    basic, hopper, optimized = example("02"), example("03"), example("04")
    unrolled, warps, levels, fused = example("05"), example("06"), example("07"), example("08")
    dtypes = {"f32": np.float32, "f16": half, "bf16": bf16, "i8": np.int8}
    padded = {str(dtype): dtype for dtype in basic["ATOMS"]}

    def bare(found: dict[str, Any], name: str) -> Any:
        """Bind the example, also in a tree where it takes the dtype."""
        given = basic["ATOMS"][padded[name]]
        of_dtype = signature(found["padded"]).parameters.get("dtype")
        return found["padded"](padded[name], given) if of_dtype else found["padded"](given)

    yield "02 large f16", lambda: (basic["LARGE"], matrices(half))
    for name in padded:
        dtype = dtypes[name]
        out = np.int32 if name == "i8" else dtype
        yield (
            f"02 padded {name}",
            lambda name=name, dtype=dtype, out=out: (bare(basic, name), matrices(dtype, True, out)),
        )
    for columns in hopper["STAGES"]:
        for ragged in (False, True):
            shape = [zeros(bf16, 512, 512 - 8 * ragged) for _ in range(3)]
            yield (
                f"03 bf16 columns={columns}{' ragged' * ragged}",
                lambda columns=columns, shape=shape: (
                    hopper["bind"](hopper["tw"].bf16, columns=columns),
                    shape,
                ),
            )
    yield "04 large f16", lambda: (optimized["LARGE"], matrices(half))
    for name in padded:
        dtype = dtypes[name]
        out = np.int32 if name == "i8" else dtype
        yield (
            f"04 padded {name}",
            lambda name=name, dtype=dtype, out=out: (bare(optimized, name), matrices(dtype, True, out)),
        )
    image = [zeros(np.float32, 32, 9, 9, 7, 4, 64), zeros(np.float32, 4, 7840, 1728)]
    yield "05 large f32", lambda: (unrolled["LARGE"], image)
    for dtype, bound in warps["BOUND"].items():
        yield (
            f"06 {dtype}",
            lambda dtype=dtype, bound=bound: (
                bound,
                matrices(dtypes[str(dtype)], out=np.int32 if str(dtype) == "i8" else None),
            ),
        )
    for level in levels["LEVELS"]:
        yield f"07 {level.name} f16", lambda level=level: (levels["bind"](level), matrices(half))
    wide = {"tile": (128, 256, 32), "warps": (2, 4)}
    yield "07 wide f16", lambda: (levels["bind"](levels["prefetched"], **wide), matrices(half))
    for name, dtype in (("f16", half), ("bf16", bf16)):
        arrays = [*(zeros(dtype, 512, 512) for _ in range(3)), zeros(np.float32, 512, 512)]
        yield f"08 {name}", lambda dtype=dtype, arrays=arrays: (fused["bound"](dtype), arrays)
    for number in ("09", "10"):
        found = example(number)
        for depth, dtype in ((64, half), (128, bf16)):
            for causal in (False, True):
                yield (
                    f"{number} {depth} {'bf16' if dtype is bf16 else 'f16'}{' causal' * causal}",
                    lambda found=found, depth=depth, dtype=dtype, causal=causal: (
                        found["bound"](dtype, depth, causal=causal),
                        heads(dtype, depth),
                    ),
                )


class Compiler:
    """Records NVRTC's text, log, code and seconds."""

    def __init__(self) -> None:
        from cuda.bindings import nvrtc

        self.text = self.log = self.code = ""
        self.seconds = 0.0
        create, compile_, log, code = (
            getattr(nvrtc, f"nvrtc{name}")
            for name in ("CreateProgram", "CompileProgram", "GetProgramLog", "GetCUBIN")
        )

        def created(text: bytes, *rest: Any) -> Any:
            self.text = text.decode()
            return create(text, *rest)

        def compiled(*given: Any) -> Any:
            start = time.process_time()
            found = compile_(*given)
            self.seconds += time.process_time() - start
            return found

        def logged(program: Any, into: bytes) -> Any:
            found = log(program, into)
            self.log = into.decode(errors="replace")
            return found

        def coded(program: Any, into: bytes) -> Any:
            found = code(program, into)
            self.code = hashlib.sha256(into).hexdigest()
            return found

        nvrtc.nvrtcCreateProgram, nvrtc.nvrtcCompileProgram = created, compiled
        nvrtc.nvrtcGetProgramLog, nvrtc.nvrtcGetCUBIN = logged, coded

    def figures(self) -> dict[str, int]:
        """Return the assembler's figures."""
        return {name: sum(map(int, re.findall(found, self.log))) for name, found in FIGURES.items()}


def one_tree(examples: Path, only: str) -> None:
    """Compile this process's kernels and print the figures of each as a line of JSON."""
    compiler = Compiler()
    chosen = [(name, make) for name, make in kernels(examples) if name.startswith(only)]
    warm = next(iter(kernels(examples)))[1]()
    warm[0].compile(*warm[1], target="cuda", arch="sm_80")  # load everything that is loaded only once
    for name, make in chosen:
        compiler.seconds, found = 0.0, {"kernel": name}
        try:
            bound, given = make()
            start = time.process_time()
            compiled = bound.compile(*given, target="cuda", arch=ARCH)
            seconds = time.process_time() - start - compiler.seconds
            found |= {
                figure: sum(map(int, re.findall(pattern, compiler.log)))
                for figure, pattern in FIGURES.items()
            }
            found |= {
                "shared_bytes": compiled.resources.get("shared_bytes"),
                "text_chars": len(compiler.text),
                "emit_seconds": seconds,
                "nvrtc_seconds": compiler.seconds,
                "code": compiler.code,
                "text": compiler.text,
            }
        except Exception as error:  # noqa: BLE001 the other kernels are still to be compared
            found["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(found), flush=True)


def run(tree: Path, only: str) -> dict[str, dict[str, Any]]:
    """Return the figures of a source tree's kernels by name, without caches."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            **os.environ,
            "PYTHONPATH": str(tree / "src"),
            "TILEWRIGHT_CACHE_DIR": cache,
            "CUDA_VISIBLE_DEVICES": "",
        }
        command = [sys.executable, str(HERE), "--examples", str(tree / "examples"), "--only", only]
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{tree}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["kernel"]: row for row in rows}


def least(turns: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the last turn's figures with the least seconds of all turns."""
    found = turns[-1]
    for name, row in found.items():
        for key in ("emit_seconds", "nvrtc_seconds"):
            if key in row:
                row[key] = min(turn[name][key] for turn in turns if key in turn.get(name, {}))
    return found


def _change(before: dict[str, Any] | None, after: dict[str, Any], key: str, form: str = "d") -> str:
    new = format(after[key], form)
    old = new if before is None else format(before[key], form)
    return new if old == new else f"{old} -> {new}"


def compared(before: dict[str, Any] | None, after: dict[str, Any]) -> tuple[list[str], bool]:
    """Return a row of the table, and whether this tree is worse."""
    if "error" in after:
        return [after["kernel"], after["error"]], True
    known = before if before and "error" not in before else None
    cells = [
        after["kernel"],
        *(
            _change(known, after, key)
            for key in ("registers", "spill_store_bytes", "shared_bytes", "text_chars")
        ),
        *(_change(known, after, key, ".2f") for key in ("emit_seconds", "nvrtc_seconds")),
    ]
    cells.append("" if known is None else "same code" if known["code"] == after["code"] else "other code")
    worse = known is not None and any(after[key] > known[key] for key in FIGURES)
    return [*cells, "WORSE" if worse else ""], worse


def write(directory: Path, tree: str, rows: dict[str, dict[str, Any]]) -> None:
    """Write the texts, for comparison by `diff -r`."""
    place = directory / tree
    place.mkdir(parents=True, exist_ok=True)
    for name, row in rows.items():
        if "text" in row:
            (place / f"{name.replace(' ', '_')}.cu").write_text(row["text"])


def report(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> bool:
    """Print the table; return whether a kernel is worse."""
    rows = [compared(before.get(name), row) for name, row in after.items()]
    head = ["kernel", "registers", "spilled", "shared", "characters", "emit s", "NVRTC s", "", ""]
    lines = [head, *(cells for cells, _ in rows)]
    widths = [max(len(line[at]) for line in lines if at < len(line) > 2) for at in range(len(head))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip())
    for name, found in (("before", before), ("after", after)):
        sums = [
            sum(row.get(key, 0) for row in found.values())
            for key in ("text_chars", "emit_seconds", "nvrtc_seconds")
        ]
        if found:
            print(f"{name}: {sums[0]} characters, {sums[1]:.2f} s to emit, {sums[2]:.2f} s of NVRTC")
    return any(worse for _, worse in rows)


def main() -> None:
    """Compare two trees, or show one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--before", type=Path, help="an older source tree")
    parser.add_argument("--turns", type=int, default=1, help="compilations of everything by each tree")
    parser.add_argument("--only", default="", help="prefix of the kernels' names, such as 03")
    parser.add_argument("--texts", type=Path, help="keep the generated texts in this directory")
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    parser.add_argument("--examples", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.examples:
        one_tree(asked.examples, asked.only)
        return
    turns: dict[str, list[dict[str, dict[str, Any]]]] = {"before": [], "after": []}
    for _ in range(asked.turns):
        if asked.before:
            turns["before"].append(run(asked.before.resolve(), asked.only))
        turns["after"].append(run(ROOT, asked.only))
    found = {name: least(each) if each else {} for name, each in turns.items()}
    for name, rows in found.items() if asked.texts else ():
        write(asked.texts, name, rows)
    if asked.json:
        figures = {
            name: [{key: value for key, value in row.items() if key != "text"} for row in rows.values()]
            for name, rows in found.items()
        }
        asked.json.write_text(
            json.dumps({"benchmark": "resources", "arch": ARCH, **figures}, indent=1) + "\n"
        )
    sys.exit(report(found["before"], found["after"]))


if __name__ == "__main__":
    main()
