"""Tensor, storage, geometry, gradient records: an array with keys."""
