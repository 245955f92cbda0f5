"""The checks of `opcheck`, one file each.

A check looks at the samples of a `Trial` and yields what it finds wrong. Checks do not know each
other; adding one is a file and a line in `opcheck.py`.
"""
