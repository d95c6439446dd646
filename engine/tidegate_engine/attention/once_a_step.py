"""What is derived from a step's inputs is derived once, for all its layers, and goes when the step goes.

A cache of the last few results would keep the masks and indexes of steps that are over, which nobody has planned for.
"""

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from tidegate_engine.attention.base import AttentionInputs

P = ParamSpec("P")
T = TypeVar("T")


def once_a_step(derive: Callable[Concatenate[AttentionInputs, P], T]) -> Callable[Concatenate[AttentionInputs, P], T]:
    """`derive` takes the inputs and plain values; its result must not refer to the inputs, or nothing ever goes."""
    known: WeakKeyDictionary[AttentionInputs, dict[tuple[Hashable, ...], T]] = WeakKeyDictionary()

    @wraps(derive)
    def remembered(inputs: AttentionInputs, /, *args: P.args, **kwargs: P.kwargs) -> T:
        of_step = known.setdefault(inputs, {})
        key = (*args, *kwargs.items())
        if key not in of_step:
            of_step[key] = derive(inputs, *args, **kwargs)
        return of_step[key]

    return remembered
