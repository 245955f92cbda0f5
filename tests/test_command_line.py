"""The command line: what it prints, and the codes it ends with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oplib
from oplib.__main__ import main

RIGHT = """
import numpy as np
import oplib

@oplib.custom_op("{name}::double", mutates_args=())
def double(x: np.ndarray) -> np.ndarray:
    "Twice x."
    return x + x

double.register_fake(oplib.shapes.like("x"))
double.register_vjp(x=lambda grad: grad * 2)

def f(x):
    return double(x) + 1

def call():
    return double(double(oplib.ones(2)))

def fails():
    raise KeyError("mine")

def nothing():
    return None
"""
WRONG = RIGHT.replace("grad * 2", "grad * 3")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that writes a module and returns its name; its operators are removed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text.format(name=name))
        made.append(name)
        return name

    yield write
    for name in made:
        for qualname in oplib.list_ops(name):
            for registration in oplib.get_op(qualname).registrations:
                if registration.facet == "definition":
                    registration.remove()
        sys.modules.pop(name, None)


def test_list_counts_namespaces_and_prints_schemas(capsys):
    assert main(["list"]) == 0
    assert "std " in capsys.readouterr().out
    assert main(["list", "std"]) == 0
    assert "std::exp(Tensor x) -> Tensor" in capsys.readouterr().out.splitlines()


def test_list_of_an_unknown_namespace_ends_with_2(capsys):
    assert main(["list", "nowhere"]) == 2
    assert "no operator in namespace 'nowhere'" in capsys.readouterr().err


def test_show_prints_facets_and_on_demand_the_source(capsys):
    assert main(["show", "std::exp"]) == 0
    text = capsys.readouterr().out
    assert "gradient rule" in text
    assert "def plan" not in text
    oplib.exp(oplib.ones(1))
    assert main(["show", "std::exp", "--source"]) == 0
    assert "def plan" in capsys.readouterr().out


def test_show_of_an_unknown_operator_says_what_may_be_meant(capsys):
    assert main(["show", "std::expp"]) == 2
    assert "did you mean 'std::exp" in capsys.readouterr().err


def test_explain_prints_each_call_once(module, capsys):
    name = module("cli_explain", RIGHT)
    assert main(["explain", f"{name}:call"]) == 0
    text = capsys.readouterr().out
    assert text.count("called as  double(x: f64[2])") == 1
    assert "③ autograd" in text


def test_explain_of_what_calls_no_operator_ends_with_2(module, capsys):
    assert main(["explain", f"{module('cli_nothing', RIGHT)}:nothing"]) == 2
    assert "calls no operator" in capsys.readouterr().err


def test_a_users_exception_is_shown_with_the_users_frames_only(module, capsys):
    assert main(["explain", f"{module('cli_raises', RIGHT)}:fails"]) == 2
    text = capsys.readouterr().err
    assert "KeyError: 'mine'" in text
    assert "in fails" in text
    assert "__main__" not in text


def test_check_of_right_operators_ends_with_0(module, capsys):
    assert main(["check", module("cli_right", RIGHT), "--checks", "schema,fake,gradient"]) == 0
    assert "opcheck cli_right::double" in capsys.readouterr().out


def test_check_of_a_wrong_operator_ends_with_1(module, capsys):
    assert main(["check", f"{module('cli_wrong', WRONG)}:double", "--skip", "determinism"]) == 1
    assert "gradient        FAILED" in capsys.readouterr().out


def test_check_prints_json(module, capsys):
    assert main(["check", module("cli_json", WRONG), "--checks", "gradient", "--json"]) == 1
    [report] = json.loads(capsys.readouterr().out)
    assert report["operator"] == "cli_json::double"
    assert report["ok"] is False


@pytest.mark.parametrize(
    ("text", "suffix", "message"),
    [
        ("1 / 0", "", "ZeroDivisionError"),
        ("x = 1", "", "defines no operator"),
        (RIGHT, ":triple", "defines no operator 'triple'"),
    ],
)
def test_check_where_nothing_can_be_checked_ends_with_2(module, capsys, text, suffix, message):
    assert main(["check", module("cli_empty", text) + suffix]) == 2
    assert message in capsys.readouterr().err


def test_check_of_an_unknown_check_or_module_ends_with_2(module, capsys):
    assert main(["check", module("cli_known", RIGHT), "--checks", "speed"]) == 2
    assert "there is no check 'speed'" in capsys.readouterr().err
    assert main(["check", "cli_no_such_module"]) == 2
    assert "No module named 'cli_no_such_module'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("form", "expected"),
    [("text", "cli_graph.double(x)"), ("dot", "digraph"), ("mermaid", "flowchart")],
)
def test_graph_prints_a_captured_function(module, capsys, form, expected):
    name = module("cli_graph", RIGHT)
    assert main(["graph", f"{name}:f", "f64[2,3]", "--format", form]) == 0
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize("text", ["f64", "f65[2]"])
def test_graph_refuses_inputs_it_cannot_read(module, capsys, text):
    assert main(["graph", f"{module('cli_inputs', RIGHT)}:f", text]) == 2
    assert text.partition("[")[0] in capsys.readouterr().err


def test_info_names_versions_and_backends(capsys):
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert f"oplib     {oplib.__version__}" in text
    assert "backend   cpu at CPU" in text


def test_the_module_runs_as_a_program_from_the_current_directory(tmp_path):
    (tmp_path / "local.py").write_text(WRONG.format(name="local"))
    environment = {**os.environ, "PYTHONPATH": str(Path(oplib.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-m", "oplib", "check", "local", "--checks", "gradient"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "local::double" in done.stdout
