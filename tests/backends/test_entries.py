"""Kernel entries: which one runs, and what its arrays have been through."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oplib
from oplib.errors import AliasError, DispatchError, RegistrationError

X = oplib.ones(2)


@pytest.fixture
def op() -> Iterator[Any]:
    with oplib.Library("e", "FRAGMENT") as lib:
        yield lib.define("f(Tensor x) -> Tensor").op


@pytest.fixture
def write() -> Iterator[Any]:
    with oplib.Library("e", "FRAGMENT") as lib:
        yield lib.define("f_(Tensor(a!) x, Tensor y) -> Tensor(a!)").op


def times(factor: float) -> Any:
    return lambda x: x * factor


def test_dtypes_select_for_all_arguments_or_one(op: Any) -> None:
    op.register_kernel("cpu", times(2), dtypes={"float32"}, provider="a")
    op.register_kernel("cpu", times(3), dtypes={"x": ["float64", "int64"]}, provider="b")
    assert op(oplib.ones(1, dtype="float32")).item() == 2
    assert op(oplib.ones(1)).item() == op(oplib.ones(1, dtype="int64")).item() == 3
    with pytest.raises(DispatchError, match=r"(?s)`x` is f16, it takes f64, i64.*it takes f32"):
        op(oplib.ones(1, dtype="float16"))


def test_a_call_that_no_entry_takes_goes_to_the_composite_kernel(op: Any) -> None:
    op.register_kernel("cpu", times(2), dtypes={"float32"})
    op.register_kernel(None, times(5))
    assert op(X).tolist() == [5, 5]
    assert op(oplib.ones(1, dtype="float32")).item() == 2


def test_a_predicate_selects_and_its_exceptions_propagate(op: Any) -> None:
    op.register_kernel(
        "cpu", times(2), supports=lambda x: x.shape[0] == 2, provider="a", priority=1
    )
    op.register_kernel("cpu", times(3))
    assert op(X).tolist() == [2, 2]
    assert op(oplib.ones(1)).item() == 3
    with pytest.raises(IndexError) as caught:
        op(oplib.ones(()))
    assert "in the predicate of the CPU kernel of e::f" in caught.value.__notes__[0]


PROVIDERS = {"a": (0, 2), "b": (1, 3), "c": (0, 4)}


@pytest.mark.parametrize("order", list(itertools.permutations(PROVIDERS)))
def test_priority_then_the_newest_and_preferences_before_both(
    op: Any, order: tuple[str, ...]
) -> None:
    for provider in order:
        priority, factor = PROVIDERS[provider]
        op.register_kernel("cpu", times(factor), provider=provider, priority=priority)
    newest = [p for p in order if p != "b"][-1]
    assert op(X).tolist()[0] == 3
    with op.prefer("nobody", newest):
        assert op(X).tolist()[0] == PROVIDERS[newest][1]
        with op.prefer("b"):
            assert op(X).tolist()[0] == 3
        assert op(X).tolist()[0] == PROVIDERS[newest][1]
    with op.set_kernel_enabled("cpu", enabled=False, provider="b"):
        assert op(X).tolist()[0] == PROVIDERS[newest][1]


def test_two_registrations_of_one_provider_follow_the_override_rule(op: Any) -> None:
    op.register_kernel("cpu", times(2), provider="a")
    op.register_kernel("cpu", times(3), provider="b")
    with pytest.raises(RegistrationError, match="from provider 'a'"):
        op.register_kernel("cpu", times(4), provider="a")


def test_a_kernel_switched_off_is_skipped_here_only(
    op: Any, caplog: pytest.LogCaptureFixture
) -> None:
    op.register_kernel("cpu", times(2))
    op.register_kernel(None, times(5))
    seen: list[Any] = []

    def run() -> None:
        with op.set_kernel_enabled("cpu", enabled=False):
            seen.append(op(X).tolist())
            with op.set_kernel_enabled("cpu", enabled=True):
                seen.append(op(X).tolist())
            seen.append(op(X).tolist())
            thread = threading.Thread(target=lambda: seen.append(op(X).tolist()))
            thread.start()
            thread.join()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert seen == [[5, 5], [2, 2], [5, 5], [2, 2]]
    assert op(X).tolist() == [2, 2]
    assert caplog.records == []
    with caplog.at_level(logging.WARNING), op.set_kernel_enabled("npu", enabled=False):
        assert "no kernel for npu" in caplog.text
    with caplog.at_level(logging.WARNING), op.set_kernel_enabled("cpu", enabled=True):
        assert "switched on already" in caplog.text


def test_entries_are_not_asked_for_fakes(op: Any) -> None:
    op.register_kernel(None, times(2), supports=lambda x: 1 / 0)
    assert op(oplib.FakeTensorMode().from_tensor(X)).shape == (2,)


def test_contiguous_copies_what_is_not(op: Any) -> None:
    seen: list[Any] = []

    def kernel(x: Any) -> Any:
        seen.append(x)
        return -x

    op.register_kernel("cpu", kernel, contiguous=True)
    x = oplib.ones((2, 3))
    op(x)
    assert seen[-1] is x.numpy()
    op(x.T)
    assert seen[-1].flags.c_contiguous
    assert not np.shares_memory(seen[-1], x.numpy())


def test_a_written_copy_is_copied_back_once_and_only_on_success(write: Any) -> None:
    fail = False

    def kernel(x: Any, y: Any) -> None:
        assert x.flags.c_contiguous
        x += y
        if fail:
            raise ZeroDivisionError

    write.register_kernel("cpu", kernel, contiguous="x")
    base = oplib.zeros((2, 3))
    result = write(base.T, oplib.ones((3, 2)))
    assert base.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert result.tolist() == [[1, 1], [1, 1], [1, 1]]
    fail = True
    with pytest.raises(ZeroDivisionError):
        write(base.T, oplib.ones((3, 2)))
    assert base.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert base.inplace_version == 2


def test_a_computing_dtype_is_restored(op: Any) -> None:
    seen: list[Any] = []

    def kernel(x: Any) -> Any:
        seen.append(x.dtype)
        return x + 1

    op.register_kernel("cpu", kernel, dtype="float32")
    assert op(oplib.ones(1, dtype="float16")).dtype == np.float16
    assert op(oplib.ones(1, dtype="int32")).dtype == np.int32
    assert seen == [np.float32, np.int32]


def test_a_shared_result_is_copied_where_the_entry_says_so(op: Any) -> None:
    made = op.register_kernel("cpu", lambda x: x[:1], on_alias="copy")
    y = op(X)
    y.add_(5)
    assert X.tolist() == [1, 1]
    made.remove()
    op.register_kernel("cpu", lambda x: x[:1])
    with pytest.raises(AliasError):
        op(X)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priorty": 1}, "did you mean 'priority'"),
        ({"dtypes": {"y": "f32"}}, "no tensor argument"),
        ({"contiguous": "y"}, "no tensor argument"),
        ({"dtype": "int32"}, "float and complex"),
        ({"on_alias": "ignore"}, "'error' or 'copy'"),
        ({"provider": 3}, "a name"),
        ({"priority": "high"}, "an int"),
        ({"with_keyset": True}, "nothing left to choose"),
    ],
)
def test_an_option_without_effect_is_refused(
    op: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RegistrationError, match=message):
        op.register_kernel("cpu", np.negative, **options)
    assert op.kernels == {}


def test_data_is_prepared_for_numpy_kernels_only(op: Any) -> None:
    for device in (None, "npu"):
        with pytest.raises(RegistrationError, match="at 'cpu'"):
            op.register_kernel(device, lambda x: x, contiguous=True)
    with pytest.raises(RegistrationError, match="no option"):
        op.register_kernel("meta", lambda x: x, priority=1)
