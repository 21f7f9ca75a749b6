"""The example that trains over ranks, and the page: both run to their ends."""

from __future__ import annotations

import subprocess
import sys

from tests.house.test_documents import ON_RANKS, ROOT, run_document


def test_two_ranks_have_the_loss_curve_of_one_process() -> None:
    command = [sys.executable, ROOT / "examples" / "21_tensor_parallel.py", "--steps", "6"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "all ranks have the same losses: True" in made.stdout
    assert made.stdout.count("2 ranks ") == 6


def test_the_page() -> None:
    failed = run_document((ROOT / "docs" / ON_RANKS).read_text(), ON_RANKS)
    assert not failed, failed
