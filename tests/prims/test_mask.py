"""`mask` keeps elements bit by bit, few or many of them."""

from __future__ import annotations

import numpy as np
import pytest

import oplib
from oplib.prims import mask


@pytest.mark.parametrize("count", [3, 4000])
@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("order", ["C", "F", "broadcast", "reversed"])
def test_what_is_not_kept_is_zero_and_the_rest_is_untouched(count, dtype, order):
    x = np.arange(count).astype(dtype)
    if x.dtype.kind in "fc":
        x[:3] = (np.nan, -np.inf, -0.0)
    x = np.stack([x, x])
    keep = np.stack([np.arange(count) % 3 > 0, np.arange(count) % 2 > 0])
    if order == "F":
        x, keep = np.asfortranarray(x), np.asfortranarray(keep)
    if order == "broadcast":
        keep = keep[:1]
    if order == "reversed":
        x, keep = x[:, ::-1], keep[:, ::-1]
    found = mask(oplib.from_numpy(x), oplib.from_numpy(keep)).numpy()
    expected = np.where(keep, x, x.dtype.type(0))
    assert found.dtype == expected.dtype
    assert found.strides == expected.strides
    assert found.tobytes() == expected.tobytes()
