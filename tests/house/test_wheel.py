"""`pip wheel .` builds one pure wheel, which holds the package and nothing else."""

from __future__ import annotations

import email
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BESIDE_PYTHON = {
    "tilewright/py.typed",
    "tilewright/report/page.html",
    "tilewright/tables/sm_90a-nvidia-h200-132.json",
    *(f"tilewright/shipping/text/{name}.cpp" for name in ("common", "cpu", "cuda", "driver", "hip", "host")),
    *(f"tilewright/jax/text/{name}.cpp" for name in ("calls", "gpus", "processors")),
    *(f"tilewright/torch/text/{name}.cpp" for name in ("operations", "records")),
    "tilewright/shipping/text/CMakeLists.txt",
    "tilewright/shipping/text/tilewright.h",
}
"""All files of the package that are no modules."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build with the backend that pip uses; building needs no network."""
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = folder.iterdir()
    assert file.name == "tilewright-0.1.0-py3-none-any.whl"
    return zipfile.ZipFile(file)


def test_the_wheel_has_the_package_and_its_metadata(wheel: zipfile.ZipFile) -> None:
    source = ROOT / "src"
    modules = {path.relative_to(source).as_posix() for path in (source / "tilewright").rglob("*.py")}
    told = {
        f"tilewright-0.1.0.dist-info/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")
    }
    told.add("tilewright-0.1.0.dist-info/licenses/LICENSE")
    assert {*wheel.namelist()} == modules | BESIDE_PYTHON | told


def test_the_wheel_is_pure_and_serves_python_3_11_to_3_14(wheel: zipfile.ZipFile) -> None:
    about = email.message_from_bytes(wheel.read("tilewright-0.1.0.dist-info/METADATA"))
    kind = email.message_from_bytes(wheel.read("tilewright-0.1.0.dist-info/WHEEL"))
    assert (kind["Root-Is-Purelib"], kind["Tag"]) == ("true", "py3-none-any")
    assert about["Requires-Python"] == ">=3.11"
    versions = {
        value.rpartition(" ")[2] for value in about.get_all("Classifier", []) if "Python :: 3." in value
    }
    assert versions == {"3.11", "3.12", "3.13", "3.14"}
    extras = about.get_all("Provides-Extra", [])
    assert {"cuda", "jax", "native", "torch"} <= {*extras}
    needed = [one.partition(";")[0] for one in about.get_all("Requires-Dist", []) if "extra ==" not in one]
    assert not any("torch" in one or "cuda" in one or "jax" in one for one in needed)
