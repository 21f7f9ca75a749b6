"""`tilewright inspect` of kernels in files: their list, and errors of the files' own Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.programs import CliRunner

from tilewright.cli.verbs import app

KERNELS = """\
import tilewright as tw

@tw.kernel(A="M K", B="N K", C="M N")
def product(A, B, C, *, mma):
    m, n, k = mma.tile
    i, j = tw.block_index((tw.ceil_div(A.shape[0], m), tw.ceil_div(B.shape[0], n)))
    a, b = (tw.load(x.tile((e, k), (p, 0)), spread) for x, e, p, spread in
            ((A, m, i, tw.operand_a(mma, k)), (B, n, j, tw.operand_b(mma, k))))
    acc = tw.accumulator(mma)
    tw.mma(a, b, acc)
    tw.copy(acc, C.tile((m, n), (i, j)))

@tw.kernel(X="N")
def double(X, *, width):
    part = X.tile((64,), (tw.block_index(tw.ceil_div(X.shape[0], 64)),))
    refuse(width)
    tw.copy(tw.load(part.partition((32,))) * 2.0, part)

def refuse(width):
    if width == "oops":
        raise KeyError("no width")
    return [1, 2][width]

def broken():
    return 1 // 0

BOUND = {dtype: product.bind(mma=tw.TiledMma(tw.atoms.TENSOR_CORE[dtype])) for dtype in ("f16", "bf16")}
"""


@pytest.fixture
def kernels(tmp_path: Path) -> str:
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    return str(path)


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments])
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.stderr


MATRICES = ("--shape", "64x64x16")
VECTOR = ("--shape", "N=256")


@pytest.mark.parametrize(
    "verb", [["inspect"], ["inspect", "--ir"], ["inspect", "--counters"], ["draw", "timeline"]]
)
def test_what_the_kernel_raises_is_shown_at_its_line(kernels: str, verb: list[str]) -> None:
    said = refused(*verb, f"{kernels}:double", *VECTOR, "--set", "width='oops'")
    assert said.startswith("tilewright: kernel double: KeyError: 'no width'\n  at kernels.py:21:9 ")
    assert "in refuse\n    raise KeyError" in said
    assert "called from kernels.py:16:5 in double\n    refuse(width)\n    ^^^^^^^^^^^^^" in said
    assert "Traceback" not in said


def test_what_python_raises_in_the_kernel_is_shown_at_its_line(kernels: str) -> None:
    said = refused("inspect", f"{kernels}:product", *MATRICES, "--set", "mma=1")
    assert said == (
        "tilewright: kernel product: AttributeError: 'int' object has no attribute 'tile'\n"
        "  at kernels.py:5:15 in product\n    m, n, k = mma.tile\n              ^^^^^^^^\n"
    )


def test_what_an_expression_raises_is_named(kernels: str) -> None:
    said = refused("inspect", f"{kernels}:double", *VECTOR, "--set", "width=1/0")
    assert said == "tilewright: --set 'width=1/0': ZeroDivisionError: division by zero\n"
    said = refused("inspect", f"{kernels}:double", *VECTOR, "--set", "width=(")
    assert said.startswith("tilewright: --set 'width=(': SyntaxError: ")
    said = refused("inspect", f"{kernels}:double", *VECTOR, "--set", "width=broken()")
    assert said.startswith("tilewright: --set 'width=broken()': ZeroDivisionError: ")
    assert "at kernels.py:25:12 in broken\n    return 1 // 0\n           ^^^^^^" in said


def test_what_the_file_raises_is_shown_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text("import tilewright as tw\n\nATOM = tw.atoms.MMA_F17\n")
    said = refused("inspect", f"{path}:kernel")
    assert "AttributeError: module 'tilewright.targets.atoms' has no attribute 'MMA_F17'" in said
    assert "at wrong.py:3:8 in <module>\n    ATOM = tw.atoms.MMA_F17\n" in said


def test_an_error_of_the_library_itself_keeps_its_traceback(kernels: str, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("tilewright.inspect.subject.print_kernel", fail)
    result = CliRunner().invoke(app, ["inspect", "--ir", f"{kernels}:double", *VECTOR, "--set", "width=1"])
    assert isinstance(result.exception, RuntimeError)


def test_kernels_in_a_dictionary_are_found_by_key(kernels: str) -> None:
    shown = CliRunner().invoke(
        app, ["inspect", f"{kernels}:BOUND[bf16]", *MATRICES, "--dtype", "A=bf16,B=bf16,C=f32", "--ir"]
    )
    assert shown.exit_code == 0, shown.output
    assert "mma.m16n8k16.f32.bf16" in shown.stdout
    said = refused("inspect", f"{kernels}:BOUND[f32]", *MATRICES)
    assert "has no kernel 'BOUND[f32]'; it has product, double, BOUND[f16], BOUND[bf16]" in said


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_without_a_dtype_a_legal_one_is_named(kernels: str, dtype: str) -> None:
    what = ("inspect", f"{kernels}:BOUND[{dtype}]", *MATRICES)
    said = refused(*what)
    assert "takes A of" in said
    assert said.endswith(f"\nwithout --dtype all arrays are of f32; nearest legal choice: --dtype {dtype}\n")
    assert CliRunner().invoke(app, [*what, "--dtype", dtype]).exit_code == 0
    assert "without --dtype" not in refused(*what, "--dtype", "f32")


def test_a_code_of_numpy_is_no_dtype(kernels: str) -> None:
    assert "unknown dtype 'q'; known: f64, " in refused(
        "inspect", f"{kernels}:double", *VECTOR, "--set", "width=1", "--dtype", "q"
    )


LINEAR = """\
import tilewright as tw

@tw.kernel(A="M K", B="N K", C="M N")
def linear(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc
"""


def test_the_extents_that_inspect_takes_describe_the_arrays_of_other_commands(tmp_path: Path) -> None:
    path = tmp_path / "linear.py"
    path.write_text(LINEAR)
    kernel, shape = f"{path}:linear", ("--shape", "M=24,N=16,K=8")
    for options in (("--dtype", "f16"), ("--dtype", "A=f16,B=f16,C=f32")):
        found = CliRunner().invoke(
            app, ["profile", kernel, *shape, *options, "--most", "1", "--seconds", "0"]
        )
        assert found.exit_code == 0, found.output
    exported = refused("export", kernel, *shape)
    assert "an export needs the dtype of each array" in exported
    assert "nearest legal choice: --shape A=24x8:f32,B=16x8:f32,C=24x16:f32" in exported
    assert "no extent for K" in refused("profile", kernel, "--shape", "M=24,N=16")
    assert "no array C" in refused("profile", kernel, "--shape", "A=24x8:f32,B=16x8:f32")
