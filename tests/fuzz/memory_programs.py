"""Random programs of views and writes, run by oplib and by the reference of `memory_model.py`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

import oplib
from oplib import Tensor
from tests.fuzz import operators as fz
from tests.fuzz.memory_model import Handle, Memory, Model, Refused

__all__ = ["MemoryProgram"]

Array = np.ndarray[Any, Any]
Pair = tuple[Tensor, Handle]
REFUSALS = (oplib.OplibError, TypeError)
IRREGULAR = "is not a regular part of its root"
"""What oplib says of a view that no strides describe in its root's order: documented, and final."""
LARGEST = 1e6


class MemoryProgram:
    """One random program; `run` returns how oplib differs from the reference, or nothing."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)
        self.lines: list[str] = []
        self.pairs: list[Pair] = []
        self.leaves: list[Pair] = []
        self.refused = self.compared = 0
        self.arrays: list[tuple[Array, Memory]] = []
        self.model = Model(0)

    def run(self) -> str:
        """Run the program to its end, or to the first difference."""
        self._inputs()
        for _ in range(self.pick.randint(4, 18)):
            self.model.recording = self.pick.random() > 0.08
            if not self.model.recording:
                with oplib.no_grad():
                    problem = self._step()
            else:
                problem = self._step()
            if IRREGULAR in problem:
                return ""
            if problem:
                return problem
            if any(np.abs(memory.data).max(initial=0) > LARGEST for memory in self.model.memories):
                return ""  # what follows would round
        self.model.recording = True
        return self._memory_difference() or self._gradient_difference()

    # ------------------------------------------------------------------ inputs

    def _inputs(self) -> None:
        dtypes = [self._dtype() for _ in range(self.pick.randint(1, 3))]
        kinds = [
            "plain" if d == "int64" else self.pick.choice(["leaf", "leaf", "plain"]) for d in dtypes
        ]
        sizes = [self.pick.choice([6, 8, 12]) for _ in dtypes]
        widths = [
            n * (2 if d[0] == "c" else 1) if k == "leaf" else 0
            for n, d, k in zip(sizes, dtypes, kinds, strict=True)
        ]
        self.model = Model(sum(widths))
        for number, (dtype, kind, size) in enumerate(zip(dtypes, kinds, sizes, strict=True)):
            numbers = np.random.default_rng(self.pick.randrange(10**6))
            value = numbers.integers(-2, 4, size).astype(dtype)
            if dtype[0] == "c":
                value = value + 1j * numbers.integers(-2, 4, size)
            self._input(value, kind, sum(widths[:number]), widths[number])

    def _dtype(self) -> str:
        return self.pick.choice(["float64"] * 4 + ["complex128", "float32", "int64"])

    def _input(self, value: Array, kind: str, start: int, width: int) -> None:
        array = value.copy()
        tensor, handle = oplib.from_numpy(array), self.model.new(value, None, value, False)
        self._enter(tensor, handle)
        if kind == "leaf":
            tensor.requires_grad = True
            handle.family.tracked = handle.memory.leaf = True
            handle.memory.rows[:, start : start + width] = np.eye(width)
            self.leaves.append((tensor, handle))
            if self.pick.random() < 0.8:
                self._functional(tensor, handle, "mul", 1)
        elif self.pick.random() < 0.5:  # a second handle on overlapping elements
            stop = self.pick.randint(1, len(array))
            part = self.model.apart(self.model.view(handle, lambda at: at[:stop]), False)
            self.pairs.append((oplib.from_numpy(array[:stop]), part))

    def _enter(self, tensor: Tensor, handle: Handle) -> None:
        owner = tensor.numpy()
        while owner.base is not None:
            owner = owner.base
        self.arrays.append((owner, handle.memory))
        self.pairs.append((tensor, handle))

    # ------------------------------------------------------------------ steps

    def _step(self) -> str:
        kinds = [self._view, self._view, self._write, self._write, self._compute, self._special]
        return self.pick.choice(kinds)()

    def _any(self) -> Pair:
        return self.pairs[-1 - min(int(self.pick.expovariate(0.4)), len(self.pairs) - 1)]

    def _fitting(self, shape: tuple[int, ...]) -> Any:
        """Return (tensor, handle) that broadcasts to a shape, or the same number twice."""
        if self.pick.random() < 0.3:
            return (self.pick.choice([2, -1, 0.5, 3.0]),) * 2
        fits = [p for p in self.pairs if _fits(p[1].shape, shape)]
        return self.pick.choice(fits) if fits else (2, 2)

    def _alike(self, text: str, ours: Callable[[], Any], theirs: Callable[[], Any]) -> Any:
        """Run a step in both; return its pair of results, or a text that says how they differ."""
        self.lines.append(text + ("" if self.model.recording else "  # no_grad"))
        reason = ""
        expected = None
        try:
            expected = theirs()
        except Refused as refused:
            reason = str(refused)
        try:
            found = ours()
        except REFUSALS as error:
            self.refused += 1
            return None if reason else f"raised {type(error).__name__}: {error}"
        if reason:
            return f"not refused: {reason}"
        return found, expected

    def _made(self, text: str, ours: Callable[[], Any], theirs: Callable[[], Any]) -> str:
        """Run a step that makes a handle; compare what it shows."""
        result = self._alike(text, ours, theirs)
        if result is None or isinstance(result, str):
            return result or ""
        tensor, handle = result
        self.pairs.append((tensor, handle))
        return _handle_difference(tensor, handle)

    def _written(self, text: str, ours: Callable[[], Any], theirs: Callable[[], Any]) -> str:
        result = self._alike(text, ours, theirs)
        return result if isinstance(result, str) else ""

    # ------------------------------------------------------------------ views

    def _view(self) -> str:
        if not self.model.recording:
            return ""  # a view made here is a constant until its base is written
        x, h = self._any()
        ndim, at = h.at.ndim - 1, h.at
        name = self.pick.choice(["index", "index", "permute", "expand", "whole", "parts", "apart"])
        if name == "index":
            key = self._key(h.shape)
            return self._made(f"x[{key}]", lambda: x[key], lambda: self.model.view(h, _at(key)))
        if name == "permute":
            order = self.pick.sample(range(ndim), ndim)
            return self._made(
                f"permute {order}",
                lambda: x.permute(order),
                lambda: self.model.view(h, lambda a: a.transpose([*order, ndim])),
            )
        if name == "expand":
            size = [2, *h.shape] if self.pick.random() < 0.5 else [1, *h.shape]
            return self._made(
                f"expand {size}",
                lambda: x.expand(size),
                lambda: self.model.view(h, lambda a: np.broadcast_to(a, (*size, a.shape[-1]))),
            )
        if name == "apart":
            return self._made("detach", x.detach, lambda: self._detached(h))
        if name == "parts":
            return self._parts(x, h)
        if ndim and self.pick.random() < 0.5:
            return self._windows(x, h)
        size = self.pick.choice(_sizes(int(np.prod(h.shape))))
        flat = at.reshape((*size, at.shape[-1]))
        if np.shares_memory(flat, at):
            return self._made(
                f"reshape {size}",
                lambda: x.reshape(size),
                lambda: self.model.view(h, lambda a: a.reshape((*size, a.shape[-1]))),
            )
        return self._strided(x, h)

    def _detached(self, h: Handle) -> Handle:
        return self.model.apart(h, True)

    def _key(self, shape: tuple[int, ...]) -> tuple[Any, ...]:
        key: list[Any] = []
        for length in shape[: self.pick.randint(0, len(shape))]:
            if length and self.pick.random() < 0.3:
                key.append(self.pick.randrange(-length, length))
            else:
                bounds = [self.pick.choice([None, self.pick.randint(-3, 3)]) for _ in "ab"]
                key.append(slice(*bounds, self.pick.choice([None, 2, -1, -2])))
        return (*key, None) if self.pick.random() < 0.1 else (*key, ...)

    def _parts(self, x: Tensor, h: Handle) -> str:
        if h.dtype.kind != "c":
            pairs = h.memory.dtype.kind == "c" and h.shape and h.shape[-1] == 2
            steps = [s // 8 for s in h.at.strides]
            pairs = pairs and steps[-2] == 1 and all(s % 2 == 0 for s in steps[:-2])
            if pairs and h.at[..., 0].size and (h.at[..., 0, 0] % 2 == 0).all():
                return self._made(
                    "view_as_complex",
                    x.view_as_complex,
                    lambda: self.model.view(h, lambda a: a[..., 0]),
                )
            return self._made("alias", x.alias, lambda: self.model.view(h, lambda a: a))
        name = self.pick.choice(["real", "imag", "view_as_real"])
        show: dict[str, tuple[Callable[[], Tensor], Callable[[Array], Array]]] = {
            "real": (lambda: x.real, lambda a: a[..., :1]),
            "imag": (lambda: x.imag, lambda a: a[..., 1:]),
            "view_as_real": (x.view_as_real, lambda a: a[..., None]),
        }
        return self._made(name, show[name][0], lambda: self.model.view(h, show[name][1]))

    def _windows(self, x: Tensor, h: Handle) -> str:
        axis = self.pick.randrange(len(h.shape))
        if len(h.shape) > 1 and self.pick.random() < 0.4:
            k = self.pick.randint(-1, 1)
            return self._made(
                f"diagonal {k}",
                lambda: x.diagonal(k),
                lambda: self.model.view(h, lambda a: np.moveaxis(a.diagonal(k, 0, 1), -2, -1)),
            )
        length = h.shape[axis]
        if not length:
            return ""
        size, step = self.pick.randint(1, length), self.pick.randint(1, 2)

        def windows(a: Array) -> Array:
            stride = a.strides[axis]
            shape = [*a.shape[:-1], size, a.shape[-1]]
            shape[axis] = (length - size) // step + 1
            strides = [*a.strides[:-1], stride, a.strides[-1]]
            strides[axis] = stride * step
            return as_strided(a, shape, strides)

        return self._made(
            f"unfold {axis} {size} {step}",
            lambda: x.unfold(axis, size, step),
            lambda: self.model.view(h, windows),
        )

    def _strided(self, x: Tensor, h: Handle) -> str:
        """Address the whole memory anew, where the handle's history knows all of it."""
        parts = h.at.shape[-1]
        count = h.memory.data.size // parts
        whole = h.family.root.size == h.memory.data.size and h.dtype == h.memory.dtype
        if not whole or not h.at.size or len(np.unique(h.family.root)) != h.memory.data.size:
            return ""
        size = [self.pick.choice([1, 2, 3]) for _ in range(self.pick.randint(0, 2))]
        stride = [self.pick.choice([0, 1, 1, 2, -1]) for _ in size]
        reach = [(n - 1) * s for n, s in zip(size, stride, strict=True)]
        low, high = sum(min(0, r) for r in reach), sum(max(0, r) for r in reach)
        if high - low >= count:
            return ""
        offset = self.pick.randint(-low, count - 1 - high)

        def cells(a: Array) -> Array:
            place = offset + sum(
                np.arange(n).reshape(-1, *[1] * (len(size) - k - 1)) * s
                for k, (n, s) in enumerate(zip(size, stride, strict=True))
            )
            grid = np.asarray(place)[..., None] * parts + np.arange(parts)
            base = np.arange(h.memory.data.size)
            steps = [8 * s * parts for s in stride]
            view = as_strided(base[offset * parts :], (*size, parts), [*steps, 8])
            assert np.array_equal(np.broadcast_to(grid, view.shape), view)
            return view

        return self._made(
            f"as_strided {size} {stride} {offset}",
            lambda: x.as_strided(size, stride, offset),
            lambda: self.model.view(h, cells),
        )

    # ------------------------------------------------------------------ values

    def _compute(self) -> str:
        x, h = self._any()
        name = self.pick.choice(["add", "sub", "mul", "clone"])
        t, y = self._fitting(h.shape) if name != "clone" else (0, 0)
        return self._functional(x, h, name, y, t)

    def _functional(self, x: Tensor, h: Handle, name: str, y: Any, t: Any = None) -> str:
        t = y if t is None else t
        ours: dict[str, Callable[[], Tensor]] = {
            "add": lambda: x + t,
            "sub": lambda: x - t,
            "mul": lambda: x * t,
            "clone": x.clone,
        }
        before = len(self.pairs)
        problem = self._made(name, ours[name], lambda: self.model.computed(name, h, y))
        if not problem and len(self.pairs) > before:
            self._enter(*self.pairs.pop())
        return problem

    # ------------------------------------------------------------------ writes

    def _write(self) -> str:
        x, h = self._any()
        t, y = self._fitting(h.shape)
        name = self.pick.choice(["add", "sub", "mul", "copy", "fill", "set_value", "item", "out"])
        if name == "item":
            return self._item(x, h)
        if not h.at.size:
            return ""  # a history of nothing
        if h.repeats and name in ("copy", "out", "set_value"):
            return ""  # depends on how the value repeats
        if name == "fill":
            number = self.pick.choice([3, 0, 1.5])
            return self._written(
                f"fill_ {number}",
                lambda: x.fill_(number),
                lambda: self.model.write(h, "copy", number),
            )
        if name == "set_value":
            t, y = self.pick.choice([p for p in self.pairs if p[1].shape == h.shape])
            return self._written(
                name, lambda: x.set_value(t), lambda: self.model.unrecorded_copy(h, y)
            )
        if name == "out":
            t, y = self.pick.choice([p for p in self.pairs if p[1].shape == h.shape])
            return self._written(
                "out = y + y",
                lambda: oplib.add(t, t, out=x),
                lambda: self.model.write(h, "copy", self.model.computed("add", y, y)),
            )
        return self._written(
            f"{name}_", lambda: getattr(x, f"{name}_")(t), lambda: self.model.write(h, name, y)
        )

    def _item(self, x: Tensor, h: Handle) -> str:
        """Assign to an item, or change it by an augmented assignment."""
        scattered = bool(h.shape) and not h.repeats and self.pick.random() < 0.3
        key = self._positions(h.shape) if scattered else self._key(h.shape)
        try:
            shape = h.at[_expanded(key)].shape[:-1]
        except IndexError:
            return ""
        t, y = self._fitting(shape)
        name = self.pick.choice(["copy", "add"])
        if 0 in shape or (h.repeats and name == "copy"):
            return ""

        def theirs() -> None:
            item = self.model.view(h, _at(key))
            noted = (self.model.recording or not h.family.tracked) and not scattered
            if not (name == "copy" and noted and item.is_same(y)):
                self.model.write(item, name, y)

        def ours() -> None:
            if name == "copy":
                x[key] = t
            else:
                x[key] += t

        return self._written(f"x[{key}] {name}", ours, theirs)

    def _positions(self, shape: tuple[int, ...]) -> tuple[Any, ...]:
        """Return a key of distinct positions along an axis, as numbers or as a mask."""
        length = shape[0]
        if self.pick.random() < 0.5:
            return (np.array([self.pick.random() < 0.6 for _ in range(length)]), ...)
        chosen = self.pick.sample(range(length), self.pick.randint(0, length))
        return (np.array([self.pick.choice([n, n - length]) for n in chosen], int), ...)

    def _special(self) -> str:
        """Call a custom operator that writes: one tensor, two, or a list."""
        (x, h), (t, y) = self._any(), self._any()
        if self.pick.random() < 0.5 or h.dtype != y.dtype or h.shape != y.shape:
            if h.dtype.kind == "i" or h.repeats or not h.at.size:
                return ""
            return self._written(
                "inc_", lambda: fz.inc_(x, k=2.0), lambda: self.model.write(h, "add", 2.0)
            )
        if h.repeats or y.repeats or not h.at.size or (h.memory is y.memory and h.meets(y.at)):
            return ""
        if self.pick.random() < 0.5:
            return self._written("swap_", lambda: fz.swap_(x, t), lambda: self.model.swap(h, y))
        return self._written(
            "axpy_",
            lambda: fz.axpy_(x, t),
            lambda: self.model.write(h, "add", self.model.computed("add", y, y)),
        )

    # ------------------------------------------------------------------ comparison

    def _memory_difference(self) -> str:
        """Compare the bytes of whole buffers and the counts of writes."""
        for number, (array, memory) in enumerate(self.arrays):
            parts = array.ravel(order="K").view(array.real.dtype)
            if parts.tobytes() != memory.data.tobytes():
                return f"memory {number}: {parts.tolist()}, expected {memory.data.tolist()}"
        for tensor, handle in self.pairs:
            if tensor.size and tensor.inplace_version != handle.memory.version:
                return f"version {tensor.inplace_version}, expected {handle.memory.version}"
        for number, (tensor, handle) in enumerate(self.pairs):
            problem = _handle_difference(tensor, handle)
            if problem:
                return f"handle {number}: {problem}"
        return ""

    def _gradient_difference(self) -> str:
        pairs = [(t, h) for t, h in self.pairs if h.family.tracked and not h.family.overwritten]
        pairs = [(t, h) for t, h in pairs if t.requires_grad]
        chosen = self.pick.sample(pairs, min(len(pairs), 4))
        if not chosen or not self.leaves:
            return ""
        seeds = [_seed(handle) for _, handle in chosen]
        tensors = [oplib.from_numpy(seed) for seed in seeds]
        outputs, leaves = [t for t, _ in chosen], [t for t, _ in self.leaves]
        try:
            found = oplib.grad(outputs, leaves, tensors, allow_unused=True)
        except oplib.AutogradError as error:
            return "" if self.model.is_stale() else f"gradient: {error}"
        self.compared += 1
        expected = self.model.gradient([h for _, h in chosen], seeds)
        place = 0
        for gradient, (leaf, handle) in zip(found, self.leaves, strict=True):
            width = handle.memory.data.size
            want = expected[place : place + width]
            place += width
            got = (
                np.zeros(width)
                if gradient is None
                else gradient.numpy().view(want.dtype)
                if (gradient.dtype.itemsize >= 8)
                else gradient.numpy()
            )
            if not np.allclose(got, want, rtol=1e-4 if leaf.dtype == np.float32 else 1e-9):
                return f"gradient {got.tolist()}, expected {want.tolist()}"
        return ""


def _handle_difference(tensor: Tensor, handle: Handle) -> str:
    value, expected = tensor.numpy(), handle.value
    if value.dtype != expected.dtype or value.shape != expected.shape:
        return f"{value.dtype}{value.shape}, expected {expected.dtype}{expected.shape}"
    if not np.array_equal(value, expected):
        return f"value {value.tolist()}, expected {expected.tolist()}"
    return ""


def _seed(handle: Handle) -> Array:
    weights = np.arange(handle.value.size).reshape(handle.shape) % 5 - 1.0
    return np.asarray(weights * (1 - 2j) if handle.dtype.kind == "c" else weights, handle.dtype)


def _fits(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def _expanded(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a key that leaves the axis of components alone."""
    return (
        (*key, slice(None)) if any(part is Ellipsis for part in key) else (*key, ..., slice(None))
    )


def _at(key: tuple[Any, ...]) -> Callable[[Array], Array]:
    return lambda at: at[_expanded(key)]


def _sizes(count: int) -> list[tuple[int, ...]]:
    return [(count,), *((n, count // n) for n in range(1, count + 1) if count % n == 0)]
