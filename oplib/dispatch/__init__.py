"""Operators, registrations, and the plan of a call: things with ``_keys``, never Tensor."""
