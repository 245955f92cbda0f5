"""Backends: one file per array library, and the stage that calls their kernels."""
