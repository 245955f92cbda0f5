"""Functionalization: a program that writes, run so that nothing below it does.

access.py       reading and writing a handle's elements in the value of its region
storage.py      what a functional tensor holds: a geometry into a region
opaque.py       mutating operators made pure
tapes.py        the gradients inside a run and those of its results
views.py        where views lie;  level.py  the tensors of one run
writes.py       one call that writes;  interpreter.py  every call
memory.py       which inputs share memory;  groups.py  the regions they lie in
outcome.py      what a run leaves behind, as data;  finish.py  finds it;  settle.py  stores it
run.py          one run, and `functionalize`
"""
