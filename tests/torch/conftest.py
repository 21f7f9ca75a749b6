"""The tests in PyTorch run on the CPU, or on the device of `--torch-device`; numbers are drawn on the CPU."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

collect_ignore = [] if find_spec("transformers") else ["test_transformers.py"]


def pytest_configure(config: pytest.Config) -> None:
    device = torch.device(config.getoption("--torch-device"))
    torch.set_default_device(device)
    if device.type != "cuda":
        collect_ignore.append("test_graphs.py")


def pytest_report_header() -> str:
    return f"tests of models of transformers: {'left out; it is not installed' if collect_ignore else 'run'}"
