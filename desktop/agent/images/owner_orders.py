"""What an owner's window asks of publishers: who is accepted, and two changes."""

import time
from typing import Annotated

import msgspec
from msgspec import Meta

from desktop.agent.images.publishers import Publishers
from desktop.answers import AskedImage, PublishersView, PublisherView


class AcceptOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Let images of ``key`` run here, and call its publisher ``name``."""

    key: Annotated[str, Meta(max_length=200)]
    name: Annotated[str, Meta(max_length=200)]


class RemoveOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Let no further image of ``key`` run here."""

    key: Annotated[str, Meta(max_length=200)]


def seen(publishers: Publishers) -> PublishersView:
    """What there is; raises SettingsError where a file of it is damaged."""
    accepted = {one.key for one in publishers.all()}
    return PublishersView(
        tuple(PublisherView(one.key, one.name, one.since, own=publishers.is_own(one.key)) for one in publishers.all()),
        tuple(
            AskedImage(
                str(one.stated.name),
                one.stated.publisher,
                one.stated.unpacked,
                one.memory_mb,
                one.gpu,
                accepted=one.stated.publisher in accepted,
                here=bool(one.layers),
            )
            for one in publishers.known()
        ),
    )


def accept(publishers: Publishers, order: AcceptOrder) -> PublishersView:
    """Raises SettingsError where it is no key, or nobody can be called so."""
    publishers.accept(order.key.strip(), order.name.strip(), time.time())
    return seen(publishers)


def remove(publishers: Publishers, order: RemoveOrder) -> PublishersView:
    """Raises SettingsError where it was not accepted."""
    publishers.remove(order.key)
    return seen(publishers)
