"""What a coordinator has loaded is out of the garbage collector's way; what it makes afterwards is still collected."""

import gc
import weakref

from common import gc_tuning


class Knot:
    """Refers to itself: only the cyclic collector frees it."""

    def __init__(self) -> None:
        self.self = self


def test_what_was_there_is_not_walked_again_and_later_knots_are_freed() -> None:
    before, kept = gc.get_threshold(), Knot()
    try:
        gc_tuning.settle()
        assert all(one is not kept for one in gc.get_objects()), "it is in no generation any more"
        assert gc.get_freeze_count() > 10_000
        later = weakref.ref(Knot())
        gc.collect()
        assert later() is None
        assert gc.get_threshold() == (gc_tuning.YOUNG, gc_tuning.MIDDLE, gc_tuning.OLD)
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
