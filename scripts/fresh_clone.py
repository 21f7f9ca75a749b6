"""Run the README's two commands in new clones, with and without a C++ compiler on PATH, and report times.

Every run has an empty cache directory, so it downloads packages and compiles kernels again. The clones are in
a directory whose name contains a space. They contain the committed files, not the working tree.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMPILER = re.compile(
    r"(.*-)?(cc|c\+\+|c[89]9|gcc|g\+\+|cpp|tcc|icpx|clang|clang\+\+|clang-cl|clang-cpp)(-[\d.]+)?"
)
RUNS = (("demo", "set up and run"), ("demo", "run again"), ("test", "set up and run"), ("test", "run again"))


def path_without_compilers(directory: Path) -> str:
    """Link every program on PATH into one directory, except compilers of C and C++."""
    directory.mkdir()
    for entry in os.get_exec_path():
        for program in Path(entry).iterdir() if Path(entry).is_dir() else ():
            link = directory / program.name
            if not COMPILER.fullmatch(program.name) and not link.is_symlink():
                link.symlink_to(program)
    left = [
        name for name in ("cc", "c++", "gcc", "g++", "clang++") if shutil.which(name, path=str(directory))
    ]
    assert not left, f"still on PATH: {left}"
    return str(directory)


def timed_run(clone: Path, command: str, search_path: str, cache: Path, log: Path) -> tuple[float, int]:
    environment = {**os.environ, "PATH": search_path, "XDG_CACHE_HOME": str(cache)}
    begin = time.perf_counter()
    with log.open("w") as stream:
        code = subprocess.run(
            ["sh", "dev", command], cwd=clone, env=environment, stdout=stream, stderr=subprocess.STDOUT
        ).returncode
    return time.perf_counter() - begin, code


def main() -> int:
    work = Path(tempfile.mkdtemp(prefix="fresh clone "))
    paths = {"with a compiler": os.environ["PATH"], "without": path_without_compilers(work / "programs")}
    failed = False
    for number, (where, search_path) in enumerate(paths.items()):
        clone = work / f"clone {number}"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        for run, (command, what) in enumerate(RUNS):
            log = work / f"{number}-{run}-{command}.log"
            seconds, code = timed_run(clone, command, search_path, work / f"cache {number} {run}", log)
            print(f"{where:16} sh dev {command}  {what:15} {seconds:7.1f} s  exit {code}", flush=True)
            if code:
                failed = True
                print(*log.read_text().splitlines()[-40:], sep="\n")
    if failed:
        print(f"the clones and logs are in {work}")
        return 1
    shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
