"""Errors of reading the resource."""

from tidegate_operator.errors import OperatorError


class BadManifest(OperatorError):
    """A manifest that a person wrote is not an InferencePool; the message names the file, each field and the remedy."""


class NotStructural(OperatorError):
    """A model uses something that a CRD schema cannot say: the programmer changes the model or the generator."""
