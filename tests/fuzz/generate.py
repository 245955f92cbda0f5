"""Makes random programs, by running them: a step is chosen for the tensors that exist.

Steps that raise are mostly taken back; some stay as the last one, because refusing is behaviour
too."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from oplib import Tensor
from oplib.tensor.addressing import geometry_of
from oplib.tensor.geometry import self_overlap
from oplib.tensor.storage import owner_of
from tests.fuzz.inputs import random_layout
from tests.fuzz.program import Program, Step, run_step

__all__ = ["random_program"]


def random_program(seed: int, most_steps: int = 30) -> Program:
    """Return the program of a seed."""
    pick = random.Random(seed)
    return _Maker(pick, pick.randint(3, most_steps)).program()


class _Maker:
    """Makes one program."""

    def __init__(self, pick: random.Random, wanted: int) -> None:
        self.pick = pick
        self.wanted = wanted
        self.layout = random_layout(pick)
        tensors = self.layout.make(0).tensors
        self.names: dict[str, Tensor] = {f"x{i}": tensor for i, tensor in enumerate(tensors)}
        self.steps: list[Step] = []
        self.made = 0
        self.no_grad = 0

    def program(self) -> Program:
        """Return the finished program."""
        ended = False
        for _ in range(4 * self.wanted):
            if len(self.steps) >= self.wanted or ended:
                break
            ended = not self._try_step()
        return Program(self.layout, tuple(self.steps), self._results())

    def _results(self) -> tuple[str, ...]:
        live = list(self.names)
        count = self.pick.randint(1, min(len(live), 7))
        chosen = self.pick.sample(live, count)
        if self.pick.random() < 0.2:
            chosen.append(self.pick.choice(chosen))
        return tuple(chosen)

    def _try_step(self) -> bool:
        """Add a step; return False if it raises and was kept as the last one."""
        if self.no_grad == 0 and self.pick.random() < 0.06:
            self.no_grad = self.pick.randint(1, 4)
        step = Step(self._line(), self.no_grad > 0)
        names: dict[str, Any] = dict(self.names)
        try:
            with np.errstate(all="ignore"):
                run_step(step, names)
        except Exception:
            if self.pick.random() < 0.04:
                self.steps.append(step)
                return False
            return True
        self.no_grad = max(0, self.no_grad - 1)
        self.steps.append(step)
        self.names = {name: value for name, value in names.items() if isinstance(value, Tensor)}
        return True

    # ------------------------------------------------------------------ choosing

    def _line(self) -> str:
        kinds: list[tuple[Callable[[], str], int]] = [
            (self._functional, 18),
            (self._view, 34),
            (self._in_place, 26),
            (self._opaque, 16),
            (self._exchange, 5),
            (self._drop, 3),
            (self._moved, 6),
        ]
        (chosen,) = self.pick.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
        return chosen()

    def _new(self) -> str:
        self.made += 1
        return f"v{self.made - 1}"

    def _any(self) -> str:
        """Return a live name, recent ones more often."""
        live = list(self.names)
        return live[-1 - min(int(self.pick.expovariate(0.35)), len(live) - 1)]

    def _fitting(self, name: str) -> str:
        """Return an operand that broadcasts to the shape of `name`: a tensor or a number."""
        shape = self.names[name].shape
        fits = [other for other, t in self.names.items() if _broadcasts(t.shape, shape)]
        if self.pick.random() < 0.2 or not fits:
            return self.pick.choice(["2.0", "-1", "3", "0.5"])
        return self.pick.choice(fits)

    def _same_shape(self, name: str) -> str:
        shape = self.names[name].shape
        return self.pick.choice([n for n, t in self.names.items() if t.shape == shape])

    # ------------------------------------------------------------------ steps

    def _functional(self) -> str:
        x, new = self._any(), self._new()
        y = self._fitting(x)
        same = self._same_shape(x)
        text = self.pick.choice(
            [
                f"{x} * {y}",
                f"{x} + {y}",
                f"{x} - {y}",
                f"-{x}",
                f"{x}.clone()",
                f"oplib.maximum({x}, {y})" if self.names[x].dtype.kind != "c" else f"{x}.conj()",
                f"oplib.where({x} == 0, {x}, {same})",
                f"fz.mix({x}, {same})",
                f"oplib.stack([{x}, {same}], {self.pick.randint(0, self.names[x].ndim)})",
                f"oplib.concat([{x}.reshape(-1), {y if y[0] in 'xv' else x}.reshape(-1)])",
                f"{x}.reshape(-1)",
                f"{x}.contiguous()",
                f"oplib.zeros({list(self.names[x].shape)})",
                "oplib.tensor([1.0, 2.0])",
                f"oplib.empty_like({x}).copy_({x})",
                f"{x}.cast('float64')",
            ]
        )
        return f"{new} = {text}"

    def _view(self) -> str:
        x, new = self._any(), self._new()
        tensor = self.names[x]
        kinds = [self._index, self._index, self._permuted, self._strided, self._shaped]
        if tensor.ndim >= 2:
            kinds.append(self._diagonal)
        if tensor.ndim:
            kinds += [self._part, self._window]
        kinds.append(self._handle)
        return f"{new} = {self.pick.choice(kinds)(x, tensor)}"

    def _index(self, x: str, tensor: Tensor) -> str:
        return f"{x}[{self._basic(tensor)}]"

    def _basic(self, tensor: Tensor) -> str:
        """Return a basic index."""
        parts = []
        for length in tensor.shape[: self.pick.randint(0, tensor.ndim)]:
            if length and self.pick.random() < 0.4:
                parts.append(str(self.pick.randint(-length, length - 1)))
            else:
                bounds = [
                    self.pick.choice(["", "", str(self.pick.randint(-length, length))])
                    for _ in "ab"
                ]
                parts.append(f"{bounds[0]}:{bounds[1]}:{self.pick.choice(['', '', 2, -1, -2])}")
        if self.pick.random() < 0.1:
            parts.insert(self.pick.randint(0, len(parts)), "None")
        return (
            ", ".join([*parts, "..."])
            if self.pick.random() < 0.3 or not parts
            else ", ".join(parts)
        )

    def _permuted(self, x: str, tensor: Tensor) -> str:
        dims = list(range(tensor.ndim))
        self.pick.shuffle(dims)
        return self.pick.choice([f"{x}.permute({dims})", f"{x}.T", f"{x}.transpose({dims})"])

    def _strided(self, x: str, tensor: Tensor) -> str:
        """Return a strided view inside the memory of the owner (empty tensors share none)."""
        if not tensor.size:
            return f"{x}.alias()"
        owner = owner_of(tensor.numpy())
        count = owner.nbytes // tensor.itemsize
        shape = tuple(self.pick.choice([1, 2, 2, 3]) for _ in range(self.pick.randint(0, 2)))
        strides = tuple(self.pick.choice([1, 1, 2, 3, -1, 0]) for _ in shape)
        reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
        low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
        offset = self.pick.randint(-low, max(-low, count - 1 - high))
        if self.pick.random() < 0.7:
            offset = max(-low, min(offset, 3))
        return f"{x}.as_strided({list(shape)}, {list(strides)}, {offset})"

    def _shaped(self, x: str, tensor: Tensor) -> str:
        sizes = _factorizations(tensor.size)
        size = list(self.pick.choice(sizes)) if sizes else [0]
        wide = [self.pick.choice([2, 3]), *tensor.shape]
        wider = [n if n != 1 else self.pick.choice([1, 2, 3]) for n in tensor.shape]
        return self.pick.choice(
            [
                f"{x}.reshape({size})",
                f"{x}.flatten()",
                f"{x}.unsqueeze({self.pick.randint(0, tensor.ndim)})",
                f"{x}.squeeze()",
                f"{x}.expand({self.pick.choice([wide, wider])})",
            ]
        )

    def _diagonal(self, x: str, tensor: Tensor) -> str:
        first, second = self.pick.sample(range(tensor.ndim), 2)
        return f"{x}.diagonal({self.pick.randint(-1, 1)}, {first}, {second})"

    def _part(self, x: str, tensor: Tensor) -> str:
        axis = self.pick.randrange(tensor.ndim)
        length = max(tensor.shape[axis], 1)
        return self.pick.choice(
            [
                f"{x}.split({self.pick.randint(1, length)}, {axis})[0]",
                f"{x}.unbind({axis})[-1]",
                f"{x}.flip([{axis}])",
                f"{x}.narrow({axis}, {self.pick.randrange(length)}, 1)",
                f"fz.evens({x})",
                f"fz.turned({x})",
            ]
        )

    def _window(self, x: str, tensor: Tensor) -> str:
        axis = self.pick.randrange(tensor.ndim)
        size = self.pick.randint(1, max(1, tensor.shape[axis]))
        return f"{x}.unfold({axis}, {size}, {self.pick.randint(1, 3)})"

    def _handle(self, x: str, tensor: Tensor) -> str:
        if tensor.dtype.kind == "c":
            return self.pick.choice([f"{x}.real", f"{x}.imag", f"{x}.view_as_real()"])
        if tensor.ndim and tensor.shape[-1] == 2 and tensor.dtype == np.float64:
            return f"{x}.view_as_complex()"
        return self.pick.choice([f"{x}.detach()", f"{x}.alias()", f"{x}.real"])

    def _in_place(self) -> str:
        x = self._destination()
        y, tensor = self._fitting(x), self.names[x]
        index = self._basic(tensor)
        rows = tensor.shape[0] if tensor.ndim else 0
        positions = [self.pick.randrange(-rows, rows) for _ in range(2)] if rows else ...
        name = self.pick.choice(["add_", "sub_", "mul_", "copy_", "maximum_"])
        if tensor.dtype.kind == "c" and name == "maximum_":
            name = "mul_"
        return self.pick.choice(
            [
                f"{x}.{name}({y})",
                f"{x}.{name}({y})",
                f"{x}.neg_()",
                f"{x}.fill_({self.pick.choice([3, 0.5])})",
                f"{x}.zero_()",
                f"{x}[{index}] = {y if y[0] not in 'xv' else self._any()}",
                f"{x}[{index}] = {self._any()}",
                f"{x}[{index}] += {self.pick.choice(['1', '2.0', self._any()])}",
                f"{x}[{_shown(positions)}] = {self._any()}",
                f"{x}[{_shown(positions)}] += {self.pick.choice(['1', self._any()])}",
                f"{x}[{self._same_shape(x)} == 0] = 7.0",
                f"{x}.masked_fill_({x} == 1, 4.0)",
                f"{x}.set_value({self._same_shape(x)})",
                f"{x}.copy_({self._same_shape(x)})",
                f"{x} *= {y}",
            ]
        )

    def _exchange(self) -> str:
        """Copy one input into another one, the first step of an exchange."""
        live = [name for name in self.names if name.startswith("x")]
        x = self.pick.choice(live) if live else self._any()
        same = [n for n in live if n != x and self.names[n].shape == self.names[x].shape]
        y = self.pick.choice(same) if same else self._same_shape(x)
        return f"{x}.copy_({y})"

    def _destination(self) -> str:
        """Return a live name, one that does not overlap itself most of the time."""
        inputs = [name for name in self.names if name.startswith("x")]
        for _ in range(3):
            name = self.pick.choice(inputs) if inputs and self.pick.random() < 0.2 else self._any()
            if not self_overlap(geometry_of(self.names[name].array)):
                break
        return name

    def _opaque(self) -> str:
        x = self._destination()
        same, other = self._same_shape(x), self._destination()
        third = self._any()
        new = self._new()
        scalar = next(
            (n for n, t in self.names.items() if t.ndim == 0 and t.dtype == self.names[x].dtype), x
        )
        return self.pick.choice(
            [
                f"fz.inc_({x})",
                f"{new} = fz.inc_({x}, k=2.0)",
                f"fz.axpy_({x}, {same})",
                f"fz.axpy_({x}, {same})",
                f"fz.scale_({x}, {same})",
                f"{new} = fz.two_({x}, {other}, {third})",
                f"fz.lst_([{x}, None, {other}], {scalar})",
                f"fz.lst_([{x}, {same}, {x}], {scalar})",
                f"{new} = fz.opt_({self.pick.choice([x, 'None'])}, {third})",
                f"fz.swap_({x}, {same})",
            ]
        )

    def _moved(self) -> str:
        """Change where a handle lies."""
        x = self._any()
        tensor = self.names[x]
        others = [name for name, t in self.names.items() if t.dtype == tensor.dtype]
        permuted = (
            self._permuted(x, tensor).replace("(", "_(") if tensor.ndim else f"{x}.squeeze_()"
        )
        return self.pick.choice(
            [
                permuted if ".T" not in permuted else f"{x}.transpose_()",
                f"{x}.unsqueeze_({self.pick.randint(0, tensor.ndim)})",
                f"{x}.squeeze_()",
                self._strided(x, tensor).replace("as_strided", "as_strided_"),
                f"{x}.resize_({self.pick.choice([[], [2], [2, 1], [tensor.size]])})",
                f"{x}.set_({self.pick.choice(others)})",
            ]
        )

    def _drop(self) -> str:
        name = self._any()
        return f"del {name}" if len(self.names) > 2 else f"{self._new()} = {name}.clone()"


def _shown(index: Any) -> str:
    return "..." if index is ... else str(index)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def _factorizations(count: int) -> list[tuple[int, ...]]:
    """Return shapes of one to three axes with `count` elements."""
    pairs = [(n, count // n) for n in range(1, count + 1) if count % n == 0]
    return [(count,), *pairs, *((n, 1, m) for n, m in pairs)]
