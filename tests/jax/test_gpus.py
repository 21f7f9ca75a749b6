"""Calls on GPUs without a GPU: the handler launches what the library launches itself on the same arrays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.jax.call_on_gpu import load_nvrtc
from tests.runtime.fake_gpu import Driver, Launched, OnGpu, gpu
from tests.shipping.test_folder import compiler
from tests.shipping.test_gpus import FAKE

import tilewright as tw
from tilewright.jax import calls
from tilewright.jax.handler import xla_header

__all__ = ["gpu"]

ARGUMENTS, BUFFER = 5, 64
"""Arguments and bytes of each launch that are compared; the first ones."""

ATTRIBUTES = {2: "cooperative", 4: "cluster_dimension", 6: "programmatic_stream_serialization"}
"""Names of the attributes of launches, by the driver's numbers."""


def library(folder: Path, name: str, text: str) -> str:
    """Compile C++ text to a library of this name, and return its path."""
    source, made = folder / "text.cpp", folder / name
    source.write_text(text, encoding="utf-8")
    words = [
        *compiler(),
        "-std=c++17",
        "-shared",
        "-fPIC",
        f"-Wl,-soname,{name}",
        str(source),
        "-o",
        str(made),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return str(made)


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A stand-in for XLA, and one for the driver."""
    folder = tmp_path_factory.mktemp("xla")
    xla = xla_header() + Path(__file__).with_name("fake_xla.cpp").read_text(encoding="utf-8")
    return library(folder, "libxla.so", xla), library(
        folder, "libcuda.so.1", FAKE.read_text(encoding="utf-8")
    )


class Problem(NamedTuple):
    """A call: its operands and results with shapes and dtypes, and its other arguments."""

    op: str
    operands: dict[str, tuple[tuple[int, ...], str]]
    results: dict[str, tuple[tuple[int, ...], str]]
    words: dict[str, Any]

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Arrays with the alignment of XLA's buffers."""
        return {name: calls.aligned(*one) for name, one in (self.operands | self.results).items()}

    def text(self) -> dict[str, Any]:
        """The description that the call carries."""
        operands = [[name, *one, None, None] for name, one in self.operands.items()]
        results = [[name, *one] for name, one in self.results.items()]
        return {"op": self.op, "operands": operands, "results": results, "words": self.words}


def product(m: int, n: int, k: int, kind: str, **words: Any) -> Problem:
    return Problem("matmul", {"a": ((m, k), kind), "b": ((k, n), kind)}, {"out": ((m, n), kind)}, words)


Q = ((2, 4, 192, 64), "float16")
PROBLEMS = {
    "bulk copies": product(512, 384, 256, "float16"),
    "parts of K": product(128, 128, 32768, "float16"),
    "a pass before": product(512, 512, 1024, "float32", precision="f32"),
    "attention": Problem(
        "attention",
        dict.fromkeys(("q", "k", "v"), Q),
        {"out": Q, "lse": (Q[0][:3], "float32")},
        {"causal": True},
    ),
}


def lines(said: list[str], first: str) -> list[list[str]]:
    return [line.split()[1:] for line in said if line.split(" ")[0] == first]


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_launches_are_those_of_the_library(
    name: str, gpu: Driver, stand_ins: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grids, attributes, arguments, addresses of tensor maps, and cleared bytes; twice, on XLA's stream."""
    load_nvrtc()
    problem = PROBLEMS[name]
    arrays = problem.arrays()
    monkeypatch.setattr(gpu, "arguments", ARGUMENTS)
    getattr(tw, problem.op)(**{key: OnGpu(one) for key, one in arrays.items()}, **problem.words)
    assert gpu.launched
    assert len(gpu.launched) > 1 or name != "a pass before"

    addresses = [str(one.ctypes.data) for one in arrays.values()]
    command = [
        sys.executable,
        "-m",
        "tests.jax.call_on_gpu",
        *stand_ins,
        json.dumps(problem.text()),
        *addresses,
    ]
    variables = {**os.environ, "ARGUMENTS": str(ARGUMENTS), "BUFFER": str(BUFFER)}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables, cwd=root)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert [line for line in said if line.startswith(("instantiate", "execute"))] == [
        "instantiate None",
        "execute None",
        "execute None",
    ]
    launches = lines(said, "launch")
    assert len(launches) == 2 * len(gpu.launched)
    assert all(words[7:9] == ["stream", "77"] for words in launches)
    for words, own in zip(launches, gpu.launched * 2, strict=True):
        assert tuple(map(int, words[:7])) == own.shape
    known = {one.ctypes.data for one in arrays.values()}
    given = [int(words[2]) for words in lines(said, "map")]
    assert [one for one in given if one in known] == [one for one in gpu.maps if one in known] * 2
    compare_arguments(said, gpu.launched * 2)
    cleared = [int(words[0]) for words in lines(said, "fill")]
    assert cleared == [size for _, size, _ in gpu.cleared] * 2
    if name == "parts of K":
        assert cleared
    compare_attributes(said, gpu.launched * 2)


def compare_arguments(said: list[str], launched: list[Launched]) -> None:
    """Compare the first arguments of all launches; a workspace has an address of its own."""
    buffers = [bytes.fromhex(words[0]) for words in lines(said, "buffer")]
    offsets = [[int(word) for word in words] for words in lines(said, "offsets")]
    spaces = [range(int(start), int(start) + int(size)) for size, start in lines(said, "allocate")]
    compared = 0
    for buffer, at, own in zip(buffers, offsets, launched, strict=True):
        for offset, word in zip(at, own.words, strict=True):
            found = int.from_bytes(buffer[offset : offset + 8], "little")
            if offset + 8 <= BUFFER and not any(found in space for space in spaces):
                assert found == word
                compared += 1
    assert compared >= len(launched)


def compare_attributes(said: list[str], launched: list[Launched]) -> None:
    """Compare the attributes of all launches."""
    found, current = [], dict[str, Any]()
    for line in said:
        word, *numbers = line.split()
        if word == "attribute":
            name = ATTRIBUTES[int(numbers[0])]
            extents = tuple(map(int, numbers[1:]))
            current[name] = extents if name == "cluster_dimension" else extents[0]
        elif word == "launch":
            found.append(current)
            current = {}
    assert found == [{key: value for key, value in one.attributes.items() if value} for one in launched]


def test_a_call_that_does_not_fit_its_text(stand_ins: tuple[str, str]) -> None:
    """A wrong number of arrays, and a buffer at no multiple of 16, are errors; nothing is launched."""
    text = PROBLEMS["bulk copies"].text()
    text["operands"] = [text["operands"][0]]
    command = [sys.executable, "-m", "tests.jax.call_on_gpu", *stand_ins, json.dumps(text), "4096", "8192"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert "TypeError" in said[0]
    assert "does not fit its text" in said[-1]
    assert not lines(said, "launch")
