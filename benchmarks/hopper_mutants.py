"""Mutants of the Hopper GEMM on a GPU: those that the checker reports give wrong results or hang.

    python benchmarks/hopper_mutants.py [--json results/hopper_mutants.json] [--only NAME ...] [--compile]

A race is visible only if one side is late.  Each mutant therefore runs twice: unchanged, and with some warps
of every block delayed at one place of the generated text.  The correct kernel runs first with the same delay,
and must give the right result, since a delay alone changes nothing.  Each row has its own process with a time
limit, because a kernel that hangs or fails ends its process.  ``--compile`` compiles every text and launches
none.
"""

from __future__ import annotations

import json
import queue
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
from delays import Case, delayed, rows
from reporting import ROOT, arguments, keep, table

from tilewright import dtypes
from tilewright.errors import CompileError
from tilewright.ir.kernel import Kernel
from tilewright.ir.mma import TiledMma
from tilewright.runtime.arrays import describe
from tilewright.runtime.backends import backend_named
from tilewright.runtime.binding import bind
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.driver import LoadedFunction
from tilewright.runtime.executable import Executable
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import atoms, cuda

ARCH = "sm_90a"
LIMIT_S = 6.0
"""Seconds for a launch and the comparison of its result: far more than a correct launch needs."""
START_S = 60.0
"""Seconds to import, trace and compile before the first launch, by several processes at once."""
AT_ONCE = 4
LAUNCHES, DELAYED_LAUNCHES = 100, 10
SECONDS = 12.0
"""Seconds after which a variant is not launched again, if it ran at least 10 times."""
CORRECT, PLAIN, LATE = "correct, with the delay", "as it is", "with the delay"
WELL = ("right", "compiles")
FOUND = ROOT / "tests" / "hazards" / "golden" / "hopper_mutants.txt"
EXAMPLE = ROOT / "examples" / "03_hopper_gemm.py"


def main() -> None:
    asked = arguments(__doc__)
    asked.add_argument("--only", action="append", help="run this mutant; may be repeated")
    asked.add_argument("--compile", action="store_true", help="compile only: needs no GPU")
    asked.add_argument("--one", help="run this mutant in this process")
    chosen = asked.parse_args()
    if chosen.one:
        run(chosen.one)
        return
    names = chosen.only or list(rows())
    tried = compiled if chosen.compile else outcomes
    kept: list[dict[str, Any]] = []
    with ThreadPoolExecutor(1 if chosen.compile else AT_ONCE) as pool:
        for name, outcome in zip(names, pool.map(tried, names), strict=True):
            kept.append({"mutant": name, "checker": found(name), **rows()[name].record(), "outcome": outcome})
            print(json.dumps(kept[-1]), flush=True)
            keep(chosen, "hopper_mutants", "cuda", kept)
    print(table(("mutant", PLAIN, LATE, CORRECT), [line(row) for row in kept]))
    wrong = [row["mutant"] for row in kept if not row["outcome"].get(CORRECT, "").startswith(WELL)]
    sys.exit(f"the correct kernel is wrong under the delay of: {', '.join(wrong)}" if wrong else 0)


def line(row: dict[str, Any]) -> list[str]:
    return [row["mutant"], *(row["outcome"].get(variant, "-") for variant in (PLAIN, LATE, CORRECT))]


def found(name: str) -> str:
    """Return the checker's findings, from the table that the tests keep."""
    for text in FOUND.read_text(encoding="utf-8").splitlines():
        if text.startswith(f"{name}  "):
            return text.removeprefix(name).strip()
    raise KeyError(name)


# ---------------------------------------------------------------- in the process that watches


def outcomes(name: str) -> dict[str, str]:
    """Run the variants of a row in a separate process, and return their outcomes."""
    return watched((sys.executable, __file__, "--one", name), LIMIT_S)


def watched(command: Sequence[str], limit_s: float) -> dict[str, str]:
    """Read a process's report of each variant; end the process if a variant takes too long."""
    told: dict[str, str] = {}
    begun, patience_s = "start", START_S
    said: queue.Queue[dict[str, str]] = queue.Queue()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        listener = threading.Thread(target=_listen, args=(process, said))
        listener.start()
        try:
            while "ended" not in (message := said.get(timeout=patience_s)):
                if "begins" in message:
                    begun, patience_s = message["begins"], limit_s
                else:
                    told[begun], patience_s = message["outcome"], START_S
            assert process.stderr is not None
            errors = process.stderr.read().strip().splitlines() or [""]
            if process.wait():
                told[begun] = f"fails: {errors[-1][:200]}"
        except queue.Empty:
            told[begun] = f"hangs: not done after {patience_s:g} s"
            process.kill()
        listener.join()
    return told


def _listen(process: subprocess.Popen[str], said: queue.Queue[dict[str, str]]) -> None:
    assert process.stdout is not None
    for text in process.stdout:
        if text.startswith("{"):
            said.put(json.loads(text))
    said.put({"ended": ""})


# ---------------------------------------------------------------- the variants of a row


def variants(name: str, inputs: Sequence[Any]) -> Iterator[tuple[str, Kernel, str]]:
    """Return name, kernel and text of each variant of a row, the correct kernel first."""
    sys.path.insert(0, str(ROOT))
    from tests.hazards.mutate import mutants

    case = rows()[name]
    kernel = bound(case).trace(*inputs)
    [mutant] = mutants(kernel, {name})
    wrong = mutant.kernel
    assert wrong is not None
    texts = {which: cuda.emit(each, ARCH).text for which, each in (("", kernel), (name, wrong))}
    yield CORRECT, kernel, delayed(texts[""], case.delay)
    yield PLAIN, wrong, texts[name]
    if case.delay is not None:
        yield LATE, wrong, delayed(texts[name], case.delay)


def bound(case: Case) -> Any:
    mma = TiledMma(atoms.wgmma(dtypes.bf16, case.columns))
    kernel = runpy.run_path(str(EXAMPLE))["hopper_gemm"]
    return kernel.bind(mma=mma, stages=case.stages, buffers=case.buffers, blocks=case.blocks, group=8)


def compiled(name: str) -> dict[str, str]:
    """Compile each variant, and return the compiler's messages."""
    m, n, k = rows()[name].shape
    inputs = [np.zeros(shape, ml_dtypes.bfloat16) for shape in ((m, k), (n, k), (m, n))]
    return {variant: _compile(text)[1] for variant, _, text in variants(name, inputs)}


def _compile(text: str) -> tuple[bytes, str]:
    try:
        return compile_text(text, ARCH).cubin, "compiles"
    except CompileError as error:
        codes = [part for part in str(error).split() if part.startswith("(C7")]
        return b"", f"refused by the compiler {' '.join(codes)}".strip()


# ---------------------------------------------------------------- in the process that launches


class Loaded:
    """Machine code in the form that launches need."""

    def __init__(self, cubin: bytes, entry: str, shared_bytes: int) -> None:
        self._function = CUDA_DRIVER.load(cubin, entry, 0, shared_bytes)

    def on(self, index: int) -> LoadedFunction:
        return self._function


def run(name: str) -> None:
    """Launch each variant many times on random data and count the wrong results."""
    m, n, k = rows()[name].shape
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16) for shape in ((m, k), (n, k)))
    exact = a.astype(np.float32) @ b.astype(np.float32).T
    on_device = [DeviceArray.of(array) for array in (a, b, np.empty((m, n), ml_dtypes.bfloat16))]
    for variant, kernel, text in variants(name, on_device):
        cubin, told = _compile(text)
        print(json.dumps({"begins": variant}), flush=True)
        if cubin:
            times = LAUNCHES if variant is PLAIN else DELAYED_LAUNCHES
            told = _launched(variant, kernel, cubin, rows()[name], on_device, exact, times)
        print(json.dumps({"outcome": told}), flush=True)


def _launched(
    variant: str,
    kernel: Kernel,
    cubin: bytes,
    case: Case,
    on_device: list[DeviceArray],
    exact: Any,
    times: int,
) -> str:
    listing = cuda.emit(kernel, ARCH)
    loaded = Loaded(cubin, listing.entry, listing.shared_bytes)
    executable = Executable("cuda", ARCH, kernel, listing, handle=loaded)
    infos = {name: describe(array) for name, array in zip("ABC", on_device, strict=True)}
    parameters = bound(case).program.parameters
    prepared = backend_named("cuda").prepare(executable, bind(kernel, infos, {}), parameters)
    out = on_device[2]
    bound_on_error = 2.0**-8 * np.abs(exact) + 1e-2
    worst = wrong = launches = 0
    end = time.monotonic() + SECONDS
    while launches < times and (launches < DELAYED_LAUNCHES or time.monotonic() < end):
        print(json.dumps({"begins": variant}), flush=True)  # and the time limit with it
        launches += 1
        CUDA_DRIVER.call("cuMemsetD8Async", out.memory.address, 0xFF, out.memory.size_bytes, 0)  # NaN
        prepared.launch(on_device, [array.memory.address for array in on_device], None)
        missed = int((~(np.abs(out.host().astype(np.float32) - exact) <= bound_on_error)).sum())
        wrong, worst = wrong + (missed > 0), max(worst, missed)
    if wrong:
        return f"wrong: {wrong} of {launches} launches, up to {worst} elements"
    return f"right: {launches} launches"


if __name__ == "__main__":
    main()
