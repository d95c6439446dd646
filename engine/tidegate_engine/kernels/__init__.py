"""Triton kernels, one a file; each names the torch function it must equal."""
