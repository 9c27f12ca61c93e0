"""What an owner's window asks of publishers, over the agent's own socket."""

import json
from pathlib import Path

import pytest

from desktop.agent.base.config import Home
from desktop.agent.errors import SettingsError
from desktop.agent.images.owner_orders import AcceptOrder, RemoveOrder, accept, remove, seen
from desktop.agent.images.publishers import KnownImage, Publishers
from protocol.identity import NodeKey
from protocol.images.statement import PublishedImage
from tests.support.arrays.images import KEY

OWN = NodeKey(b"the release key of this test's b").address


def stated(name: str = "sweep:1") -> PublishedImage:
    return PublishedImage(name, "a" * 64, "amd64", 412_000_000, KEY.address)


@pytest.fixture
def publishers(tmp_path: Path) -> Publishers:
    (tmp_path / "home").mkdir()
    return Publishers(Home.at(tmp_path / "home"), OWN)


def test_cottages_own_is_there_by_itself_and_cannot_be_removed(publishers: Publishers) -> None:
    (own,) = seen(publishers).publishers
    assert (own.name, own.own) == ("Cottage", True)
    with pytest.raises(SettingsError, match="always accepted"):
        remove(publishers, RemoveOrder(OWN))


def test_a_publisher_is_accepted_and_removed_and_images_say_so(publishers: Publishers) -> None:
    publishers.note(KnownImage("b" * 64, stated(), True, 2048, 5.0))
    (image,) = seen(publishers).images
    assert not image.accepted
    view = accept(publishers, AcceptOrder(f" {KEY.address}\n", " Ada's lab "))
    assert [(one.name, one.own) for one in view.publishers] == [("Cottage", True), ("Ada's lab", False)]
    (image,) = view.images
    assert (image.name, image.size, image.memory_mb, image.gpu) == ("sweep:1", 412_000_000, 2048, True)
    assert image.accepted
    assert not image.here
    assert not remove(publishers, RemoveOrder(KEY.address)).images[0].accepted


@pytest.mark.parametrize(("key", "name"), [("no key", "Ada"), (KEY.address, ""), (KEY.address, "x" * 61)])
def test_what_is_no_key_or_no_name_is_refused_in_a_sentence(publishers: Publishers, key: str, name: str) -> None:
    with pytest.raises(SettingsError, match="a publisher is a key"):
        accept(publishers, AcceptOrder(key, name))
    assert len(json.dumps([one.key for one in seen(publishers).publishers])) < 60
