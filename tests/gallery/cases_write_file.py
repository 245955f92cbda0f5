from __future__ import annotations

import io

import pytest

import oplib
from tests.gallery.harness import Case, Fails, gallery, normal

example = gallery("write_file")
write_file, print_tensor = example.write_file, example.print_tensor
X = normal(3)

CASES = [
    Case(
        write_file,
        "write_file(str filename, Tensor data) -> ()",
        [],
        fails=[Fails(("/nowhere/at/all/x.txt", X), OSError, "/nowhere/at/all/x.txt")],
    ),
    Case(
        print_tensor,
        "print_tensor(Tensor x, str message) -> ()",
        [(X, "x")],
        opcheck={"samples": [((X, "x"), {})]},
        program=(lambda x: (print_tensor(x * 2, "twice"), x + 1)[1], (X,)),
    ),
]


def test_an_error_of_the_system_names_the_operator_in_a_note():
    with pytest.raises(OSError) as caught:  # noqa: PT011
        write_file("/nowhere/at/all/x.txt", X)
    assert any("gallery::write_file" in note for note in caught.value.__notes__)


def test_effects_keep_their_order_in_a_graph_and_after_loading_it(tmp_path, capsys):
    path = str(tmp_path / "log.txt")

    def f(x):
        write_file(path, x)
        print_tensor(x * 1, "first")
        write_file(path, x * 2)
        print_tensor(x, "second")
        return x * 3

    program = oplib.capture(f, oplib.ones(2))
    assert capsys.readouterr().out == ""
    file = io.BytesIO()
    oplib.program.save(program, file)
    for run in (program, oplib.program.load(file)):
        assert run(oplib.ones(2)).tolist() == [3.0, 3.0]
        assert capsys.readouterr().out.split() == "first [1.0, 1.0] second [1.0, 1.0]".split()
    assert (tmp_path / "log.txt").read_text("utf-8").split("\n") == ["1 1", "2 2", "1 1", "2 2", ""]


def test_data_that_requires_grad_is_read(tmp_path):
    x = oplib.ones(2, requires_grad=True)
    write_file(str(tmp_path / "x.txt"), x * 2)
    assert (tmp_path / "x.txt").read_text("utf-8") == "2 2\n"
