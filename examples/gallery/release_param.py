"""release_param: a view that tells somebody a parameter was used.

A memory manager counts how many users of a parameter are left. The operator returns its input as it
is, a view of all of it, so nothing is copied and a write through either is seen by both; that it
was called is an effect, kept and ordered in graphs. Its gradient is the identity.

Needs: nothing else.
"""

from __future__ import annotations

import oplib

lib = oplib.Library("gallery", "FRAGMENT")
release_param = lib.define(
    "release_param(Tensor(a) a, int graph_id, int id, int n_users) -> Tensor(a)",
    effects=("memory",),
).op
USERS: dict[tuple[int, int], int] = {}


def register(graph_id, id):
    """Make a parameter known to the manager."""
    USERS[graph_id, id] = 0


@release_param.register_kernel("cpu")
def _(a, graph_id, id, n_users):
    if (graph_id, id) not in USERS:
        raise KeyError(f"release_param: no parameter {id} of graph {graph_id} is registered")
    USERS[graph_id, id] += 1
    if USERS[graph_id, id] == n_users:
        USERS[graph_id, id] = 0  # the last user is done: a manager would free it here
    return a.view()


release_param.register_fake(lambda a, graph_id, id, n_users: a)


def main() -> None:
    register(0, 7)
    weight = oplib.ones(2, requires_grad=True)
    used = release_param(weight * 1, 0, 7, 2)
    print("one of two users is done:", USERS)
    used.sum().backward()
    print("the gradient is passed:  ", weight.grad.tolist())
    program = oplib.capture(lambda x: (release_param(x, 0, 7, 2), x * 2)[1], oplib.ones(2))
    program(oplib.ones(2))
    print("a graph tells it too:    ", USERS)


if __name__ == "__main__":
    main()
