"""Which manifest is followed: what somebody who holds the web server, but not the key, may try."""

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from desktop.agent.errors import UpdateError
from desktop.agent.updates.manifest import MANIFEST, Package, Seen, UpdateManifest, judge, parts, remembered
from tests.desktop.updates.support import KEY, described, manifest_of

HERE = "linux-x86_64"
NOW = time.time()
NOTHING = Seen()
PACKAGE = described(b"x", platform=HERE)
NEWER = manifest_of(PACKAGE)


def judged(
    manifest: UpdateManifest, running: str = "0.1.0", seen: Seen = NOTHING, platform: str = HERE
) -> Package | None:
    return judge(manifest, running, platform, seen, NOW)


def test_a_newer_version_is_taken_and_the_same_one_is_not() -> None:
    assert judged(NEWER) == PACKAGE
    assert judged(NEWER, running="0.2.0") is None


@pytest.mark.parametrize(
    ("manifest", "running", "seen", "why"),
    [
        (manifest_of(PACKAGE, expires=int(NOW) - 1), "0.1.0", Seen(), "has expired"),
        (NEWER, "0.1.0", Seen(6, "0.1.0", "x"), "is older than 6"),
        (NEWER, "0.1.0", Seen(5, "0.2.0", "another"), "two update manifests with the number 5"),
        (NEWER, "0.3.0", Seen(), "would go back from 0.3.0 to 0.2.0"),
        (NEWER, "0.1.0", Seen(4, "0.10.0", "x"), "would go back from 0.10.0"),
        (NEWER, "0.0.9", Seen(), "too old to update itself"),
        (NEWER, "0.1.0", Seen(failed=("0.2.0",)), "did not start on this computer"),
        (manifest_of(described(b"x", platform="windows-amd64")), "0.1.0", Seen(), f"no package for {HERE}"),
        (manifest_of(), "0.1.0", Seen(), f"no package for {HERE}"),
    ],
)
def test_a_signed_manifest_that_must_not_be_followed(
    manifest: UpdateManifest, running: str, seen: Seen, why: str
) -> None:
    with pytest.raises(UpdateError, match=why):
        judged(manifest, running, seen)


numbers = st.integers(1, 50)
versions = st.tuples(numbers, numbers, numbers).map(lambda found: ".".join(map(str, found)))


@given(st.lists(st.tuples(numbers, versions), min_size=1, max_size=8))
def test_in_any_order_of_manifests_neither_number_nor_version_ever_goes_down(shown: list[tuple[int, str]]) -> None:
    seen, running = Seen(), "0.1.0"
    for number, version in shown:
        manifest = manifest_of(PACKAGE, number=number, version=version)
        try:
            package = judged(manifest, running, seen)
        except UpdateError:
            continue
        after = remembered(seen, manifest)
        assert (after.number, parts(after.version)) >= (seen.number, parts(seen.version))
        seen = after
        if package is not None:
            assert parts(version) > parts(running)
            running = version


@pytest.mark.parametrize(
    "given",
    [
        {"version": "1.0"},
        {"version": "01.0.0"},
        {"version": "1.0.0-beta"},
        {"version": "../0.1"},
        {"number": 0},
        {"number": 2**53},
        {"expires": -1},
        {"packages": [{"file": "../up"}]},
        {"packages": [{"file": "//other/x"}]},
        {"packages": [{"size": 2**31}]},
        {"packages": [{"unpacked": 0}]},
        {"packages": [{"sha256": "00"}]},
        {"extra": 1},
    ],
)
def test_values_out_of_bounds_are_refused_even_with_a_signature(given: dict[str, object]) -> None:
    plain = msgspec.to_builtins(NEWER) | {name: value for name, value in given.items() if name != "packages"}
    if "packages" in given:
        plain["packages"] = [msgspec.to_builtins(PACKAGE) | given["packages"][0]]  # type: ignore[index]
    signed = KEY.sign("cottage/update/1", msgspec.json.encode(plain, order="sorted")).hex()
    with pytest.raises(UpdateError, match="cannot be believed"):
        MANIFEST.read(msgspec.json.encode({"manifest": plain, "signature": signed}), KEY.address)
