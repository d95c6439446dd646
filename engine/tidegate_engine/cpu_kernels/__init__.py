"""Kernels for CPUs, compiled by numba when an engine starts. See catalog.py; each names the reference it must equal."""
