"""Every script in examples/ runs to its end, warnings being errors.

The docstring of an example has a line that says what must be installed, by distribution name:
``Needs: scikit-learn, tqdm.`` or ``Needs: nothing else.``
"""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import oplib

EXAMPLES = sorted(Path(__file__).parents[1].glob("examples/*.py"))


def needs(text: str) -> list[str]:
    """Return the distributions that the example `text` says it needs."""
    line = re.search(r"^Needs: (.+?)\.?$", ast.get_docstring(ast.parse(text)) or "", re.MULTILINE)
    if line is None:
        raise ValueError("the docstring of an example has a line `Needs: ...`")
    return [] if line[1] == "nothing else" else line[1].split(", ")


def is_absent(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return True
    return False


BRIEFLY = {"transformer": ["--steps", "6"], "denoise": ["--steps", "30"]}
"""Arguments that make a long example short."""


def run_script(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(path), *BRIEFLY.get(path.stem, ())],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(oplib.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(example: Path, tmp_path: Path) -> None:
    absent = list(filter(is_absent, needs(example.read_text("utf-8"))))
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)}")
    result = run_script(example, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    if example.stem in BRIEFLY:
        assert [path.suffix for path in tmp_path.iterdir()] in ([".svg"], [".png"])


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_opcheck_passes_the_operators_of_the_example(example: Path) -> None:
    text = example.read_text("utf-8")
    absent = list(filter(is_absent, needs(text)))
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)}")
    result = subprocess.run(
        [sys.executable, "-m", "oplib", "check", example.stem],
        env={**os.environ, "PYTHONPATH": str(Path(oplib.__file__).parents[1])},
        cwd=example.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    defines = "custom_op(" in text or "Library(" in text
    assert result.returncode == (0 if defines else 2), result.stdout + result.stderr


NPU = """\
kernels:
  2 launches, 0 transfers
  result on npu
fallback:
  std::exp has no kernel for npu and runs on the host, on copies
  std::sum has no kernel for npu and runs on the host, on copies
views and writes:
  [0.3, 0.4, 9.0]
  [0.0, 0.0, 9.0]
gradient:
  on npu, [0.15   0.3057 0.4613]
fake:
  Tensor(fake, f64[2, 1], device=npu)
captured:
  graph f(x: f64[2,3]@npu):
      strided_get: f64[3,2]{1,3}@npu = std.strided_get(x, [3, 2], [1, 3], 0)
      matmul: f64[2,2]@npu = std.matmul(x, strided_get)
      swish: f64[2,2]@npu = npu.swish(matmul, 2.0)
      mul: f64[2,2]@npu = std.mul(swish, 10)
      return mul
refused:
  std::add: tensors of one call must live on one device
    x: npu
    y: cpu
    move them first, or make the constant inside the call
"""


def test_the_backend_example_prints_what_its_device_did() -> None:
    result = run_script(Path(__file__).parents[1] / "examples" / "npu.py", Path.cwd())
    assert result.stdout == NPU, result.stderr


def test_an_example_that_fails_is_reported(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text("import warnings\nwarnings.warn('old')\n", "utf-8")
    result = run_script(script, script.parent)
    assert result.returncode != 0
    assert "UserWarning: old" in result.stderr


def test_an_example_says_what_it_needs() -> None:
    assert needs('"""Title.\n\nNeeds: scikit-learn, tqdm.\n"""') == ["scikit-learn", "tqdm"]
    assert needs('"""Title.\n\nNeeds: nothing else.\n"""') == []
    with pytest.raises(ValueError, match="Needs"):
        needs('"""Title."""')


def test_a_distribution_that_is_not_installed_is_absent() -> None:
    assert is_absent("oplib-needs-no-such-thing")
    assert not is_absent("numpy")
