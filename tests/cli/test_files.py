"""Files for `tilewright gemm`: damaged ones, and narrow floats."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.programs import CliRunner
from typer.testing import Result

import tilewright as tw
from tilewright.checking.compare import compare_gemm
from tilewright.cli.matrices import read
from tilewright.cli.verbs import app


def gemm(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["gemm", *arguments, "--target", "reference", "--no-time"])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("b.npy", np.zeros((4, 4), np.float32))


def npy(
    text: str | bytes, content: bytes = bytes(64), version: bytes = b"\x01\x00", length: int = -1
) -> bytes:
    header = text if isinstance(text, bytes) else text.encode()
    size = len(header) if length < 0 else length
    return b"\x93NUMPY" + version + size.to_bytes(2 if version[0] == 1 else 4, "little") + header + content


WHOLE = "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 4), }\n"


def said(**changes: str) -> bytes:
    fields = {"descr": "'<f4'", "fortran_order": "False", "shape": "(4, 4)", **changes}
    return npy("{" + ", ".join(f"'{name}': {value}" for name, value in fields.items()) + "}\n")


NONE, DAMAGED = "not a .npy file of numbers", "is damaged"
CUT = "is cut short: its header says shape"

BROKEN = {
    "nothing": (b"", NONE),
    "a part of the magic": (b"\x93NUM", NONE),
    "another magic": (b"\x93NUMPZ\x01\x00", NONE),
    "no version": (b"\x93NUMPY", NONE),
    "a version to come": (npy(WHOLE, version=b"\x09\x00"), NONE),
    "no length": (b"\x93NUMPY\x01\x00", NONE),
    "a header cut short": (npy(WHOLE, b"")[:30], NONE),
    "a header without an end": (npy(WHOLE, version=b"\x02\x00", length=2**32 - 1), NONE),
    "a header longer than the file": (npy(WHOLE, length=60_000), NONE),
    "no Python": (npy("{'descr': "), NONE),
    "Python of another kind": (npy("[1, 2, 3]\n"), NONE),
    "an unknown token": (npy("{'descr': '''\n"), NONE),
    "null bytes": (npy(bytes(118)), NONE),
    "no text": (npy(b"\xff\xfe\x00\x80" * 20), NONE),
    "deep brackets": (npy("(" * 9000), NONE),
    "a long number": (said(shape=f"({'9' * 5000}, 4)"), NONE),
    "no dtype": (said(descr="'<q9'"), NONE),
    "a dtype that is no text": (said(descr="7"), NONE),
    "a dtype of nothing": (said(descr="'|V0'"), DAMAGED),
    "a dtype of a negative size": (said(descr="'|V-1'"), NONE),
    "objects": (said(descr="'|O'"), NONE),
    "text": (said(descr="'<U4'"), NONE),
    "dates": (said(descr="'<M8[s]'"), NONE),
    "fields": (said(descr="[('x', '<f4'), ('y', '<f4')]"), NONE),
    "arrays as elements": (said(descr="('<f4', (2,))"), NONE),
    "no truth value": (said(fortran_order="'no'"), NONE),
    "a field more": (said(more="1"), NONE),
    "no shape": (said(shape="None"), NONE),
    "a shape of text": (said(shape="('4', 4)"), NONE),
    "a shape of floats": (said(shape="(4.0, 4)"), NONE),
    "a negative extent": (said(shape="(-4, -4)"), DAMAGED),
    "an extent beyond addresses": (said(shape=f"({2**70}, 4)"), DAMAGED),
    "too many dimensions": (said(shape=f"({'1, ' * 70})"), DAMAGED),
    "no elements, and more than addresses": (said(shape=f"(0, {2**62}, {2**62})"), DAMAGED),
    "more than the machine holds": (said(shape=f"({10**9}, {10**9})"), "takes 3637978.8 TiB"),
    "more than is there": (said(shape="(4, 5)"), f"{CUT} (4, 5) of float32, 80 bytes, and 64 are there"),
    "nothing of what is said": (npy(WHOLE, b""), f"{CUT} (4, 4) of float32, 64 bytes, and 0 are there"),
    "no elements": (said(shape="(0, 4)"), "is empty"),
    "one dimension": (said(shape="(16,)"), "has 1 dimensions"),
    "no dimension": (said(shape="()"), "has 0 dimensions"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_file_is_told_in_a_line(name: str) -> None:
    content, message = BROKEN[name]
    Path("a.npy").write_bytes(content)
    result = gemm("a.npy", "b.npy")
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stderr.startswith(f"tilewright: a.npy: {message}"), result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("seed", range(60))
def test_a_file_with_changed_bytes_is_read_or_told(seed: int) -> None:
    rng = np.random.default_rng(seed)
    made = io.BytesIO()
    np.save(made, np.zeros((4, 4), np.float32))
    content = bytearray(made.getvalue())
    for at in rng.integers(0, 80, rng.integers(1, 4)):
        content[at] = rng.integers(0, 256)
    Path("a.npy").write_bytes(content[: rng.integers(60, len(content) + 1)])
    told, array = "", np.zeros(0)
    try:
        array = read(Path("a.npy"))
    except tw.TilewrightError as error:
        told = str(error)
    assert told.startswith("a.npy: ") or 0 < array.size * array.itemsize <= len(content)


def test_headers_of_python_2_and_files_with_more_behind_are_read() -> None:
    content = np.arange(16, dtype=np.float32).tobytes() + b"more"
    Path("a.npy").write_bytes(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (4L, 4L), }\n", content))
    assert (read(Path("a.npy")) == np.arange(16).reshape(4, 4).T).all()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_what_numpy_writes_is_read(order: Any, version: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    for dtype in ("f8", ">f4", "i1", "u2", "c8", "?"):
        array = np.asarray(rng.integers(0, 2, (5, 7)), dtype=dtype, order=order)
        with open("a.npy", "wb") as file:
            np.lib.format.write_array(file, array, version=version)
        found = read(Path("a.npy"))
        assert found.dtype == array.dtype
        assert found.strides == array.strides
        assert (found == array).all()


def test_a_pipe_is_read() -> None:
    os.mkfifo("a.npy")
    array = np.ones((4, 4), np.float32)

    def feed() -> None:
        with open("a.npy", "wb") as file:
            file.write(npy(WHOLE, array.tobytes()))

    feeder = threading.Thread(target=feed)
    feeder.start()
    assert gemm("a.npy", "b.npy").exit_code == 0
    feeder.join(20)


def narrow(name: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    element = tw.dtype(name).numpy
    a, b = rng.integers(-4, 5, (5, 7)).astype(element), rng.integers(-4, 5, (7, 6)).astype(element)
    np.save("a.npy", a)
    np.save("b.npy", b)
    return a, b


@pytest.mark.parametrize("name", ["bf16", "f8e4m3", "f8e5m2"])
def test_narrow_floats_written_by_numpy_are_read(name: str) -> None:
    a, b = narrow(name)
    result = gemm("a.npy", "b.npy", "--dtype", name, "-o", "c.npy")
    assert result.exit_code == 0, result.output
    assert f"A 5x7 {name} (n), B 7x6 {name} (n)" in result.output
    made = read(Path("c.npy"))
    assert compare_gemm(a, b, made if name != "bf16" else made.view(tw.bf16.numpy)).ok


def test_the_dtype_with_a_name_of_its_own_needs_no_other() -> None:
    narrow("f8e5m2")
    assert "A 5x7 f8e5m2 (n)" in gemm("a.npy", "b.npy").output
    assert "A 5x7 f16 (n)" in gemm("a.npy", "b.npy", "--dtype", "f16").output


@pytest.mark.parametrize(("name", "count"), [("bf16", 2), ("f8e4m3", 1)])
def test_bytes_without_a_type_name_the_dtype_that_they_may_be(name: str, count: int) -> None:
    narrow(name)
    told = (
        f"tilewright: a.npy: holds elements of {count} bytes without a type (|V{count}); "
        f"say what they are, e.g. --dtype {name}\n"
    )
    assert gemm("a.npy", "b.npy").stderr == told
    assert gemm("a.npy", "b.npy", "--dtype", "f32").stderr == told
