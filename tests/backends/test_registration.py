"""A backend of another array library: a simulated NPU that counts its transfers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oplib
from oplib.backends.host import HostFallbackWarning, _warned
from oplib.dispatch.keys import DEVICE_BITS
from oplib.errors import AliasError, ArgumentError, DispatchError, RegistrationError
from oplib.tensor.tensor import tensor_from_array


class NpuArray:
    """Memory of the device: only `to_numpy` and `from_numpy` look inside."""

    transfers = 0

    def __init__(
        self, data: np.ndarray[Any, Any], base: NpuArray | None = None, offset: int = 0
    ) -> None:
        self.data = data
        self.base = base
        self.shape, self.dtype, self.strides = data.shape, data.dtype, data.strides
        self.nbytes, self.offset = data.nbytes, offset

    def __setitem__(self, index: Any, value: NpuArray) -> None:
        self.data[index] = value.data

    def view(self) -> NpuArray:
        return NpuArray(self.data[...], self, self.offset)


def to_numpy(array: NpuArray) -> np.ndarray[Any, Any]:
    NpuArray.transfers += 1
    return array.data.copy()


def from_numpy(array: np.ndarray[Any, Any]) -> NpuArray:
    NpuArray.transfers += 1
    return NpuArray(array.copy())


def view(array: NpuArray, geometry: Any) -> NpuArray:
    owner = array.data
    while owner.base is not None:
        owner = owner.base
    offset = array.offset + geometry.offset
    data = np.ndarray(geometry.shape, geometry.dtype, owner, offset, geometry.strides)
    return NpuArray(data, array, offset)


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


def test_gradients_flow_through_writes_to_views_on_the_device(npu: Any) -> None:
    x = tensor(1.0, 2.0, 3.0).requires_grad_()
    y = x * 2
    y[1:] *= 3
    (y * y).sum().backward()
    assert x.grad is not None
    assert x.grad.device == x.device
    assert x.grad.tolist() == [8.0, 144.0, 216.0]


def test_a_view_elsewhere_than_asked_is_refused(npu: Any) -> None:
    npu.remove()

    def wrong(array: NpuArray, geometry: Any) -> NpuArray:
        return NpuArray(view(array, geometry).data, array)

    with register(fallback="host", view=wrong), pytest.raises(AliasError, match="another view"):
        tensor(1.0, 2.0)[1:]


def test_a_destination_that_overlaps_itself_is_refused(npu: Any) -> None:
    with pytest.raises(AliasError, match="`x` overlaps itself"):
        tensor(1.0).expand((3,)).mul_(2.0)


def test_tensors_go_to_a_device_and_back_with_their_gradient(npu: Any) -> None:
    x = oplib.tensor([1.0, 2.0], requires_grad=True)
    there = x.to("npu")
    assert type(there.array) is NpuArray
    assert there.to("npu") is there
    back = (there * 3).to("cpu")
    assert type(back.array) is np.ndarray
    assert back.tolist() == [3.0, 6.0]
    back.sum().backward()
    assert x.grad is not None
    assert (x.grad.device, x.grad.tolist()) == (x.device, [3.0, 3.0])


def test_a_copy_to_a_device_is_captured_and_inferred(npu: Any) -> None:
    x = oplib.ones(2)
    program = oplib.capture(lambda x: x.to("npu") * 2, x)
    assert "std.to_device(x, @npu)" in str(program.graph)
    assert type(program(x).array) is NpuArray
    with oplib.FakeTensorMode() as mode:
        fake = mode.from_tensor(x).to("npu")
    assert (fake.shape, fake.device.type) == ((2,), "npu")


def test_a_device_that_holds_no_values_is_refused() -> None:
    for device, message in [("meta", "holds none"), ("xpu", "no backend serves device 'xpu'")]:
        with pytest.raises(ArgumentError, match=message):
            oplib.ops.std.to_device(oplib.ones(2), device)
    x = oplib.ones(2)
    same = oplib.ops.std.to_device(x, "cpu")
    assert same.tolist() == [1, 1]
    assert same._storage is not x._storage


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
