"""`MetaArray`: a geometry over a storage without bytes."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from oplib import AliasError
from oplib._dims import Facts
from oplib.tensor.geometry import Geometry
from oplib.tensor.meta_array import meta_array

F4 = np.dtype("f4")


def test_a_fresh_array_is_contiguous_on_a_storage_of_its_own() -> None:
    a, b = meta_array((2, 3), F4), meta_array((2, 3), F4)
    assert (a.shape, a.strides, a.dtype, a.offset) == ((2, 3), (12, 4), F4, 0)
    assert (a.ndim, a.size, str(a.device)) == (2, 6, "meta")
    assert a.storage is not b.storage
    assert repr(a) == "MetaArray([2, 3]:[3, 1]+0, float32, meta)"


def test_a_fresh_array_with_negative_strides_begins_where_its_elements_fit() -> None:
    assert meta_array((3,), F4, strides=(-4,)).offset == 8


def test_a_view_shares_the_storage_and_stays_inside() -> None:
    a = meta_array((4,), F4)
    view = a.with_geometry(Geometry(F4, (2,), (8,), 4))
    assert (view.storage, view.offset, view.nbytes) == (a.storage, 4, 16)
    assert view.with_geometry(a.geometry).shape == (4,)
    with pytest.raises(AliasError, match=r"reaches bytes 4..20 of a storage that has bytes 0..16"):
        view.with_geometry(Geometry(F4, (4,), (4,), 4))


def test_views_of_readonly_arrays_are_readonly() -> None:
    a = meta_array((4,), F4)
    a.readonly = True
    assert a.with_geometry(Geometry(F4, (2,), (4,), 0)).readonly


def test_what_depends_on_a_symbol_is_not_refused() -> None:
    n = Facts().fresh()
    a = meta_array((n,), F4)
    assert a.size == n
    assert a.with_geometry(Geometry(F4, (2,), (4,), 0)).nbytes == n * 4


def test_copies_of_views_share_one_new_storage() -> None:
    a = meta_array((4,), F4)
    pair = [a, a.with_geometry(Geometry(F4, (2,), (4,), 8))]
    for first, second in (copy.deepcopy(pair), pickle.loads(pickle.dumps(pair))):
        assert first.storage is second.storage is not a.storage
        assert second.geometry == pair[1].geometry
