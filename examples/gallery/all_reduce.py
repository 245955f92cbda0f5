"""create_group, all_reduce, dispose: sums over threads that wait for each other.

A handle names a group of threads. `all_reduce` waits until every member called it, and stores the
sum of what they gave in each member's out, which may be its input. All three act on the world
outside of tensors, so they are effects: never merged, removed or reordered, in graphs too.

Needs: nothing else.
"""

from __future__ import annotations

import itertools
import threading

import numpy as np

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
create_group = lib.define("create_group(int size) -> int", effects=("groups",)).op
all_reduce = lib.define(
    "all_reduce(int handle, Tensor inp, Tensor! out) -> ()", effects=("groups",)
).op
dispose = lib.define("dispose(int handle) -> ()", effects=("groups",)).op


class Group:
    """What the members of a group share."""

    def __init__(self, size):
        self.barrier = threading.Barrier(size)
        self.given = []

    def total(self, array):
        """Return the sum over all members; every one of them gets it, or the same error."""
        self.given.append(array)
        self.barrier.wait()  # all have given
        shapes = {x.shape for x in self.given}
        result = sum(self.given[1:], self.given[0]) if len(shapes) == 1 else None
        if self.barrier.wait() == 0:  # all have read, and one of them tidies up
            self.given.clear()
        self.barrier.wait()
        if result is None:
            raise ValueError(f"all_reduce: the members gave shapes {sorted(map(list, shapes))}")
        return result


GROUPS: dict[int, Group] = {}
numbers = itertools.count(1)


def find(handle):
    if handle not in GROUPS:
        raise ValueError(f"there is no group {handle}; it was never created, or disposed of")
    return GROUPS[handle]


@create_group.register_kernel("cpu")
def _(size):
    if size < 1:
        raise ValueError(f"create_group: a group has members, got a size of {size}")
    handle = next(numbers)
    GROUPS[handle] = Group(size)
    return handle


@all_reduce.register_kernel("cpu")
def _(handle, inp, out):
    group = find(handle)
    check(handle, inp, out)
    out[...] = group.total(inp)


@dispose.register_kernel("cpu")
def _(handle):
    find(handle)
    del GROUPS[handle]


def check(handle, inp, out):
    if out.shape != inp.shape or out.dtype != inp.dtype:
        raise ValueError(f"all_reduce: out is {inp.dtype}{list(inp.shape)}, as inp is")


create_group.register_fake(lambda size: oplib.get_ctx().new_dynamic_size(min=1))
all_reduce.register_fake(check)
dispose.register_fake(lambda handle: None)


def together(functions):
    """Run one function per thread, and return what each returned or raised."""
    results = [None] * len(functions)

    def run(i):
        try:
            results[i] = functions[i]()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def main() -> None:
    handle = create_group(3)
    members = [oplib.from_numpy(np.full(2, float(i))) for i in range(3)]
    together([lambda x=x: all_reduce(handle, x, x) for x in members])
    print("every member has the sum:", [x.tolist() for x in members])
    dispose(handle)


if __name__ == "__main__":
    main()
