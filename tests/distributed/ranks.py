"""Starts the ranks of a test: processes over gloo, each of which runs the same cases."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

Case = Callable[[int, int], Any]
"""A function of the rank and the number of ranks, at the top level of a module."""


GPUS = "cpu:gloo,cuda:nccl"
"""The backends of ranks that each have a GPU, on which new tensors lie."""


def _work(
    rank: int, size: int, rendezvous: str, cases: Sequence[Case], answers: Connection, backend: str
) -> None:
    torch.set_num_threads(1)
    if "nccl" in backend:
        torch.cuda.set_device(rank)
        torch.set_default_device(torch.device("cuda", rank))
    dist.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=size)
    for case in cases:
        try:
            answers.send((case(rank, size), None))
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 the parent shows it
            answers.send((None, traceback.format_exc()))
    dist.destroy_process_group()


class Failed:
    """What a rank answered instead of a result: its traceback, or its exit status."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __repr__(self) -> str:
        return self.why


def run_ranks(
    size: int, folder: Path, cases: Sequence[Case], seconds: float = 240, backend: str = "gloo"
) -> list[list[Any]]:
    """Run cases on new processes; return the answers of all ranks for each case.

    A case that takes longer than ``seconds`` ends all processes, and the cases after it have no answers.
    """
    context = mp.get_context("spawn")
    rendezvous = str(folder / f"rendezvous-{size}-{os.getpid()}")
    processes, ends = [], []
    for rank in range(size):
        mine, theirs = context.Pipe(duplex=False)
        given = (rank, size, rendezvous, cases, theirs, backend)
        process = context.Process(target=_work, args=given, daemon=True)
        with patch.dict(os.environ, TILEWRIGHT_THREADS="1"):
            process.start()
        theirs.close()
        processes.append(process)
        ends.append(mine)
    answers: list[list[Any]] = [[] for _ in cases]
    try:
        for of_case in answers:
            for process, end in zip(processes, ends, strict=True):
                if not end.poll(seconds):  # the rank hangs, so the others will
                    of_case.append(Failed("no answer; the process still runs"))
                    seconds = 0.5
                    continue
                try:
                    value, error = end.recv()
                    of_case.append(value if error is None else Failed(error))
                except EOFError:
                    process.join(60)  # its pipe has ended, so it ends
                    of_case.append(Failed(f"no answer; exit status {process.exitcode}"))
        for process in processes:
            process.join(60)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return answers


def failures(names: Sequence[str], answers: Sequence[Sequence[Any]]) -> str:
    """Return what failed, by case and rank."""
    return "\n".join(
        f"{name}, rank {rank}: {one}"
        for name, of_case in zip(names, answers, strict=True)
        for rank, one in enumerate(of_case)
        if isinstance(one, Failed)
    )


if __name__ == "__main__":
    sys.exit("a module of tests")
