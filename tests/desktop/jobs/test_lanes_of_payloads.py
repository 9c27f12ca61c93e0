"""Which lane carries what a worker sends."""

from typing import get_args, get_type_hints

from desktop.agent.jobs.peer_router import _LANES
from protocol.worker import TensorName


def test_every_kind_of_payload_has_a_lane() -> None:
    assert set(get_args(get_type_hints(TensorName)["kind"])) == set(_LANES)
