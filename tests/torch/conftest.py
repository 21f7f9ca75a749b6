"""The tests in PyTorch run on the CPU, or on the device of `--torch-device`; numbers are drawn on the CPU."""

from __future__ import annotations

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    torch.set_default_device(config.getoption("--torch-device"))
