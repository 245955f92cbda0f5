"""What oplib costs: every budget of the design as a measurement, beside the bare kernel and peers.

``python -m benchmarks`` prints the table. `measure.py` is the stopwatch, `operators.py` the small
operators that are timed, `cases.py` and `probes.py` the rows, `peers.py` the same rows in other
libraries, `table.py` how a row is printed.
"""
