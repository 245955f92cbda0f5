"""write_file, print_tensor: operators that only have effects.

They return nothing, so a graph keeps them for what they do, in the order of the program, among
themselves and with other effects of the same name, also after it was saved and loaded. Data that
requires grad is read; nothing flows back.

Needs: nothing else.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
write_file = lib.define("write_file(str filename, Tensor data) -> ()", effects=("io",)).op
print_tensor = lib.define("print_tensor(Tensor x, str message) -> ()", effects=("io",)).op


@write_file.register_kernel("cpu")
def _(filename, data):
    with open(filename, "a", encoding="utf-8") as file:
        np.savetxt(file, np.atleast_2d(data), "%g")


@print_tensor.register_kernel("cpu")
def _(x, message):
    print(f"{message} {x.tolist()}")


write_file.register_fake(lambda filename, data: None)
print_tensor.register_fake(lambda x, message: None)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "log.txt")

        def program(x):
            print_tensor(x, "before")
            y = x * 2
            write_file(path, y)
            print_tensor(y, "after")

        captured = oplib.capture(program, oplib.ones(2))
        print("captured, nothing was printed yet")
        captured(oplib.tensor([1.0, 2.0]))
        print("the file says", Path(path).read_text("utf-8").strip())


if __name__ == "__main__":
    main()
