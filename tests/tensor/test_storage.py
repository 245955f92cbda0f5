"""Storage: one per buffer, however its handles came to be; versions; nothing kept alive."""

from __future__ import annotations

import array as python_array
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view

import oplib
from oplib import Library, Tensor, from_numpy
from oplib.tensor import storage as storage_module
from oplib.tensor.storage import new_storage, owner_of, storage_of_array

Array = np.ndarray[Any, Any]


@pytest.fixture
def lib() -> Iterator[Library]:
    with Library("storetest", "FRAGMENT") as library:
        yield library


# ---------------------------------------------------------------------- identity

SAME_BUFFER: dict[str, Callable[[Array], Array]] = {
    "itself": lambda a: a,
    "a view": lambda a: a.view(),
    "a slice": lambda a: a[1:],
    "an overlapping slice": lambda a: a[::2],
    "reversed": lambda a: a[::-1],
    "another shape": lambda a: a.reshape(2, 3),
    "another dtype": lambda a: a.view("i8"),
    "one element": lambda a: a[2, ...],
    "as_strided": lambda a: as_strided(a, (2, 2), (8, 8)),
    "as_strided twice": lambda a: as_strided(as_strided(a, (3,), (8,))[1:], (2,), (8,))[::-1],
    "sliding windows": lambda a: sliding_window_view(a, 2, writeable=True),
    "broadcast": lambda a: np.broadcast_to(a, (2, 6)),
    "frombuffer": lambda a: np.frombuffer(a, a.dtype),
    "frombuffer of a memoryview": lambda a: np.frombuffer(memoryview(a)[2:], a.dtype),
    "asarray of a memoryview": lambda a: np.asarray(memoryview(a)),
    "dlpack": lambda a: np.from_dlpack(a),
    "dlpack of a slice": lambda a: np.from_dlpack(a[2:]),
}


@pytest.mark.parametrize("way", SAME_BUFFER)
@pytest.mark.parametrize("view_first", [False, True])
def test_arrays_over_one_buffer_have_one_storage(way: str, view_first: bool) -> None:
    array = np.zeros(6)
    other = SAME_BUFFER[way](array)
    order = (other, array) if view_first else (array, other)
    first, second = (from_numpy(a) for a in order)
    assert first._storage is second._storage


def test_arrays_over_different_buffers_have_different_storages() -> None:
    kept = [np.zeros(3) for _ in range(50)]
    tensors = [from_numpy(a) for a in kept] + [from_numpy(np.from_dlpack(np.zeros(3)))]
    assert len({id(t._storage) for t in tensors}) == len(tensors)


def test_foreign_buffers_are_owners_too() -> None:
    for buffer in (bytearray(32), python_array.array("d", [0.0] * 4), memoryview(bytearray(32))):
        a, b = (np.frombuffer(buffer, "f8") for _ in range(2))
        assert from_numpy(a)._storage is from_numpy(b[1:])._storage


def test_an_object_with_an_array_interface_is_resolved_by_address() -> None:
    memory = np.arange(4.0)

    class Carrier:
        base = "not what we look for"
        __array_interface__ = memory.__array_interface__

    first = from_numpy(np.asarray(Carrier()))
    second, third = from_numpy(memory[1:]), from_numpy(np.asarray(Carrier()))
    assert first._storage is second._storage is third._storage


def test_an_array_finds_its_storage_when_it_comes_back() -> None:
    x = oplib.zeros(2, 3)
    for way in (
        Tensor.numpy,
        np.asarray,
        np.from_dlpack,
        lambda t: t[0].numpy(),
        lambda t: t.T.numpy(),
        lambda t: np.asarray(t)[::-1],
    ):
        assert from_numpy(way(x))._storage is x._storage


def test_handles_made_by_operators_share_or_do_not() -> None:
    x = oplib.zeros(2, 3)
    for view in (x[0], x.T, x.detach(), x.reshape([3, 2]), x.alias(), x.expand([2, 2, 3])):
        assert view._storage is x._storage
    for fresh in (x + 1, x.clone(), x[[0]], x.T.reshape([6]), x.cast("f32"), x.sum()):
        assert fresh._storage is not x._storage


def test_empty_arrays_alias_nothing() -> None:
    array = np.zeros((0, 3))
    assert from_numpy(array)._storage is not from_numpy(array)._storage
    full = np.zeros(3)
    assert from_numpy(full[:0])._storage is not from_numpy(full)._storage


def test_a_constant_beside_a_tensor_shares_the_memory_of_its_array() -> None:
    array = np.zeros(3)
    x = from_numpy(array)
    assert oplib.dispatch.lifting.LIFTERS[np.ndarray](array)._storage is x._storage


def test_the_owner_of_an_array_is_what_holds_the_bytes() -> None:
    array = np.zeros(6)
    for way in (
        "itself",
        "a slice",
        "as_strided",
        "as_strided twice",
        "sliding windows",
        "frombuffer",
        "asarray of a memoryview",
    ):
        assert owner_of(SAME_BUFFER[way](array)) is array
    buffer = bytearray(16)
    assert owner_of(np.frombuffer(memoryview(buffer)[8:], "f8")) is buffer


def test_threads_agree_on_a_storage() -> None:
    array, found = np.zeros(8), []
    barrier = threading.Barrier(4)

    def look() -> None:
        barrier.wait()
        found.append(from_numpy(array))

    x = from_numpy(array)
    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {id(t._storage) for t in found} == {id(x._storage)}


# ---------------------------------------------------------------------- lifetime


def test_the_table_keeps_no_array_alive() -> None:
    class Watched(np.ndarray[Any, Any]):
        pass

    array = np.zeros(3).view(Watched)
    inner = array.view(np.ndarray)
    x = from_numpy(inner)
    died = weakref.ref(array), weakref.ref(x._storage)
    del array, inner, x
    gc.collect()
    assert died[0]() is None
    assert died[1]() is None


def test_the_table_forgets_dead_storages() -> None:
    gc.collect()
    storage_module._sweep()
    before = len(storage_module._by_owner), len(storage_module._opaque)
    kept = [from_numpy(np.zeros(2)) for _ in range(10)]
    kept += [from_numpy(np.from_dlpack(np.zeros(2))) for _ in range(10)]
    for x in kept:
        x.numpy()
    del kept, x
    gc.collect()
    storage_module._sweep()
    assert (len(storage_module._by_owner), len(storage_module._opaque)) == before


def test_a_storage_keeps_its_owner_so_that_ids_are_not_reused() -> None:
    versions = []
    for _ in range(100):
        x = from_numpy(np.zeros(5))
        versions.append(x.inplace_version)
        x.add_(1)
        del x
    assert set(versions) == {0}
    x = from_numpy(np.zeros(5)[1:])
    assert type(x._storage.owner) is np.ndarray


def test_a_dead_handle_leaves_its_storage_to_the_others() -> None:
    array = np.zeros(4)
    a, b = from_numpy(array), from_numpy(array[1:])
    a.add_(1)
    del a
    gc.collect()
    assert from_numpy(array)._storage is b._storage
    assert b.inplace_version == 1


# ---------------------------------------------------------------------- versions


def test_every_handle_sees_a_write() -> None:
    array = np.zeros(4)
    x, y = from_numpy(array), from_numpy(array[::-1])
    view, detached = x[1:], x.detach()
    view.add_(1)
    assert {h.inplace_version for h in (x, y, view, detached)} == {1}
    assert array.tolist() == [0, 1, 1, 1]


def test_metadata_operations_write_nothing() -> None:
    x = oplib.zeros(2, 3)
    x.T, x[0], x.detach(), x.reshape([-1]), x.numpy(), repr(x), x.requires_grad_()
    assert x.inplace_version == 0


def test_a_list_and_an_optional_are_counted_once_per_storage(lib: Library) -> None:
    op = lib.define("f(Tensor(a!)[] xs, Tensor(b!)? y, Tensor(c!)? z=None) -> ()").op

    @op.register_kernel("cpu")
    def kernel(xs: list[Array], y: Array | None, z: Array | None) -> None:
        for x in xs:
            x += 1

    a, b = oplib.zeros(3), oplib.zeros(2)
    op([a, a[1:], b], a[:1])
    assert (a.inplace_version, b.inplace_version) == (1, 1)
    op([b], None, b)
    assert (a.inplace_version, b.inplace_version) == (1, 2)


def test_a_kernel_that_fails_midway_has_written(lib: Library) -> None:
    op = lib.define("f_(Tensor(a!) x) -> Tensor(a!)").op

    @op.register_kernel("cpu")
    def kernel(x: Array) -> None:
        x[0] = 1
        raise ZeroDivisionError

    x = oplib.zeros(2)
    with pytest.raises(ZeroDivisionError):
        op(x)
    assert (x.inplace_version, x.tolist()) == (1, [1, 0])


def test_a_write_under_no_grad_counts() -> None:
    x = oplib.zeros(2, requires_grad=True)
    with oplib.no_grad():
        x.add_(1)
        x.copy_(2.0)
    assert x.inplace_version == 2


def test_item_assignment_and_augmented_assignment_count() -> None:
    x = oplib.zeros(3)
    x[0] = 1
    x += 1
    x[1:] *= 2
    assert x.inplace_version == 3
    assert x.tolist() == [2, 2, 2]


def test_the_last_writer_is_remembered_for_messages() -> None:
    x = oplib.zeros(2)
    assert not x._storage.writer
    x.mul_(2)
    assert x._storage.writer == "std::mul_"


def test_a_fresh_storage_is_at_version_zero_and_unowned() -> None:
    made = new_storage()
    assert (made.version, made.owner, made.writer) == (0, None, "")
    assert storage_of_array(np.zeros(1)).version == 0
