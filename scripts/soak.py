"""Launch new shapes on several threads for some minutes, and check that the process does not grow.

    python scripts/soak.py --minutes 30 --threads 4

Each thread multiplies random matrices.  Dtypes, layouts, batches, extents and constants change from call to
call, and every integer result is compared with NumPy's.  Each sample is a row of a table: launches, resident
memory, file descriptors, memory mappings and threads.  The first half of the run fills the caches.
Executables and cached expressions have bounds, which the first half must reach: each executable on a CPU has
about five mappings, and 256 executables are kept.  In the second half nothing may grow: the median of its
last third is compared with the maximum of its first third.  Exits with 1 if memory grew by more than 5 %, or
descriptors, mappings or threads by more than 2 %, and with 2 if a result is wrong.

Linux only: the script reads /proc/self.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import median

import numpy as np

import tilewright as tw

ALLOWED = {"resident_mib": 1.05, "descriptors": 1.02, "mappings": 1.02, "threads": 1.02}
"""Factor by which each quantity may grow in the second half of a run."""

KINDS = (np.float32, np.float16, np.float64, np.int8)
LARGEST = {"reference": 40, "cpu": 200}
"""The largest extent of a matrix on each target."""


@dataclass(frozen=True)
class Sample:
    """Memory, descriptors, mappings and threads of the process at one moment."""

    seconds: int
    launches: int
    resident_mib: float
    descriptors: int
    mappings: int
    threads: int


class Work:
    """Random launches on several threads.

    Args:
        targets: where they run.
        seed: of the first thread; the others have the next numbers.
    """

    def __init__(self, targets: tuple[str, ...], seed: int) -> None:
        self.targets = targets
        self.seed = seed
        self.launches = 0
        self.problem: Exception | None = None
        self.stop = threading.Event()

    def run(self, thread: int) -> None:
        """Launch until told to stop, or until a launch fails."""
        drawn = np.random.default_rng(self.seed + thread)
        try:
            while not self.stop.is_set():
                self._launch(drawn)
                self.launches += 1
        except Exception as problem:  # noqa: BLE001 of any kind: it is raised by the main thread
            self.problem = problem
            self.stop.set()

    def _launch(self, drawn: np.random.Generator) -> None:
        target = self.targets[drawn.integers(len(self.targets))]
        kind = KINDS[drawn.integers(len(KINDS))]
        m, n, k = (int(extent) for extent in drawn.integers(1, LARGEST[target], 3))
        if drawn.random() < 0.5:
            m, n, k = (8 * -(-extent // 8) for extent in (m, n, k))
        a, b = (drawn.integers(-2, 3, shape).astype(kind) for shape in ((m, k), (k, n)))
        a, b = (np.asfortranarray(array) if drawn.random() < 0.5 else array for array in (a, b))
        exact = a.astype(np.int64) @ b.astype(np.int64)
        form = int(drawn.integers(4))
        if form == 0:
            batch = int(drawn.integers(1, 4))
            found, exact = tw.matmul(np.stack([a] * batch), b, target=target), np.stack([exact] * batch)
        elif form == 1:
            found, exact = tw.einsum("mk,kn->nm", a, b, target=target), exact.T
        elif form == 2 and kind != np.int8:
            alpha = int(drawn.integers(2, 5))
            found, exact = tw.matmul(a, b, alpha=float(alpha), target=target), alpha * exact
        else:
            found = tw.matmul(a, b, target=target)
        if not np.array_equal(np.asarray(found), exact):
            raise AssertionError(f"wrong on {target}: form {form}, {m} x {n} x {k} of {kind.__name__}")


def sample(started: float, launches: int) -> Sample:
    """Return a sample of this process."""
    status = Path("/proc/self/status").read_text()
    read = {line.partition(":")[0]: line.partition(":")[2].split() for line in status.splitlines()}
    return Sample(
        round(time.monotonic() - started),
        launches,
        round(int(read["VmRSS"][0]) / 1024, 1),
        len(os.listdir("/proc/self/fd")),
        len(Path("/proc/self/maps").read_text().splitlines()),
        int(read["Threads"][0]),
    )


def grown(samples: list[Sample]) -> list[str]:
    """Return a sentence for each quantity that grew in the second half.

    Example:
        >>> flat = [Sample(s, s, 100.0, 9, 50, 4) for s in range(12)]
        >>> grown(flat), grown([*flat[:8], *(Sample(s, s, 120.0, 9, 50, 4) for s in range(4))])
        ([], ['resident_mib grew from 100.0 to 120.0'])
    """
    half = samples[len(samples) // 2 :]
    third = max(len(half) // 3, 1)
    found = []
    for name, factor in ALLOWED.items():
        first = max(getattr(one, name) for one in half[:third])
        last = median(getattr(one, name) for one in half[-third:])
        if last > first * factor:
            found.append(f"{name} grew from {first} to {last}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", default="reference,cpu", help="reference, cpu, or both with a comma")
    parser.add_argument("--samples", type=int, default=30, help="rows of the table")
    given = parser.parse_args()
    work = Work(tuple(given.targets.split(",")), given.seed)
    threads = [threading.Thread(target=work.run, args=(at,), daemon=True) for at in range(given.threads)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    samples: list[Sample] = []
    print(*(f"{field.name:>13}" for field in fields(Sample)))
    for turn in range(given.samples):
        work.stop.wait(max(started + (turn + 1) * given.minutes * 60 / given.samples - time.monotonic(), 0))
        if work.problem is not None:
            print(f"{type(work.problem).__name__}: {work.problem}", file=sys.stderr)
            return 2
        samples.append(sample(started, work.launches))
        print(*(f"{value:>13}" for value in astuple(samples[-1])), flush=True)
    work.stop.set()
    for thread in threads:
        thread.join()
    for sentence in (found := grown(samples)):
        print(sentence)
    print("not flat" if found else "flat")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
