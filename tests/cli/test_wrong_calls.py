"""The messages for wrong calls of the command and of the library are in golden files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pipelined import gemm
from tests.programs import CliRunner

import tilewright as tw
from tilewright.cli.verbs import app
from tilewright.ops.matmul import matmul
from tilewright.targets.atoms import fma

Golden = Callable[[str, str], None]

COMMANDS = (
    "gemm missing.npy b.npy",
    "gemm text.npy b.npy",
    "gemm cube.npy b.npy",
    "gemm a.npy a.npy",
    "gemm a.npy double.npy",
    "gemm whole.npy whole.npy",
    "gemm large.npy large.npy --dtype f16",
    "gemm objects.npy b.npy",
    "gemm 512 512",
    "gemm 512 0 512",
    "gemm 512 512 half",
    "gemm 9999999 9999999 9999999",
    "gemm 8 8 8 --dtype float61",
    "gemm 8 8 8 --dtype c64",
    "gemm 8 8 8 --layout rcr",
    "gemm 8 8 8 --target gpu",
    "gemm 8 8 8 --precision fast",
    "gemm 8 8 8 --dtype bf16 --precision tf32",
    "gemm 8 8 8 --dtype f64 --precision f32",
    "complex 8 8 8 --dtype bf16 --precision f16",
    "reduce --of foo",
    "reduce --of summ",
    "gemm 8 8 8 --init zeros",
    "gemm 8 8 8 --data elevation",
    "gemm --data altitude",
    "gemm a.npy b.npy -o nowhere/c.npy",
    "gemm a.npy b.npy -o .",
    "inspect softmax",
    "inspect missing.py:kernel",
    "inspect empty.py:kernel",
    "inspect --shape 8x8",
    "inspect --shape M=8,N=8",
    "inspect --layout xx",
    "cache empty",
)


def test_wrong_commands(golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.zeros((5, 7), np.float32))
    np.save("b.npy", np.zeros((7, 6), np.float32))
    np.save("double.npy", np.zeros((7, 6)))
    np.save("cube.npy", np.zeros((2, 3, 4)))
    np.save("whole.npy", np.arange(16).reshape(4, 4))
    np.save("large.npy", np.full((4, 4), 1e6, np.float32))
    np.save("objects.npy", np.array([[None]]), allow_pickle=True)
    Path("text.npy").write_text("1 2 3\n")
    Path("empty.py").write_text("answer = 42\n")
    monkeypatch.setattr("tilewright.cli.matrices.memory_bytes", lambda: 16 << 30)
    answers = []
    for command in COMMANDS:
        result = CliRunner().invoke(app, command.split(), prog_name="tilewright")
        assert result.exit_code == 2, (command, result.output)
        assert "Traceback" not in result.output
        answers.append(f"$ tilewright {command}\n{result.stderr.rstrip()}\n")
    golden("\n".join(answers), "wrong_commands.txt")


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("gemm 512 512 -5", "-5"),
        ("gemm 8 8 8 --dtpye f16", "--dtpye"),
        ("gemmm 8 8 8", "gemmm"),
        ("gemm --seed x", "--seed"),
    ],
)
def test_what_the_parser_refuses(command: str, named: str) -> None:
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert named in result.stderr


def square(dtype: Any = np.float32, n: int = 4) -> Any:
    return np.zeros((n, n), dtype)


def read_only(dtype: Any = np.float32) -> Any:
    out = square(dtype)
    out.flags.writeable = False
    return out


def weights() -> Any:
    return tw.packed(np.zeros((4, 8), np.uint8).T, "i4")


MMA = tw.TiledMma(fma(tw.f32), (1, 1), (2, 1))

CALLS: dict[str, Callable[[], object]] = {
    "matmul(a (4, 5), b (4, 5))": lambda: matmul(np.zeros((4, 5)), np.zeros((4, 5))),
    "matmul(a (4,), b (4, 4))": lambda: matmul(np.zeros(4), square()),
    "matmul(a f32, b f64)": lambda: matmul(square(), square(np.float64)),
    "matmul(a c64, b c128)": lambda: matmul(square(np.complex64), square(np.complex128)),
    "matmul(a list, b)": lambda: matmul([[1.0]], square()),
    "matmul(a '>f4', b)": lambda: matmul(square(">f4"), square()),
    "matmul(a of strides (20, 5) bytes, b)": lambda: matmul(
        np.ndarray((4, 4), np.float32, bytearray(80), 0, (20, 5)), square(), target="reference"
    ),
    "matmul(a, b, out (3, 3))": lambda: matmul(square(), square(), square(n=3)),
    "matmul(a, b, out read-only)": lambda: matmul(square(), square(), read_only(), target="reference"),
    "matmul(a, b, precision='fast')": lambda: matmul(square(), square(), precision="fast"),
    "matmul(a, b, target='gpu')": lambda: matmul(square(), square(), target="gpu"),
    "matmul(a, b, target='cuda')": lambda: matmul(square(), square(), target="cuda"),
    "complex_matmul(a, b, out read-only)": lambda: tw.complex_matmul(
        square(np.complex64), square(np.complex64), out=read_only(np.complex64)
    ),
    "complex_matmul(a, b, out (re, im read-only))": lambda: tw.complex_matmul(
        (square(), square()), (square(), square()), out=(square(), read_only())
    ),
    "rearrange_weights(b f32)": lambda: tw.rearrange_weights(square()),
    "rearrange_weights(b i4, group=-1)": lambda: tw.rearrange_weights(
        weights(), square(np.float16), group=-1
    ),
    "scaled_mm(a, b, group=-1)": lambda: tw.scaled_mm(
        square(np.float16), square(np.int8), scale_b=square(np.float16)[:1], group=-1
    ),
    "matmul(masked a, b)": lambda: matmul(np.ma.masked_array(square()), square()),
    "gemm(a, b, c)": lambda: gemm(square(), square(), square()),
    "gemm(a, b, c, tiles=…)": lambda: gemm(square(), square(), square(), tiles=(8, 8, 8), mma=MMA, stages=1),
    "gemm.bind(tile=[8, 8, 8])": lambda: gemm.bind(tile=[8, 8, 8], mma=MMA, stages=1),
    "gemm(a, b)": lambda: gemm(square(), square(), tile=(8, 8, 8), mma=MMA, stages=1),
    "gemm(a, b (3, 3), c)": lambda: gemm(
        square(), square(n=3), square(), tile=(8, 8, 8), mma=MMA, stages=1, target="reference"
    ),
}


def test_wrong_calls_of_the_library(golden: Golden) -> None:
    answers = []
    for call, attempt in CALLS.items():
        with pytest.raises(tw.TilewrightError) as caught:
            attempt()
        answers.append(f">>> {call}\n{type(caught.value).__name__}: {caught.value}\n")
    golden("\n".join(answers), "wrong_calls.txt")
