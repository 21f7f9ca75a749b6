"""Exported kernels for processors: the C++ program, calls from Python, refusals, and the manifest."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.programs import CliRunner

import tilewright as tw
from tilewright.checking.flows import compare_flow
from tilewright.cli.export import read_problems
from tilewright.cli.verbs import app
from tilewright.dataflow.parser import parse_flow
from tilewright.inspect.from_files import kernels_in, load
from tilewright.runtime.native import find_toolchain, host_arch, ziglang
from tilewright.shipping.folder import MANIFEST, export
from tilewright.shipping.loading import CArray, LoadedKernel, _spread

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "examples" / "cpp" / "kernels.py"
PROGRAM = ROOT / "examples" / "cpp" / "gemm.cpp"
SPLIT = tw.Schedule(tw.atoms.fma("f32", lanes=(1, 1), each=(4, 8)), (16, 16, 16), staging="panels", split_k=3)
POISON = -77.0

Array = np.ndarray[Any, np.dtype[Any]]


@tw.kernel(A="M K", B="K N", bias="N", R="M N", C="M N", alpha=tw.f32)
def linear(A, B, bias, R, C, alpha):
    """C = alpha A B + bias + R."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = alpha * acc + bias[n] + R[m, n]


@tw.kernel(X="N", Y="N", steps=int)
def counted(X, Y, steps):
    """Y = X + steps, by counters that begin with zeros."""
    tw.require(X.shape[0] >= 5, "at least 5 elements")
    n = tw.block_index(tw.ceil_div(X.shape[0], 64))
    counters = tw.workspace((tw.ceil_div(X.shape[0], 64), 64), tw.f32, zeroed=True)
    mine = counters[n]
    for _ in tw.range(steps):
        tw.copy(tw.load(mine.partition((32,))) + 1.0, mine)
    x = tw.load(X.tile((64,), (n,)).partition((32,)))
    tw.copy(tw.load(mine.partition((32,))) + x, Y.tile((64,), (n,)))


class Case(NamedTuple):
    """An exported kernel in a folder, and its call from Python."""

    folder: Path
    manifest: dict[str, Any]
    loaded: LoadedKernel


def exported(folder: Path, kernel: Any, *problems: Any, archs: tuple[str, ...] = ()) -> Case:
    made = export(kernel, problems, archs or (host_arch(),), folder)
    return Case(folder, made, tw.load_kernel(folder))


def square(kind: str, extent: int, **more: Any) -> Any:
    return tw.like(kind, extent, extent, **more)


@pytest.fixture(scope="module")
def of_linear(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Class 0: rows and a large problem; 1: columns in B; 2: rows and a small problem."""
    kinds = [square("f32", 512), square("f32", 512), tw.like("f32", 512), *[square("f32", 512)] * 2, None]
    columns = [kinds[0], square("f32", 512, order="F"), *kinds[2:]]
    small = [square("f32", 8), square("f32", 8), tw.like("f32", 8), *[square("f32", 8)] * 2, None]
    return exported(tmp_path_factory.mktemp("linear"), linear.bind(), kinds, columns, small)


@pytest.fixture(scope="module")
def of_counted(tmp_path_factory: pytest.TempPathFactory) -> Case:
    vectors = [tw.like("f32", 4099)] * 2
    return exported(tmp_path_factory.mktemp("counted"), counted.bind(), [*vectors, None])


def strided(rng: np.random.Generator, m: int, n: int, gap: int, *, columns: bool = False) -> Array:
    """Return a matrix with poison after each row, or after each column."""
    held = np.full((n, m + gap) if columns else (m, n + gap), POISON, np.float32)
    seen = held[:, :m].T if columns else held[:, :n]
    seen[...] = rng.standard_normal((m, n))
    return seen


# ---------------------------------------------------------------- C++


def compiler() -> list[str]:
    """Return a C++ compiler that links programs: the system's, or that of the `ziglang` package."""
    if found := shutil.which("c++") or shutil.which("g++") or shutil.which("clang++"):
        return [found]
    zig = ziglang()
    assert zig is not None, find_toolchain()
    return [zig[0], "cc", "-x", "c++", "-fno-exceptions", "-fno-rtti"]


def built(program: Path, folder: Path, name: str) -> Path:
    made = folder / "program"
    words = [*compiler(), "-std=c++17", "-Wall", f"-I{folder}", str(program)]
    words += ["-x", "none", str(folder / f"lib{name}.a"), "-lpthread", "-ldl", "-o", str(made)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    return made


def test_the_program_in_cpp_is_built_and_compares_every_element(tmp_path: Path) -> None:
    arrays = ",".join(f"{name}=512x512:f32" for name in "ABC")
    words = ["export", f"{KERNELS}:gemm", "--shape", arrays, "--shape", "A=8x512:f32,C=8x512:f32"]
    said = CliRunner().invoke(app, [*words, "-o", str(tmp_path)])
    assert said.exit_code == 0, said.output
    assert "class 1" in said.output
    program = built(PROGRAM, tmp_path, "gemm")
    for extents in ("300 200 100", "3 5 7", "1 1 1", "129 33 65"):
        done = subprocess.run([program, *extents.split()], capture_output=True, text=True, check=False)
        m, n, _ = map(int, extents.split())
        elements, refused = m * (n + 3), "wrong extents: TILEWRIGHT_EXTENTS, argument 2, 0 elements written"
        assert done.stdout.splitlines() == [
            f"one thread: TILEWRIGHT_OK, 0 of {elements} elements wrong",
            refused,
            f"pool: TILEWRIGHT_OK, 0 of {elements} elements wrong",
            refused,
        ]
        assert done.returncode == 0


def test_the_header_is_c(of_linear: Case) -> None:
    program = of_linear.folder / "only.c"
    program.write_text('#include "linear.h"\nint main(void) { return tilewright_error_argument(0); }\n')
    words = [compiler()[0], *(["cc"] if len(compiler()) > 1 else []), "-x", "c", "-std=c99", "-fsyntax-only"]
    done = subprocess.run(
        [*words, "-Wall", "-Wextra", "-Werror", "-pedantic", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- results


@pytest.mark.parametrize(
    "extents", [(1, 1, 1), (37, 53, 71), (5, 260, 19), (64, 64, 0), (0, 4, 4), (130, 17, 300)]
)
@pytest.mark.parametrize("columns", [False, True])
def test_any_extents_and_strides_of_a_class(
    of_linear: Case, extents: tuple[int, int, int], columns: bool
) -> None:
    m, n, k = extents
    rng = np.random.default_rng(hash(extents) % 1000)
    given = {"A": strided(rng, m, k, 3), "B": strided(rng, k, n, 2, columns=columns)}
    given |= {"bias": rng.standard_normal(n).astype(np.float32), "R": strided(rng, m, n, 1)}
    c = strided(rng, m, n, 5)
    around = c.base.copy() if c.base is not None else c.copy()
    ran = of_linear.loaded(given["A"], given["B"], given["bias"], given["R"], c, 1.25)
    assert ran == "cpu"
    flow = parse_flow(of_linear.manifest["computes"])
    assert compare_flow(flow, {"C": c}, given, {"alpha": 1.25}).ok
    assert (c.base[:, n:] == around[:, n:]).all(), "nothing is written between the rows"


def test_a_wrong_extent_is_reported_before_shared_memory(of_linear: Case) -> None:
    """B has one row too many, which reaches into the result after it in memory."""
    m, n, k = 4, 5, 6
    flat, (a, r) = np.zeros((k + m) * n, np.float32), (np.zeros(one, np.float32) for one in ((m, k), (m, n)))
    c = flat[k * n :].reshape(m, n)
    with pytest.raises(tw.LaunchError, match=r"differs from another array.s.*: B has shape"):
        of_linear.loaded(a, flat[: (k + 1) * n].reshape(k + 1, n), np.zeros(n, np.float32), r, c, 1.0)
    with pytest.raises(tw.LaunchError, match=r"shares memory with another array.*: C has shape"):
        of_linear.loaded(
            np.zeros((m, k + 1), np.float32),
            flat[: (k + 1) * n].reshape(k + 1, n),
            np.zeros(n, np.float32),
            r,
            c,
            1.0,
        )
    assert not flat.any(), "nothing is written"


def test_threads_of_a_pool_compute_the_same(of_linear: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    a, b, r, c = (strided(rng, 256, 256, 0) for _ in range(4))
    bias, d = np.zeros(256, np.float32), np.empty((256, 256), np.float32)
    loaded = tw.load_kernel(of_linear.folder, check=False)
    loaded(a, b, bias, r, c, 1.0)
    assert loaded._is_long, "the next call takes the pool"
    monkeypatch.setattr("tilewright.shipping.loading.settings", lambda: type("", (), {"threads": 3}))
    loaded(a, b, bias, r, d, 1.0)
    assert loaded._threads._pool is not None
    assert loaded._threads._pool.workers == 2
    assert c.tobytes() == d.tobytes()


def test_a_call_takes_the_kernel_of_the_nearest_extents(of_linear: Case) -> None:
    """The bytes of a workspace show which kernel was chosen."""

    def needed(suffix: str, extent: int) -> int:
        arrays = [np.zeros((extent, extent), np.float32) for _ in range(4)]
        arrays.insert(2, np.zeros(extent, np.float32))
        held = [CArray.of(tw.runtime.arrays.describe(one)) for one in arrays]
        ask, _ = of_linear.loaded._found(f"linear_cpu{suffix}")
        found = ctypes.c_ulonglong()
        assert ask(*map(ctypes.addressof, held), 0, ctypes.addressof(found)) == 0
        return found.value

    assert needed("_0", 9) != needed("_2", 9), "the schedules differ"
    assert needed("", 9) == needed("_2", 9)
    assert needed("", 400) == needed("_0", 400)


def test_workspaces_begin_with_zeros_in_every_call(of_counted: Case) -> None:
    x = np.arange(300, dtype=np.float32)
    for steps in (3, 0, 7):
        y = np.full(300, np.nan, np.float32)
        of_counted.loaded(x, y, steps)
        assert (y == x + steps).all()
    assert of_counted.manifest["kernels"][0]["workspace_bytes"] == 4 * 4160


def test_partial_sums_lie_in_the_callers_workspace(tmp_path: Path) -> None:
    case = exported(
        tmp_path,
        linear.bind(schedule=SPLIT),
        [*[square("f32", 64)] * 2, tw.like("f32", 64), *[square("f32", 64)] * 2, None],
    )
    assert case.manifest["kernels"][0]["workspace_bytes"] > 0
    rng = np.random.default_rng(5)
    given = {
        name: strided(rng, *extents, 2)
        for name, extents in {"A": (33, 100), "B": (100, 41), "R": (33, 41)}.items()
    }
    given["bias"] = rng.standard_normal(41).astype(np.float32)
    c = np.full((33, 41), np.nan, np.float32)
    case.loaded(given["A"], given["B"], given["bias"], given["R"], c, -2.0)
    assert compare_flow(parse_flow(case.manifest["computes"]), {"C": c}, given, {"alpha": -2.0}).ok


def test_the_residual_may_be_the_result(of_linear: Case) -> None:
    rng = np.random.default_rng(8)
    a, b, r = strided(rng, 20, 30, 1), strided(rng, 30, 40, 1), strided(rng, 20, 40, 1)
    bias, c = np.zeros(40, np.float32), np.empty((20, 40), np.float32)
    of_linear.loaded(a, b, bias, r, c, 1.0)
    of_linear.loaded(a, b, bias, r, r, 1.0)
    assert (r == c).all()


# ---------------------------------------------------------------- refusals


def test_wrong_calls_are_refused_and_write_nothing(of_linear: Case) -> None:
    rng = np.random.default_rng(1)
    a, b, r = strided(rng, 12, 9, 2), strided(rng, 9, 10, 2), strided(rng, 12, 10, 2)
    bias, c = np.zeros(10, np.float32), np.full((12, 10), POISON, np.float32)
    wrong = {
        r"an extent .*: B has shape \(8, 10\)": (a, b[:8], bias, r, c, 1.0),
        r"an extent .*: bias has shape \(9,\)": (a, b, bias[:9], r, c, 1.0),
        r"a stride .*: A has shape .* nearest legal choice: A with stride 1 along dimension 1": (
            a[::-1],
            b,
            bias,
            r,
            c,
            1.0,
        ),
        r"A is f64 with 2 dimensions; nearest legal choice: f32 with 2": (
            a.astype(np.float64),
            b,
            bias,
            r,
            c,
            1.0,
        ),
        r"linear takes \(A, B, bias, R, C, alpha\), and was given 5 arguments": (a, b, bias, r, c),
        r"alpha=1e\+60 becomes infinite": (a, b, bias, r, c, 1e60),
    }
    for message, given in wrong.items():
        with pytest.raises(tw.LaunchError, match=message):
            of_linear.loaded(*given)
        assert (c == POISON).all(), message
    held = np.full(12 * 10 + 3, POISON, np.float32)
    shifted, own = held[3:].reshape(12, 10), held[:120].reshape(12, 10)
    shares = "shares memory with another array, or with itself: C has .*a result in memory of its own"
    with pytest.raises(tw.LaunchError, match=shares):
        of_linear.loaded(a, b, bias, shifted, own, 1.0)
    twice = np.lib.stride_tricks.as_strided(held, (12, 10), (0, 4))
    with pytest.raises(tw.LaunchError, match="shares memory with another array, or with itself: C has"):
        of_linear.loaded(a, b, bias, r, twice, 1.0)
    assert (held == POISON).all()


def test_conditions_of_the_author_and_of_the_workspace(of_counted: Case) -> None:
    x, y = np.zeros(4, np.float32), np.full(4, POISON, np.float32)
    with pytest.raises(tw.LaunchError, match="the kernel does not serve these sizes"):
        of_counted.loaded(x, y, 1)
    assert (y == POISON).all()
    held = np.full(70, POISON, np.float32)
    with pytest.raises(tw.LaunchError, match=r"an address .*: X has .* aligned to 16 bytes"):
        of_counted.loaded(held[1:65], np.zeros(64, np.float32), 1)
    loaded = of_counted.loaded
    x, y = np.zeros(64, np.float32), np.full(64, POISON, np.float32)
    held = [CArray.of(tw.runtime.arrays.describe(one)) for one in (x, y)]
    _, launch = loaded._found("counted_cpu")
    memory = np.zeros(1 << 16, np.uint8)
    address = -(-memory.ctypes.data // 256) * 256
    places = [*map(ctypes.addressof, held)]
    name = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_int)(loaded._library.address("tilewright_error_name"))
    for given in ((address, 100), (address + 64, 1 << 15), (0, 1 << 15)):
        assert name(launch(*places, 1, *given, 0)) == b"TILEWRIGHT_WORKSPACE"
    assert name(launch(0, places[1], 1, address, 1 << 15, 0)) == b"TILEWRIGHT_MISSING"
    assert (y == POISON).all()
    assert launch(*places, 1, address, 1 << 15, 0) == 0
    assert (y == 1).all()


def test_a_processor_that_the_kernel_was_not_exported_for(tmp_path: Path) -> None:
    """The text for another level compiles here, and is refused at run time."""
    case = exported(tmp_path, counted.bind(), [tw.like("f32", 64)] * 2 + [None], archs=("x86-64",))
    text = (case.folder / "source" / "counted.cpp").read_text()
    assert "const Processor archs_cpu[] = {{arch_x86_64, 1}};" in text
    wider = text.replace("{{arch_x86_64, 1}}", "{{arch_x86_64, 99}}")
    from tilewright.runtime.native import Triple, compile_archive

    sources = [
        (wider, Triple("")),
        *((file.read_text(), Triple("")) for file in (case.folder / "source").glob("*_64_0.cpp")),
    ]
    sources.append(((case.folder / "source" / "tilewright.cpp").read_text(), Triple("")))
    _, shared = compile_archive(sources)
    loaded = LoadedKernel(case.manifest, shared, {}, checked=False)
    x, y = np.zeros(64, np.float32), np.full(64, POISON, np.float32)
    with pytest.raises(tw.LaunchError, match="no kernel was exported for this processor"):
        loaded(x, y, 1)
    assert (y == POISON).all()


ELSEWHERE = "x86-64" if host_arch() == "aarch64" else "aarch64"
COMMANDS = {
    "--shape A=8x8:f32": "no array B, bias, R, C; give --shape B=EXTENTS:DTYPE",
    "--shape Q=8x8:f32": "the kernel has no array 'Q'; it has A, B, bias, R, C",
    "--shape A=8by8:f32": "array 'A=8by8:f32' means nothing; nearest legal choice: A=4096x4096:bf16",
    "8x8:f32": "8x8:f32: arrays of a kernel have names; nearest legal choice: --shape",
    "{all} --arch sm_91": "unknown architecture 'sm_91'; known: ",
    f"{{all}} --arch {ELSEWHERE}": f"{ELSEWHERE} is the architecture of another machine than this one",
    "{all} --name 3d": "name '3d' is no name of C functions; nearest legal choice: kernel_3d",
    "{all} --shape A=8x8:i4": "A is i4, whose elements share bytes, and no such array is exported; nearest",
    "{all} --shape A=8x8:f16": "A has more than one dtype (f16, f32)",
}


@pytest.mark.parametrize("words", COMMANDS)
def test_wrong_commands(words: str, tmp_path: Path) -> None:
    every = " ".join(f"--shape {name}=8x8:f32" for name in "ABRC") + " --shape bias=8:f32"
    given = words.format(all=every).split()
    done = CliRunner().invoke(app, ["export", f"{__file__}:linear", *given, "-o", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert COMMANDS[words] in done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("8x8:f32", "matmul takes a, b and perhaps the result, and was given 1 arrays"),
        ("8x8:f32 9x8:f32", "K is the same"),
        ("8x8:f32 8x9:f32 9x8:f32", "nearest legal choice: (8, 9)"),
        ("8x8:f32 8x9:f32 --set bias=1", "matmul is exported with precision= and schedule= only"),
        ("8x8:f32 8x9:f32 --set precision=fast", "unknown precision 'fast'"),
        ("8x8:f32 8x9:f32 --set schedule=7", "--schedule '7' is no schedule"),
    ],
)
def test_wrong_commands_of_matmul(words: str, said: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", "matmul", *words.split(), "-o", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert said in done.output


def test_matmul_is_exported(tmp_path: Path) -> None:
    schedule = 'tw.Schedule(tw.atoms.fma("bf16", lanes=(1, 1), each=(4, 8)), (32, 64, 64), staging="panels")'
    words = ["export", "matmul", "64x48:bf16", "48x80:bf16:F", "-o", str(tmp_path)]
    done = CliRunner().invoke(app, [*words, "--set", f"schedule={schedule}"])
    assert done.exit_code == 0, done.output
    assert 'class 0: tw.Schedule(tw.atoms.fma("bf16", lanes=(1, 1), each=(4, 8)), (32, 64, 64)' in done.output
    a, b = (
        np.random.default_rng(2).integers(-4, 5, shape).astype(tw.bf16.numpy)
        for shape in ((33, 20), (50, 20))
    )
    d = np.empty((33, 50), tw.bf16.numpy)
    tw.load_kernel(tmp_path)(a, b.T, d)
    assert (d == (a.astype(np.float32) @ b.T.astype(np.float32)).astype(d.dtype)).all()


# ---------------------------------------------------------------- the folder, and its check


def test_manifest(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    """All fields are compared, except versions and digests of compiled code."""
    schedule = tw.Schedule(tw.atoms.fma("f32", lanes=(1, 1), each=(4, 8)), (32, 64, 64), staging="panels")
    kinds = [*[square("f32", 64)] * 2, tw.like("f32", 64), *[square("f32", 64)] * 2, None]
    made = exported(tmp_path, linear.bind(schedule=schedule), kinds, archs=("x86-64-v3",)).manifest
    assert made == json.loads((tmp_path / MANIFEST).read_text())
    assert {*made["versions"]} == {"tilewright", "host"}
    shown = {**made, "versions": sorted(made["versions"]), "sha256": sorted(made["sha256"])}
    golden(json.dumps(shown, indent=1) + "\n", "manifest.json")
    golden((tmp_path / "linear.h").read_text(), "linear.h")


def test_a_wrong_kernel_is_found_before_its_first_use(
    of_linear: Case, of_counted: Case, tmp_path: Path
) -> None:
    """The folder claims that the kernel subtracts the bias, or that the reference counted further."""
    folder = tmp_path / "linear"
    shutil.copytree(of_linear.folder, folder)
    manifest = (folder / MANIFEST).read_text()
    first = json.loads(manifest)
    assert "add(" in first["computes"] or "+" in first["computes"], first["computes"]
    first["computes"] = first["computes"].replace("add(", "sub(", 1).replace(" + ", " - ", 1)
    (folder / MANIFEST).write_text(json.dumps(first))
    rng = np.random.default_rng(1)
    arrays = [strided(rng, 8, 8, 0), strided(rng, 8, 8, 0), np.zeros(8, np.float32), strided(rng, 8, 8, 0)]
    c = np.full((8, 8), POISON, np.float32)
    with pytest.raises(tw.WrongResultError, match="linear, class 0 on cpu, computes a small problem wrong"):
        tw.load_kernel(folder)(*arrays, c, 1.0)
    assert (c == POISON).all()
    tw.load_kernel(folder, check=False)(*arrays, c, 1.0)
    assert not (c == POISON).any()
    loaded = tw.load_kernel(of_counted.folder)
    loaded._expected[0]["expected_Y"][3] += 1 << 20
    x, y = np.zeros(64, np.float32), np.full(64, POISON, np.float32)
    with pytest.raises(tw.WrongResultError, match=r"1 of .* elements of Y"):
        loaded(x, y, 1)
    assert (y == POISON).all()


def test_loops_that_carry_a_state_are_exported_and_checked(tmp_path: Path) -> None:
    kernels = kernels_in(load(ROOT / "examples" / "18_loops_with_a_state.py"))
    arrays = [tw.like("f32", 64, 48), tw.like("f32", 200, 48), tw.like("i32", 64), tw.like("f32", 64)]
    case = exported(tmp_path, kernels["cross_entropy"].bind(), arrays)
    rng = np.random.default_rng(6)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((37, 21), (90, 21)))
    word, loss = rng.integers(0, 90, 37).astype(np.int32), np.full(37, np.nan, np.float32)
    assert case.loaded(x, w, word, loss) == "cpu"
    scores = x.astype(np.float64) @ w.T.astype(np.float64)
    exact = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(37), word]
    assert np.abs(loss - exact).max() < 1e-5
    text = (tmp_path / MANIFEST).read_text()
    first = json.loads(text)
    assert "log(" in first["computes"]
    first["computes"] = first["computes"].replace("log(", "exp(", 1)
    (tmp_path / MANIFEST).write_text(json.dumps(first))
    with pytest.raises(tw.WrongResultError, match=r"cross_entropy, class 0 .* elements of loss"):
        tw.load_kernel(tmp_path)(x, w, word, loss)


def test_a_buffer_for_a_gpu_keeps_the_strides_of_an_array() -> None:
    array = strided(np.random.default_rng(4), 5, 7, 3)
    flat, seen = _spread(array)
    assert flat.shape == (4 * 10 + 7,)
    assert seen.strides == array.strides
    assert (seen == array).all()
    assert np.shares_memory(flat, seen)
    assert flat.flags.c_contiguous


def test_damaged_folders(of_counted: Case, tmp_path: Path) -> None:
    with pytest.raises(
        tw.LaunchError, match=r"manifest.json: No such file.*a folder that `tilewright export` wrote"
    ):
        tw.load_kernel(tmp_path)
    folder = tmp_path / "counted"
    shutil.copytree(of_counted.folder, folder)
    library = folder / "libcounted.so"
    library.write_bytes(library.read_bytes()[:-1] + b"x")
    with pytest.raises(tw.LaunchError, match=r"libcounted.so is not the file that was exported"):
        tw.load_kernel(folder)
    library.unlink()
    with pytest.raises(tw.LaunchError, match=r"libcounted.so: No such file"):
        tw.load_kernel(folder)
    (folder / MANIFEST).write_text('{"format": 99}')
    with pytest.raises(tw.LaunchError, match="format 99; nearest legal choice: 1"):
        tw.load_kernel(folder)
    for key in of_counted.manifest.keys() - {"format", "kernel", "about", "language"}:
        rest = {name: value for name, value in of_counted.manifest.items() if name != key}
        (folder / MANIFEST).write_text(json.dumps(rest))
        with pytest.raises(tw.LaunchError, match=f"manifest.json has no '{key}'; nearest: export it again"):
            tw.load_kernel(folder)


def test_the_check_takes_the_problem_of_this_machine(of_linear: Case) -> None:
    """Kernels of other architectures may have other divisors; their problems are refused here."""
    manifest = json.loads(json.dumps(of_linear.manifest))
    (first, *_), data = manifest["kernels"], (of_linear.folder / "liblinear.so").read_bytes()
    foreign = json.loads(json.dumps(first))
    foreign["check"]["arrays"]["A"]["shape"][1] += 1
    manifest["kernels"].insert(0, foreign)
    LoadedKernel(manifest, data, {}, checked=True).check("cpu")
    manifest["kernels"] = [foreign]
    with pytest.raises(tw.LaunchError, match="an extent"):
        LoadedKernel(manifest, data, {}, checked=True).check("cpu")


def test_an_option_with_an_array_that_is_given_again_begins_a_class() -> None:
    """The commands of the page: the arrays of one option belong to one class."""
    first = "A=512x256:f32,B=256x128:f32,bias=128:f32,R=512x128:f32,C=512x128:f32"
    texts = [first, "B=256x128:f32:F", "A=4x256:f32,B=256x128:f32,R=4x128:f32,C=4x128:f32"]
    problems = read_problems(texts, linear.bind().program.parameters)
    assert [[one and (one.shape, one.strides) for one in problem[:2]] for problem in problems] == [
        [((512, 256), (256, 1)), ((256, 128), (128, 1))],
        [((512, 256), (256, 1)), ((256, 128), (1, 256))],
        [((4, 256), (256, 1)), ((256, 128), (128, 1))],
    ]
    apart = read_problems([*first.split(","), "A=8x256:f32,A=9x256:f32"], linear.bind().program.parameters)
    assert [problem[0].shape[0] for problem in apart if problem[0]] == [512, 8, 9]


@tw.kernel(X="N", Y="N")
def racing(X, Y):
    """Blocks write the same elements. */ nothing /* \\"""
    tw.require(X.shape[0] < 1 << 20, "few elements \\")
    n = tw.block_index(tw.ceil_div(X.shape[0], 16))
    tw.copy(tw.load(X.tile((16,), (n,)).partition((16,))) * 2.0, Y.tile((16,), (0,)))


def test_a_kernel_that_the_reference_refuses_is_exported_without_a_check(tmp_path: Path) -> None:
    case = exported(tmp_path, racing.bind(), [tw.like("f32", 64)] * 2)
    assert [one["check"] for one in case.manifest["kernels"]] == [None]
    x, y = np.full(64, 3, np.float32), np.full(64, POISON, np.float32)
    assert case.loaded(x, y) == "cpu"
    assert (y[:16] == 6).all()
    assert (y[16:] == POISON).all()
    far = np.zeros(1 << 20, np.float32)
    with pytest.raises(tw.LaunchError, match="does not serve these sizes"):
        case.loaded(far, far.copy())


def test_each_class_tells_the_workspace_of_its_own_extents(tmp_path: Path) -> None:
    case = exported(
        tmp_path,
        counted.bind(),
        *([tw.like("f32", extent), tw.like("f32", extent), None] for extent in (640, 1920)),
    )
    (first, second), (of_first, of_second) = case.manifest["kernels"], (640 // 64, 1920 // 64)
    assert first["file"] == second["file"]
    assert first["workspace_bytes"] == of_first * 64 * 4
    assert second["workspace_bytes"] == of_second * 64 * 4


def test_strides_beyond_all_memory_are_refused(of_linear: Case) -> None:
    """Offsets in bits stay within 64 bits, so no sum of the checks overflows."""
    library = ctypes.CDLL(str(of_linear.folder / "liblinear.so"))
    a = np.zeros((8, 8), np.float32)
    for stride in (1 << 56, -(1 << 63), (1 << 63) - 1):
        arrays = [CArray(a.ctypes.data, (8, 8), (8, 1)) for _ in range(5)]
        arrays[0] = CArray(a.ctypes.data, (8, 8), (stride, 1))
        needed = ctypes.c_ulonglong()
        given = [ctypes.addressof(one) for one in arrays]
        error = library.linear_cpu_workspace(*map(ctypes.c_void_p, given), None, ctypes.byref(needed))
        assert error == 3 | 1 << 8, stride


def test_cmake_finds_the_library(of_linear: Case, tmp_path: Path) -> None:
    """The file sets the properties of a target; CMake reads it if it is installed."""
    text = (of_linear.folder / "CMakeLists.txt").read_text()
    assert "tilewright::linear" in text
    assert "@NAME@" not in text
    if (
        (cmake := shutil.which("cmake")) is None
        or shutil.which("ninja") is None
        or shutil.which("c++") is None
    ):
        return
    (tmp_path / "main.cpp").write_text(
        '#include "linear.h"\nint main() {\n'
        "  return linear_cpu(0, 0, 0, 0, 0, 1, 0, 0, 0) != (TILEWRIGHT_MISSING | 1 << 8);\n}\n"
    )
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(user CXX)\n"
        f"add_subdirectory({of_linear.folder} exported)\n"
        "add_executable(user main.cpp)\ntarget_link_libraries(user tilewright::linear)\n"
    )
    for words in (
        [cmake, "-G", "Ninja", "-S", ".", "-B", "build"],
        [cmake, "--build", "build"],
        ["build/user"],
    ):
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_program_of_the_page(tmp_path: Path) -> None:
    """The page shows the kernel, the command, the program and its output."""
    page = (ROOT / "docs" / "cpp.md").read_text()
    fences = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (kernel,), (program,) = (
        [text for kind, text in fences if kind == which][:1] for which in ("python", "cpp")
    )
    command, built_and_run = [text for kind, text in fences if kind == "text"][:2]
    (tmp_path / "linear.py").write_text(kernel)
    words = (
        command.replace("linear.py:", f"{tmp_path}/linear.py:")
        .replace("-o exported", f"-o {tmp_path}")
        .split()
    )
    words[words.index("x86-64-v3")] = "x86-64"
    said = CliRunner().invoke(app, words[1:])
    assert said.exit_code == 0, said.output
    (tmp_path / "program.cpp").write_text(program)
    done = subprocess.run(
        [built(tmp_path / "program.cpp", tmp_path, "linear")], capture_output=True, text=True
    )
    assert done.stdout == built_and_run.splitlines()[1] + "\n"
