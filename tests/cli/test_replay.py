"""The log of calls, and `tilewright replay`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.programs import CliRunner

import tilewright as tw
from tilewright.cli import replay as verb
from tilewright.cli.replay import LARGEST, LoggedCall, _buffer, _work
from tilewright.cli.verbs import app
from tilewright.ops.replay import Replay
from tilewright.runtime.arrays import describe
from tilewright.runtime.call_log import CALL_LOG, LoggedArray

PROGRAM = """
import numpy as np, tilewright as tw
rng = np.random.default_rng(0)
a, b = rng.standard_normal((33, 20), np.float32), rng.standard_normal((20, 17), np.float32)
out = np.empty((33, 17), np.float32)
for _ in range(3):
    tw.matmul(a, b, out)
tw.matmul(a[::-1, ::2], b[:10], alpha=2.0, bias=b[0], activation="gelu")
tw.matmul(a, a.T, out_dtype=tw.f64, schedule=None)
tw.einsum("ij,jk->ki", a, b)
tw.complex_matmul(a + 1j * a, b - 2j * b)
q = rng.standard_normal((1, 2, 9, 8), np.float32)
tw.attention(q, q, q)
tw.matmul(a, b, c=out, beta=1.0, out=out)
try:
    tw.matmul(a, a)
except tw.LaunchError:
    print("refused")
"""
OPS = ["matmul"] * 5 + ["einsum", "complex_matmul", "attention", "matmul", "matmul"]


def run(place: Path | str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "TILEWRIGHT_LOG": str(place)}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, env=variables
    )


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("log") / "calls.jsonl"
    done = run(place)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr
    return place


def test_a_line_tells_of_arrays_schedule_time_and_whether_a_plan_was_known(log: Path) -> None:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["op"] for line in lines] == OPS, "calls inside of calls have no line"
    assert [line["plan"] for line in lines[:3]] == ["planned", "replayed", "replayed"]
    for line in lines[:-1]:
        assert line["host_us"] > 0
        assert line["kernels"], line
        assert all(one["target"] == "cpu" for one in line["kernels"])
        assert "error" not in line
    assert all(one["schedule"].startswith("tw.Schedule(") for line in lines[:4] for one in line["kernels"])
    arrays = [line["arguments"]["a"]["array"] for line in lines[:4]]
    assert [(one["dtype"], one["shape"], one["strides"]) for one in arrays[2:]] == [
        ("f32", [33, 20], [20, 1]),
        ("f32", [33, 10], [-20, 2]),
    ]
    assert lines[3]["arguments"]["activation"] == {"value": "gelu"}
    assert lines[4]["arguments"]["out_dtype"] == {"dtype": "f64"}
    assert lines[8]["arguments"]["c"]["array"]["same_as"] == "out"
    assert lines[9]["error"].startswith("LaunchError: matmul of shapes ")
    assert lines[9]["kernels"] == []


def test_text(tmp_path: Path) -> None:
    place = tmp_path / "calls.txt"
    assert run(place).returncode == 0
    lines = place.read_text().splitlines()
    assert len(lines) == len(OPS)
    assert lines[3].startswith(
        "matmul(a=f32[33x10] strides -20x2 on cpu, b=f32[10x17] strides 17x1 on cpu, "
        "alpha=2.0, bias=f32[17] strides 1 on cpu, activation='gelu'): "
    )
    assert " us on the host, planned; gemm" in lines[3]
    refused = "matmul of shapes (33, 20) and (33, 20): K is 20 in a and 33 in b; nearest: b.T"
    assert lines[9].endswith(f" us on the host, LaunchError: {refused}")


def test_a_log_that_cannot_be_written_is_an_error_of_the_setting(tmp_path: Path) -> None:
    done = run(tmp_path / "nowhere" / "calls.jsonl")
    assert done.returncode == 1
    assert "SettingError: TILEWRIGHT_LOG=" in done.stderr
    assert "a legal example: TILEWRIGHT_LOG=calls.jsonl" in done.stderr


def test_a_log_that_is_off_wraps_nothing() -> None:
    """Without a log, the functions of a call are the ordinary ones, including shortcuts."""
    assert CALL_LOG is None
    assert Replay.run.__qualname__ == "Replay.run"
    assert tw.matmul.__code__.co_qualname.startswith("repeated.<locals>.decorate.<locals>.call")  # type: ignore[attr-defined]
    cells = dict(zip(tw.matmul.__code__.co_freevars, tw.matmul.__closure__, strict=True))  # type: ignore[attr-defined]
    assert cells["shortcuts"].cell_contents is not None


def test_every_call_is_repeated_compared_and_timed(log: Path) -> None:
    done = CliRunner().invoke(app, ["replay", str(log)])
    assert done.exit_code == 0, done.output
    *calls, last = done.output.splitlines()
    assert last == "calls     9 in the log, 7 different"
    counts = [33 * 17, 33 * 17, 33 * 33, 17 * 33, 33 * 17, 2 * 9 * 8, 33 * 17]
    assert [line.split()[0] for line in calls] == [OPS[0], *OPS[3:9]]
    for line, count in zip(calls, counts, strict=True):
        assert f": correct: {count} elements; " in line
        assert " in the log " in line


def test_large_products_are_compared_with_numpy(tmp_path: Path) -> None:
    array = {
        "dtype": "f16",
        "shape": [300, 400],
        "strides": [400, 1],
        "align": 64,
        "device": "cpu",
        "same_as": "",
    }
    other = {**array, "shape": [400, 200], "strides": [1, 400]}
    line = {
        "format": 1,
        "op": "matmul",
        "arguments": {"a": {"array": array}, "b": {"array": other}},
        "host_us": 5.0,
    }
    chain = {**line, "op": "gemm_chain", "arguments": {"a": {"array": array}, "b": {"array": other}}}
    chain["arguments"] = {
        **chain["arguments"],
        "c": {"array": {**array, "shape": [200, 90], "strides": [90, 1]}},
    }
    odd = {**line, "arguments": {**line["arguments"], "alpha": {"other": "Odd()"}}}
    away = {
        **line,
        "arguments": {
            name: {"array": {**one["array"], "device": "cuda:0"}} for name, one in line["arguments"].items()
        },
    }
    place = tmp_path / "calls.jsonl"
    place.write_text("\n".join(map(json.dumps, (line, chain, odd, away))) + "\n")
    said = CliRunner().invoke(app, ["replay", str(place), "--no-time"])
    assert said.exit_code == 0, said.output
    lines = said.output.splitlines()
    assert lines[0].endswith(": correct: 60000 elements")
    assert lines[1].endswith(": not compared: more than the reference executes in seconds")
    assert lines[2].endswith(": left out: argument alpha is Odd(), which a log does not hold")
    if not tw.device_count():
        assert ": left out: " in lines[3]
    place.write_text(json.dumps(odd))
    said = CliRunner().invoke(app, ["replay", str(place), "--no-time"])
    assert said.exit_code == 2, said.output
    assert "all 1 calls were left out" in said.output


def test_a_wrong_result_is_found(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = tw.matmul

    def wrong(*args: Any, **kwargs: Any) -> Any:
        made = right(*args, **kwargs)
        if kwargs.get("target") != "reference":
            made[-1, -1] += 1
        return made

    monkeypatch.setattr(tw, "matmul", wrong)
    done = CliRunner().invoke(app, ["replay", str(log), "--no-time"])
    assert done.exit_code == 1
    assert done.output.count("WRONG: 1 of ") == 4
    assert "4 of 7 calls differ from the reference" in done.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "matmul(a=f32[8x8]): 3 us\n",
            "line 1: no call in JSON of format 1; nearest legal choice: a log that",
        ),
        ('{"format": 2}\n', "line 1: no call in JSON of format 1"),
        ('{"format": 1}\n', "line 1: no call in JSON of format 1"),
        ('{"format": 1, "op": "nothing", "arguments": {}, "host_us": 1}\n', "line 1: no call in JSON"),
        ('{"format": 1, "op": "matmul", "arguments": [1], "host_us": 1}\n', "line 1: no call in JSON"),
        ('{"format": 1, "op": "matmul", "arguments": {"a": {}}, "host_us": 1}\n', "line 1: no call in JSON"),
        (
            '{"format": 1, "op": "matmul", "arguments": {"a": {"odd": 1}}, "host_us": 1}\n',
            "line 1: no call in JSON",
        ),
        (
            '{"format": 1, "op": "matmul", "arguments": {"a": {"array": {"shape": [1]}}}, "host_us": 1}\n',
            "line 1: no call in JSON",
        ),
        ("\n", "has no calls that succeeded"),
    ],
)
def test_files_that_are_no_log(text: str, said: str, tmp_path: Path) -> None:
    place = tmp_path / "calls.jsonl"
    place.write_text(text)
    done = CliRunner().invoke(app, ["replay", str(place)])
    assert done.exit_code == 2
    assert said in done.output


def test_squares_count_each_of_their_extents() -> None:
    """The reference would need hours for large squares."""
    square = asdict(LoggedArray("f32", (512, 512), (512, 1), 256, "cpu"))
    call = LoggedCall("gemm_chain", {"a": {"array": square}, "b": {"tuple": [{"array": square}]}}, [1.0])
    assert _work(call) == 512**3 > LARGEST


def test_bytes_that_are_no_text_are_no_log(tmp_path: Path) -> None:
    place = tmp_path / "calls.jsonl"
    place.write_bytes(b"\x8c\xff\n")
    done = CliRunner().invoke(app, ["replay", str(place)])
    assert done.exit_code == 2
    assert "line 1: no call in JSON" in done.output


@pytest.mark.parametrize("align", [2, 4, 8, 16, 64, 256])
@pytest.mark.parametrize(
    ("shape", "strides"), [((3, 4), (4, 1)), ((3, 4), (-4, 1)), ((5,), (-3,)), ((0, 2), (2, 1))]
)
def test_arrays_of_a_replay_lie_as_in_the_log(align: int, shape: Any, strides: Any) -> None:
    flat, seen, before = _buffer(tw.f16, shape, strides, align)
    assert seen.shape == shape
    if 0 in shape:
        return
    info = describe(seen)
    assert info.strides == strides
    assert info.pointer % align == 0
    assert align == 256 or info.pointer % (2 * align)
    seen[...] = np.arange(seen.size).reshape(shape)
    assert (seen.reshape(-1) == np.arange(seen.size)).all()
    assert before == -sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
    assert np.shares_memory(flat, seen)
    assert verb.SLACK > 0
