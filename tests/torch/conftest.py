"""The tests in PyTorch run on the CPU, or on the device of `--torch-device`; numbers are drawn on the CPU."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

collect_ignore = [] if find_spec("transformers") else ["test_transformers.py"]


def pytest_configure(config: pytest.Config) -> None:
    device = torch.device(config.getoption("--torch-device"))
    torch.set_default_device(device)
    # Graphs are CUDA's, and packages without Python are for processors.
    collect_ignore.append("test_packaging.py" if device.type == "cuda" else "test_graphs.py")


def pytest_report_header() -> str:
    return f"left out, for lack of a package or for the device: {', '.join(collect_ignore)}"
