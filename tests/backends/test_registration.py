"""A backend of another array library: a simulated NPU that counts its transfers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oplib
from oplib.backends.host import HostFallbackWarning, _warned
from oplib.dispatch.keys import DEVICE_BITS
from oplib.errors import ArgumentError, DispatchError, RegistrationError
from oplib.tensor.tensor import tensor_from_array


class NpuArray:
    """Memory of the device: only `to_numpy` and `from_numpy` look inside."""

    transfers = 0

    def __init__(self, data: np.ndarray[Any, Any], base: NpuArray | None = None) -> None:
        self.data = data
        self.base = base
        self.shape, self.dtype, self.strides = data.shape, data.dtype, data.strides
        self.nbytes, self.offset = data.nbytes, 0

    def __setitem__(self, index: Any, value: NpuArray) -> None:
        self.data[index] = value.data

    def view(self) -> NpuArray:
        return NpuArray(self.data[...], self)


def to_numpy(array: NpuArray) -> np.ndarray[Any, Any]:
    NpuArray.transfers += 1
    return array.data.copy()


def from_numpy(array: np.ndarray[Any, Any]) -> NpuArray:
    NpuArray.transfers += 1
    return NpuArray(array.copy())


def view(array: NpuArray, geometry: Any) -> NpuArray:
    origin = array.data
    start = origin.__array_interface__["data"][0]
    owner = origin
    while owner.base is not None:
        owner = owner.base
    offset = start - owner.__array_interface__["data"][0] + geometry.offset
    data = np.ndarray(geometry.shape, geometry.dtype, owner, offset, geometry.strides)
    return NpuArray(data, array)


def register(**options: Any) -> Any:
    return oplib.register_backend(
        "npu", array_types=NpuArray, to_numpy=to_numpy, from_numpy=from_numpy, **options
    )


@pytest.fixture
def npu() -> Iterator[Any]:
    with register(fallback="host", view=view) as handle:
        yield handle


def tensor(*values: float) -> Any:
    return tensor_from_array(NpuArray(np.array(values)))


@pytest.fixture
def lib() -> Iterator[oplib.Library]:
    with oplib.Library("n", "FRAGMENT") as library:
        yield library


pytestmark = pytest.mark.filterwarnings("ignore::oplib.backends.host.HostFallbackWarning")


def test_a_kernel_receives_the_backends_arrays(npu: Any, lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x, Tensor y) -> Tensor").op
    op.register_kernel("npu", lambda x, y: NpuArray(x.data + y.data))
    x = tensor(1.0, 2.0)
    assert x.device.type == "npu"
    assert "npu" in x.describe()
    before = NpuArray.transfers
    result = op(x, x)
    assert NpuArray.transfers == before
    assert (type(result.array), result.tolist()) == (NpuArray, [2, 4])
    assert type(op(x.array, x.array)) is NpuArray


def test_kernels_registered_for_a_device_before_it_is_claimed_serve_it(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    made = op.register_kernel("npu", lambda x: NpuArray(-x.data))
    with register():
        assert made.key == "PrivateUse1"
        assert op(tensor(1.0)).tolist() == [-1]


def test_numbers_and_arrays_beside_its_tensors_move_there(npu: Any, lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x, Tensor y) -> Tensor").op
    seen: list[Any] = []

    def kernel(x: Any, y: Any) -> Any:
        seen[:] = [type(x), type(y)]
        return NpuArray(np.asarray(getattr(x, "data", x) * getattr(y, "data", y)))

    op.register_kernel("npu", kernel)
    assert op(tensor(2.0), np.array([3.0])).tolist() == [6]
    assert seen == [NpuArray, NpuArray]
    assert op(tensor(2.0), 4).tolist() == [8]
    assert seen == [NpuArray, int]


def test_built_ins_run_on_the_host_and_warn_once(npu: Any) -> None:
    _warned.discard(("std::exp", "npu"))
    x = tensor(0.0)
    with pytest.warns(HostFallbackWarning, match=r'register_kernel\("std::exp", "npu"\)') as seen:
        result = oplib.exp(oplib.exp(x))
    assert len([w for w in seen if "std::exp" in str(w.message)]) == 1
    assert (result.device.type, result.tolist()) == ("npu", [np.e])


def test_gradients_need_nothing_else(npu: Any) -> None:
    x = tensor(1.0, 2.0)
    x.requires_grad = True
    (x * x).sum().backward()
    assert x.grad.device.type == "npu"
    assert x.grad.tolist() == [2, 4]


def test_writes_and_views_on_the_host_reach_the_device(npu: Any) -> None:
    x = tensor(1.0, 2.0, 3.0)
    assert x.add_(1) is x
    assert x.tolist() == [2, 3, 4]
    assert x.inplace_version == 1
    x[1:].mul_(10)
    assert x.tolist() == [2, 30, 40]


def test_fakes_never_come_to_the_host(npu: Any, lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    op.register_kernel("cpu", np.negative)
    fake = oplib.FakeTensorMode().from_tensor(tensor(1.0))
    assert fake.device.type == "npu"
    with pytest.raises(oplib.FakeTensorError):
        op(fake)
    assert op(tensor(1.0)).tolist() == [-1]


def test_a_call_without_tensors_may_name_the_device(npu: Any, lib: oplib.Library) -> None:
    op = lib.define("f(*, Device? device=None) -> Tensor").op
    op.register_kernel("cpu", lambda *, device: np.zeros(1))
    assert op(device="npu").device.type == "npu"
    assert op().device.type == "cpu"


def test_without_a_fallback_the_missing_kernel_says_so(lib: oplib.Library) -> None:
    op = lib.define("f(Tensor x) -> Tensor").op
    op.register_kernel("cpu", np.negative)
    with register(), pytest.raises(DispatchError) as caught:
        op(tensor(1.0))
    text = str(caught.value)
    assert "n::f has no kernel for PrivateUse1" in text
    assert '@oplib.register_kernel("n::f", "npu")' in text
    assert 'register_backend("npu", fallback="host")' in text
    assert len(text.splitlines()) <= 8


def test_devices_do_not_mix_but_0d_and_where_an_operator_says_so(
    npu: Any, lib: oplib.Library
) -> None:
    x, y = tensor(1.0, 2.0), oplib.ones(2)
    op = lib.define("f(Tensor x, Tensor y) -> Tensor").op
    op.register_kernel("cpu", np.add)
    for args in [(x, y), (y, x)]:
        with pytest.raises(ArgumentError, match=r"(?s)one device.*: (npu|cpu)"):
            op(*args)
        with pytest.raises(ArgumentError, match="one device"):
            oplib.ops.std.add(*args)
    assert (x * oplib.tensor(3.0)).tolist() == (oplib.tensor(3.0) * x).tolist() == [3, 6]
    mixed = lib.define("g(Tensor x, Tensor y) -> Tensor", tags="mixed_devices").op
    mixed.register_kernel("cpu", lambda x, y: x.copy())
    mixed.register_kernel("npu", lambda x, y: NpuArray(x.data.copy()))
    assert [mixed(x, y).device.type, mixed(y, x).device.type] == ["npu", "cpu"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("NPU", {}, "lower-case"),
        ("cpu", {}, "by oplib itself"),
        ("npu", {"dispatch_key": "CPU"}, "PrivateUse1, 2 or 3"),
        ("npu", {"fallback": "hots"}, "did you mean 'host'"),
        ("npu", {"to_numpy": 3}, "callable"),
        ("npu", {"array_types": ()}, "classes"),
        ("npu", {"array_types": np.ndarray}, "belong to another backend"),
    ],
)
def test_a_backend_that_cannot_be_is_refused_and_leaves_nothing(
    name: str, options: dict[str, Any], message: str
) -> None:
    given = {"array_types": NpuArray, "to_numpy": to_numpy, "from_numpy": from_numpy, **options}
    before = dict(DEVICE_BITS)
    with pytest.raises(RegistrationError, match=message):
        oplib.register_backend(name, **given)
    assert before == DEVICE_BITS


def test_a_second_backend_of_the_name_or_key_is_refused_with_the_place(npu: Any) -> None:
    with pytest.raises(RegistrationError, match=r"registered already at .*test_registration"):
        oplib.register_backend("npu", array_types=list, to_numpy=to_numpy, from_numpy=from_numpy)
    with pytest.raises(RegistrationError, match="PrivateUse1 belongs to backend 'npu'"):
        oplib.register_backend(
            "xpu",
            array_types=list,
            to_numpy=to_numpy,
            from_numpy=from_numpy,
            dispatch_key="PrivateUse1",
        )
