"""Runs one call through the handler for GPUs, with a stand-in for XLA and one for the driver.

Arguments: the stand-in for XLA, the one for the driver, the call as JSON (operation, operands, results,
words), and the addresses of its buffers.  Lines of output are calls of the driver and of XLA's interface.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
from pathlib import Path

import pytest
from tests.runtime.fake_gpu import fake_driver

from tilewright.jax import calls
from tilewright.jax.handler import Handler
from tilewright.targets.target import CUDA


def load_nvrtc() -> None:
    """Load NVRTC from the environment whose packages this one borrows; the library then finds it by name."""
    places = importlib.import_module("nvidia").__path__
    found = [file for place in places for file in Path(place).rglob("libnvrtc.so.1*")]
    ctypes.CDLL(str(found[0]), ctypes.RTLD_GLOBAL)


def main() -> None:
    load_nvrtc()
    xla, given = ctypes.CDLL(sys.argv[1]), json.loads(sys.argv[3])
    ctypes.CDLL(sys.argv[2])  # by its name, the launch code then finds it
    text = json.dumps(given, sort_keys=True).encode()
    key, addresses = calls.number_of(text.decode()), [int(word) for word in sys.argv[4:]]
    operands, results = len(given["operands"]), len(given["results"])
    xla.call.restype = ctypes.c_char_p
    with pytest.MonkeyPatch.context() as patch:
        fake_driver(patch)
        handler = Handler(CUDA.name, calls.compiled)
        for stage in ("instantiate", "execute", "execute"):
            error = xla.call(
                ctypes.c_void_p(handler.address(stage)),
                text,
                ctypes.c_longlong(key),
                operands,
                results,
                (ctypes.c_void_p * len(addresses))(*addresses),
            )
            print(stage, error, flush=True)


if __name__ == "__main__":
    main()
