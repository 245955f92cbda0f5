"""Functionalization: a program that writes, run so that nothing below it does.

Reading order: `storage.py` (what a functional tensor holds), `opaque.py` (mutating operators made
pure), `outcome.py` (what a run leaves behind, as data), `interpreter.py` (the run).
"""
