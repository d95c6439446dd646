"""Structured output: constraints on which token may come next."""
