"""`FakeTensorMode`: conversion, mixing, factories, nesting; meta tensors."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

import oplib
from oplib import (
    AliasError,
    ArgumentError,
    AutogradError,
    DataDependentError,
    FakeTensorError,
    FakeTensorMode,
    Library,
    Tensor,
)
from oplib.dispatch.keys import META

from .helpers import like, message


@pytest.fixture
def mode() -> FakeTensorMode:
    return FakeTensorMode()


@pytest.fixture
def lib() -> Iterator[Library]:
    with Library("faketest", "FRAGMENT") as library:
        yield library


def real(*shape: int, **kwargs: object) -> Tensor:
    return oplib.ones(shape, **kwargs)


# ---------------------------------------------------------------------- conversion


def test_a_fake_has_the_metadata_of_its_tensor(mode: FakeTensorMode) -> None:
    for tensor in (real(2, 3), real(2, 3).T, real(4)[::2], real(2, 3)[:, 1], real(0, 3), real()):
        assert like(tensor, mode.from_tensor(tensor))


@pytest.mark.parametrize("f", [lambda x, y: x + y, lambda x, y: x @ y.T, lambda x, y: x.sum(0) * y])
def test_operators_on_fakes_give_the_metadata_of_real_results(mode: FakeTensorMode, f) -> None:
    x, y = real(2, 3), real(1, 3, dtype="float32")
    assert like(f(x, y), f(mode.from_tensor(x), mode.from_tensor(y)))


def test_the_same_tensor_gives_the_same_fake(mode: FakeTensorMode) -> None:
    x = real(2, 2)
    assert mode.from_tensor(x) is mode.from_tensor(x)
    assert mode.from_tensor(x) is not FakeTensorMode().from_tensor(x)


def test_a_fake_of_the_mode_converts_to_itself(mode: FakeTensorMode) -> None:
    fake = mode.from_tensor(real(2))
    assert mode.from_tensor(fake) is fake


def test_views_of_one_storage_become_views_of_one_fake_storage(mode: FakeTensorMode) -> None:
    x = real(4, 3)
    a, b = mode.from_tensor(x[1:]), mode.from_tensor(x.T)
    assert a._storage is b._storage is mode.from_tensor(x)._storage
    assert a.array.offset == 3 * 8
    assert b.array.offset == 0


def test_overlapping_arrays_of_one_owner_become_one_storage(mode: FakeTensorMode) -> None:
    array = np.zeros(6)
    a, b = oplib.from_numpy(array[1:]), oplib.from_numpy(array[::-1])
    fake_a, fake_b = mode.from_tensor(a), mode.from_tensor(b)
    assert fake_a._storage is fake_b._storage
    assert (fake_a.array.offset, fake_b.array.offset) == (8, 40)


def test_tensors_over_foreign_memory_keep_their_distance(mode: FakeTensorMode) -> None:
    buffer = bytearray(32)
    a = oplib.from_numpy(np.frombuffer(buffer, np.float64)[1:])
    b = oplib.from_numpy(np.frombuffer(buffer, np.float64)[2:])
    fake_a, fake_b = mode.from_tensor(a), mode.from_tensor(b)
    assert fake_a._storage is fake_b._storage
    assert fake_b.array.offset - fake_a.array.offset == 8
    whole = mode.from_tensor(oplib.from_numpy(np.frombuffer(buffer, np.float64)))
    assert whole[1:].shape == (3,)


def test_the_memo_does_not_keep_tensors_alive(mode: FakeTensorMode) -> None:
    x = real(3)
    mode.from_tensor(x)
    died = weakref.ref(x), weakref.ref(x._storage)
    del x
    gc.collect()
    assert died[0]() is None
    assert died[1]() is None
    assert not len(mode.converter.fakes)
    assert not len(mode.converter.storages)


def test_the_reuse_of_an_id_does_not_confuse_the_memo(mode: FakeTensorMode) -> None:
    for n in range(1, 200):
        x = oplib.zeros(n % 7 + 1)
        assert mode.from_tensor(x).shape == x.shape


def test_stop_gradient_and_leaf_status_are_converted(mode: FakeTensorMode) -> None:
    leaf = real(2, requires_grad=True)
    computed = leaf * 2
    assert mode.from_tensor(real(2)).stop_gradient
    assert mode.from_tensor(leaf).requires_grad
    assert mode.from_tensor(leaf).is_leaf
    assert mode.from_tensor(computed).requires_grad
    assert not mode.from_tensor(computed).is_leaf


def test_a_fake_of_a_computed_tensor_may_be_written_like_the_original(mode: FakeTensorMode) -> None:
    leaf = real(2, requires_grad=True)
    computed = mode.from_tensor(leaf * 2)
    computed.add_(1)
    with pytest.raises(AutogradError, match="leaf"):
        mode.from_tensor(leaf).add_(1)


def test_grad_comes_along(mode: FakeTensorMode) -> None:
    x = real(2, requires_grad=True)
    (x * 3).sum().backward()
    grad = mode.from_tensor(x).grad
    assert grad is mode.from_tensor(x.grad)
    assert grad._keys & META


@pytest.mark.parametrize("base_first", [True, False])
def test_a_view_and_its_base_become_a_family_in_either_order(
    mode: FakeTensorMode, base_first: bool
) -> None:
    base = real(2, 2, requires_grad=True) * 1
    view = base[0]
    order = (base, view) if base_first else (view, base)
    for tensor in order:
        mode.from_tensor(tensor)
    fake_base, fake_view = mode.from_tensor(base), mode.from_tensor(view)
    before = fake_base.grad_fn
    fake_view.mul_(2)
    assert fake_base.grad_fn is not before
    assert fake_base.requires_grad
    assert fake_view.requires_grad


def test_a_family_may_come_to_require_grad_after_its_first_conversion(
    mode: FakeTensorMode,
) -> None:
    base = real(2, 2)
    view = base[0]
    mode.from_tensor(view)
    base.requires_grad = True
    assert mode.from_tensor(base).requires_grad
    assert mode.from_tensor(base[1]).requires_grad
    mode.from_tensor(base[1]).sum().backward()
    assert mode.from_tensor(base).grad.shape == (2, 2)


def test_gradients_flow_through_a_converted_view(mode: FakeTensorMode) -> None:
    base = real(2, 2, requires_grad=True)
    fake_view, fake_base = mode.from_tensor(base[0]), mode.from_tensor(base)
    fake_view.sum().backward()
    assert fake_base.grad.shape == (2, 2)
    assert base.grad is None


def test_a_view_of_a_leaf_may_not_be_written(mode: FakeTensorMode) -> None:
    view = real(2, 2, requires_grad=True)[0]
    with pytest.raises(AutogradError, match="leaf"):
        mode.from_tensor(view).add_(1)


def test_versions_start_where_the_tensor_is(mode: FakeTensorMode) -> None:
    x = real(2)
    x.add_(1)
    fake = mode.from_tensor(x)
    fake.add_(1)
    assert (x.inplace_version, fake.inplace_version) == (1, 2)


def test_a_device_can_be_claimed(mode: FakeTensorMode) -> None:
    x = real(2, 3)
    fake = mode.from_tensor(x, device="npu:0")
    assert str(fake.device) == "npu:0"
    assert str((fake * 2).device) == "npu:0"
    assert mode.from_tensor(x, device="npu:0") is fake
    assert str(mode.from_tensor(x).device) == "cpu"


def test_a_meta_tensor_converts_to_a_fake_of_the_device_given(mode: FakeTensorMode) -> None:
    meta = real(2, 3).T.to("meta")
    fake = mode.from_tensor(meta, device="npu:1")
    assert (str(fake.device), fake.strides) == ("npu:1", meta.strides)


def test_a_view_of_a_converted_meta_tensor_reaches_as_far_as_its_storage(
    mode: FakeTensorMode,
) -> None:
    base = oplib.zeros(4, 4, device="meta")
    mode.from_tensor(base)
    row = mode.from_tensor(base[0])
    assert row.as_strided((16,), (1,), 0).shape == (16,)
    with pytest.raises(oplib.AliasError, match="storage"):
        row.as_strided((17,), (1,), 0)


def test_only_tensors_convert(mode: FakeTensorMode) -> None:
    with pytest.raises(ArgumentError, match="takes a Tensor, got array"):
        mode.from_tensor(np.ones(2))
    with pytest.raises(FakeTensorError, match="another mode: FakeTensorMode"):
        mode.from_tensor(FakeTensorMode().from_tensor(real(2)))


def test_a_tensor_of_a_running_transform_does_not_convert(mode: FakeTensorMode) -> None:
    def convert(x: Tensor) -> Tensor:
        with pytest.raises(FakeTensorError, match="transform that is running"):
            mode.from_tensor(x)
        return x

    oplib.functionalize(convert)(real(2))


def test_a_readonly_array_becomes_a_readonly_fake(mode: FakeTensorMode) -> None:
    array = np.zeros(3)
    array.flags.writeable = False
    x = oplib.from_numpy(array)
    errors = []
    for tensor in (x, mode.from_tensor(x), mode.from_tensor(x)[1:]):
        with pytest.raises(AliasError) as caught:
            tensor.add_(1)
        errors.append(str(caught.value))
    assert len(set(errors)) == 1
    assert "read-only" in errors[0]


# ---------------------------------------------------------------------- factories


def test_factories_make_fakes_inside_and_real_tensors_outside(mode: FakeTensorMode) -> None:
    with mode:
        made = [
            oplib.zeros(2),
            oplib.arange(3),
            oplib.full((2,), 1),
            oplib.eye(2),
            oplib.tensor([1.0]),
            oplib.from_numpy(np.ones(2)),
            oplib.linspace(0, 1, 3),
        ]
        assert all(t._keys & META and t.array.mode is mode for t in made)
        assert {str(t.device) for t in made} == {"cpu"}
    assert oplib.zeros(2).numpy().tolist() == [0, 0]


def test_factories_make_fakes_on_the_device_they_are_asked_for(mode: FakeTensorMode) -> None:
    with mode:
        assert str(oplib.zeros(2, device="npu:0").device) == "npu:0"
        assert str((oplib.zeros(2, device="npu:0") + 1).device) == "npu:0"


def test_a_factory_makes_a_meta_tensor_on_device_meta(mode: FakeTensorMode) -> None:
    with mode:
        meta = oplib.zeros(2, device="meta")
    assert meta.array.mode is None
    assert oplib.zeros(2, 3, device="meta").shape == (2, 3)


def test_a_factory_result_may_require_grad(mode: FakeTensorMode) -> None:
    with mode:
        x = oplib.zeros(2, requires_grad=True)
        (x * 2).sum().backward()
    assert x.grad.shape == (2,)


def test_arrays_inside_a_mode_become_fakes(mode: FakeTensorMode) -> None:
    with mode:
        x = oplib.zeros(2, 3)
        y = x + np.ones(3, "float32")
        z = x * np.float32(2)
    assert all(t._keys & META for t in (y, z))
    assert (y.dtype, z.dtype) == (np.dtype(float), np.dtype(float))


def test_an_array_beside_a_fake_outside_its_mode_becomes_a_fake(mode: FakeTensorMode) -> None:
    fake = mode.from_tensor(real(2), device="npu:0")
    assert str((np.ones((3, 1)) + fake).device) == "npu:0"
    assert (np.ones((3, 1)) + fake).shape == (3, 2)


# ---------------------------------------------------------------------- mixing


def test_a_real_tensor_beside_a_fake_is_refused_in_and_out_of_the_mode(
    mode: FakeTensorMode,
) -> None:
    x, fake = real(2), mode.from_tensor(real(2))
    with pytest.raises(FakeTensorError) as outside:
        fake + x
    with mode, pytest.raises(FakeTensorError) as inside:
        fake + x
    for caught in (outside, inside):
        for part in (
            "std::add",
            "argument `y`",
            "f64[2]",
            "mode.from_tensor(x)",
            "allow_real=True",
            "test_mode.py:",
            "FakeTensorMode() made at",
        ):
            assert part in str(caught.value), part


def test_a_real_0d_tensor_is_refused_too(mode: FakeTensorMode) -> None:
    fake = mode.from_tensor(real(2))
    with pytest.raises(FakeTensorError, match="argument `y` is a real tensor"):
        fake * oplib.tensor(2.0)


def test_a_call_on_real_tensors_inside_a_mode_is_refused(mode: FakeTensorMode) -> None:
    x = real(2)
    with mode, pytest.raises(FakeTensorError, match=r"std::add: argument `x` is a real tensor"):
        x + x


def test_a_real_tensor_in_a_list_is_refused(mode: FakeTensorMode) -> None:
    x = real(2)
    with mode, pytest.raises(FakeTensorError, match=r"std::concat: argument `xs` is a real"):
        oplib.ops.std.concat([mode.from_tensor(x), x])


def test_a_mode_may_allow_real_tensors() -> None:
    mode, x = FakeTensorMode(allow_real=True), real(2)
    fake = mode.from_tensor(x)
    assert (fake + x)._storage is not x._storage
    with mode:
        assert (x + x)._keys & META
        assert oplib.ops.std.concat([x, fake]).shape == (4,)
    assert x.inplace_version == 0


def test_an_allowed_real_tensor_may_not_be_written() -> None:
    mode, x = FakeTensorMode(allow_real=True), real(2)
    with mode, pytest.raises(FakeTensorError) as caught:
        x.add_(1)
    assert "argument `x`" in str(caught.value)
    assert "would be written" in str(caught.value)
    assert x.inplace_version == 0
    assert x.tolist() == [1, 1]


def test_a_real_tensor_that_requires_grad_is_not_taken_silently() -> None:
    mode, x = FakeTensorMode(allow_real=True), real(2, requires_grad=True)
    with mode:
        with pytest.raises(FakeTensorError, match="whose gradient would be a fake"):
            x * 2
        with oplib.no_grad():
            assert (x * 2).stop_gradient


def test_fakes_of_two_modes_are_refused() -> None:
    a, b = FakeTensorMode(), FakeTensorMode(dynamic=True)
    x = real(2)
    with pytest.raises(FakeTensorError) as caught:
        a.from_tensor(x) + b.from_tensor(x)
    for part in (
        "fakes of two modes",
        "x: f64[2] fake of FakeTensorMode() made at",
        "y: f64[2] fake of FakeTensorMode(dynamic=True)",
        "test_mode.py",
    ):
        assert part in str(caught.value), part


def test_a_meta_tensor_beside_a_fake_is_refused(mode: FakeTensorMode) -> None:
    x = real(2)
    with pytest.raises(FakeTensorError, match="a meta tensor beside a fake"):
        x.to("meta") + mode.from_tensor(x)


def test_a_real_tensor_beside_a_meta_tensor_is_refused() -> None:
    x = real(2)
    with pytest.raises(FakeTensorError, match=r"argument `y` is a real tensor .*meta tensors"):
        x.to("meta") + x


def test_numbers_mix_with_everything(mode: FakeTensorMode) -> None:
    fake = mode.from_tensor(real(2, dtype="float32"))
    assert (fake * 2).dtype == np.float32
    assert (2 - fake).dtype == np.float32
    with mode:
        assert (fake * True + 1.5).dtype == np.float32


# ---------------------------------------------------------------------- the mode as a context


def test_fakes_work_after_their_mode(mode: FakeTensorMode) -> None:
    with mode:
        x = oplib.zeros(2)
    assert (x + 1).array.mode is mode


def test_modes_nest_and_the_innermost_serves_factories() -> None:
    outer, inner = FakeTensorMode(), FakeTensorMode()
    with outer:
        with inner:
            assert oplib.zeros(2).array.mode is inner
        assert oplib.zeros(2).array.mode is outer


def test_a_mode_can_be_entered_again(mode: FakeTensorMode) -> None:
    with mode, mode:
        assert oplib.zeros(2).array.mode is mode
    with mode:
        assert oplib.zeros(2).array.mode is mode


def test_an_exception_leaves_the_mode(mode: FakeTensorMode) -> None:
    with pytest.raises(ZeroDivisionError), mode:
        raise ZeroDivisionError
    assert not oplib.zeros(2)._keys & META


def test_threads_and_tasks_do_not_see_the_mode(mode: FakeTensorMode) -> None:
    seen = []

    async def task() -> None:
        with mode:
            await asyncio.sleep(0)
            seen.append(bool(oplib.zeros(1)._keys & META))

    async def other() -> None:
        await asyncio.sleep(0)
        seen.append(bool(oplib.zeros(1)._keys & META))

    async def main() -> None:
        await asyncio.gather(task(), other())

    asyncio.run(main())
    assert sorted(seen) == [False, True]
    with mode:
        thread = threading.Thread(target=lambda: seen.append(bool(oplib.zeros(1)._keys & META)))
        thread.start()
        thread.join()
    assert seen[-1] is False


def test_no_grad_and_the_mode_work_in_either_order(mode: FakeTensorMode) -> None:
    with mode:
        x = oplib.zeros(2, requires_grad=True)
        with oplib.no_grad():
            assert (x * 2).stop_gradient
        assert (x * 2).requires_grad
    with oplib.no_grad(), mode:
        assert (x * 2).stop_gradient


def test_a_dispatch_mode_inside_sees_calls_on_fakes(mode: FakeTensorMode) -> None:
    class Count(oplib.DispatchMode):
        def __init__(self) -> None:
            self.names: list[str] = []

        def handle(self, op, args, kwargs):
            self.names.append(op.name)
            return op(*args, **kwargs)

    with mode, Count() as count:
        y = oplib.zeros(2) * 3
    assert count.names == ["zeros", "mul"]
    assert y.array.mode is mode


# ---------------------------------------------------------------------- autograd on fakes


def test_gradients_of_fakes_are_fakes(mode: FakeTensorMode) -> None:
    x = mode.from_tensor(real(2, 3, requires_grad=True))
    w = mode.from_tensor(real(3, 4, requires_grad=True))
    ((x @ w).tanh() * 2).sum().backward()
    assert x.grad.shape == (2, 3)
    assert w.grad._keys & META
    (g,) = oplib.grad((x * x).sum(), [x], create_graph=True)
    assert g.requires_grad


def test_hooks_run_on_fake_gradients(mode: FakeTensorMode) -> None:
    x = mode.from_tensor(real(2, requires_grad=True))
    shapes = []
    x.register_hook(lambda grad: shapes.append(grad.shape))
    (x * 2).sum().backward()
    assert shapes == [(2,)]


def test_a_saved_tensor_that_was_written_raises_as_on_real_tensors(mode: FakeTensorMode) -> None:
    errors = []
    for x in (real(2, requires_grad=True), mode.from_tensor(real(2, requires_grad=True))):
        y = x * 1
        z = y * y
        y.add_(1)
        with pytest.raises(AutogradError) as caught:
            z.sum().backward()
        errors.append(str(caught.value).splitlines()[0])
    assert errors[0] == errors[1]


# ---------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("read", "asked"),
    [
        (lambda t: bool(t), "bool()"),
        (lambda t: t.item(), "item()"),
        (lambda t: float(t), "float()"),
        (lambda t: int(t), "int()"),
        (lambda t: t.tolist(), "tolist()"),
        (lambda t: t.numpy(), "numpy()"),
        (lambda t: np.asarray(t), "numpy.asarray()"),
        (lambda t: 1 if t else 2, "bool()"),
    ],
)
def test_reading_a_value_says_what_was_asked_and_where(mode: FakeTensorMode, read, asked) -> None:
    fake = mode.from_tensor(real())
    with pytest.raises(DataDependentError) as caught:
        read(fake)
    for part in (f"{asked} needs the value of a fake tensor f64[]", "test_mode.py:", "oplib.where"):
        assert part in str(caught.value), part


def test_reading_the_value_of_a_meta_tensor_says_so() -> None:
    with pytest.raises(DataDependentError, match="value of a meta tensor"):
        real().to("meta").item()


# ---------------------------------------------------------------------- handles


def test_repr_of_fakes_and_meta_tensors(mode: FakeTensorMode) -> None:
    x = real(2, 3, dtype="float32")
    assert repr(mode.from_tensor(x, device="npu:0")) == "Tensor(fake, f32[2, 3], device=npu:0)"
    assert repr(x.to("meta")) == "Tensor(meta, f32[2, 3])"
    y = mode.from_tensor(real(2, requires_grad=True))
    assert repr(y) == "Tensor(fake, f64[2], device=cpu, requires_grad=True)"
    assert repr(mode).startswith("FakeTensorMode() made at")


def test_handles_answer_as_real_ones(mode: FakeTensorMode) -> None:
    fake = mode.from_tensor(real(2, 3))
    assert (len(fake), fake.ndim, fake.size, fake.nbytes) == (2, 2, 6, 48)
    assert [row.shape for row in fake] == [(3,), (3,)]
    assert fake.T.shape == (3, 2)
    assert fake[1, ::2].strides == (16,)
    assert fake.is_contiguous()
    assert not fake.T.is_contiguous()


def test_deepcopy_and_pickle_keep_sharing_and_mode(mode: FakeTensorMode) -> None:
    x = real(4)
    pair = [mode.from_tensor(x), mode.from_tensor(x[1:])]
    for a, b in (copy.deepcopy(pair), pickle.loads(pickle.dumps(pair))):
        assert a._storage is b._storage
        assert a._storage is not pair[0]._storage
        assert a.array.mode is b.array.mode
        assert b.array.offset == 8
        assert (a[1:] + b).shape == (3,)
    assert copy.deepcopy(pair)[0].array.mode is mode


def test_a_mode_pickles_with_its_settings() -> None:
    mode = pickle.loads(pickle.dumps(FakeTensorMode(allow_real=True, dynamic=True)))
    assert (mode.allow_real, mode.dynamic) == (True, True)


# ---------------------------------------------------------------------- meta tensors


def test_to_meta_keeps_geometry_dtype_and_gradient_state() -> None:
    x = oplib.from_numpy(np.zeros((4, 3), "float32")[::-1].T)
    x.requires_grad = True
    meta = x.to("meta")
    assert (meta.shape, meta.strides, meta.dtype) == (x.shape, x.strides, x.dtype)
    assert meta.requires_grad
    assert meta.is_leaf
    assert meta._storage is not x._storage


def test_a_tensor_is_already_on_its_device() -> None:
    x = real(2)
    assert x.to("cpu") is x
    meta = x.to("meta")
    assert meta.to("meta") is meta


def test_there_is_no_way_back_from_meta() -> None:
    with pytest.raises(DataDependentError, match="has no data to bring to cpu"):
        real(2).to("meta").to("cpu")
    with pytest.raises(ArgumentError, match="no backend serves device 'npu'"):
        real(2).to("npu")
    with pytest.raises(ArgumentError, match="not a device"):
        real(2).to("gpuu")


def test_meta_tensors_compute_without_a_mode() -> None:
    x = real(2, 3).to("meta")
    assert like_meta(x * 2 + x, (2, 3))
    assert like_meta(oplib.zeros(3, device="meta") + x, (2, 3))


def like_meta(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    return str(tensor.device) == "meta" and tensor.shape == shape and tensor.array.mode is None


def test_a_constant_beside_a_meta_tensor_becomes_one() -> None:
    assert like_meta(real(2).to("meta") + np.ones(2), (2,))


# ---------------------------------------------------------------------- cost


def test_many_fake_calls_leak_nothing(mode: FakeTensorMode) -> None:
    x = mode.from_tensor(real(2))
    with mode:
        for _ in range(50):
            x + x
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(10_000):
            x + x
        gc.collect()
        assert len(gc.get_objects()) - before < 50


def test_an_error_in_a_rule_keeps_its_type_and_names_the_rule(
    lib: Library, mode: FakeTensorMode
) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op

    @op.register_fake
    def rule(x):
        raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        op(mode.from_tensor(real(2)))
    assert "in the fake rule of faketest::f, tests/meta/test_mode.py" in message(caught.value)
    assert "called as f(x: f64[2] fake)" in message(caught.value)
