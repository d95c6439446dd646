"""How often Python looks for garbage in cycles. serve.py and the scheduler's benchmark call it once all is loaded.

A step of 256 rows makes some 1,500 tuples that die without help when the next one is under way, enough for a look of
0.2 ms in every step and for a long one each few seconds. What does form cycles (an exception and its traceback) is a
few objects for a failed request: they may wait.
"""

import gc

OBJECTS_BETWEEN_LOOKS = 20_000  # made and still alive: a dozen steps of 256 rows at once


def settle() -> None:
    """What is loaded is here to stay and is never looked at again; the rest is looked at rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_LOOKS, *gc.get_threshold()[1:])
