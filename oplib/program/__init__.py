"""Programs: a function captured as a graph, with its signature and guards.

Reading order: `recorder.py` (operator calls become nodes), `capture.py`, `program.py`.
"""
