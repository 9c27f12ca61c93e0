"""Who may lend, over every store: the list's forms, invitations that are used once, and rights that end at once."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

import pytest

from common.clock import SystemClock
from coordinator.config import Config, IdentityConfig
from coordinator.domain.account import LOCAL_PRINCIPAL, ROLE_SCOPES, Account, Principal, Role
from coordinator.domain.lenders import MAX_LINES, MAX_OWNERS, LendersList, LendersListError, parse_lenders
from coordinator.errors import ConflictError, ForbiddenError, NotFoundError
from coordinator.services.accounts.accounts import AccountService
from coordinator.services.accounts.expiry import Forgetting
from coordinator.services.accounts.identities import SEEN_S
from coordinator.services.core.context import Context
from coordinator.services.network import lenders as module
from coordinator.services.network.lenders import (
    NOT_INVITED,
    NOT_SEEN,
    NOT_VERIFIED,
    OWNER_GONE,
    TAKEN_BACK,
    Lenders,
    read_lenders,
)
from coordinator.services.operation.ports import OrderedBy
from coordinator.store.memory import MemoryStore
from coordinator.store.ports import Store, Transaction, col
from coordinator.store.records import CredentialRecord, InvitationRecord, TrailRecord
from coordinator.store.sql import SqlStore
from protocol.identity import NodeKey
from protocol.rest.lending import LendingRule
from tests.support.databases import needs_postgres

NODE, OTHER, THIRD = (NodeKey(bytes([number]) * 32).address for number in (1, 2, 3))
DAY_S = 86_400.0
ISSUER = "https://id.example/realms/lab"
Made = Callable[..., Awaitable[Lenders]]
EVERY = ["memory", "sqlite", pytest.param("postgresql", marks=needs_postgres)]
over_every_store = pytest.mark.parametrize("store", EVERY, indirect=True)


class Later(SystemClock):
    """The wall clock, and so much more as a test says."""

    more = 0.0

    def time(self) -> float:
        return super().time() + self.more


@pytest.fixture
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    kind = getattr(request, "param", "memory")
    made: Store = MemoryStore()
    if kind == "sqlite":
        made = await SqlStore.open(f"sqlite+aiosqlite:///{tmp_path / 'test.db'}")
    elif kind == "postgresql":
        made = await SqlStore.open(request.getfixturevalue("postgres").migrated_url())
    yield made
    await made.close()


@pytest.fixture
def clock() -> Later:
    return Later()


@pytest.fixture
def made(store: Store, clock: Later, tmp_path: Path) -> Made:
    """A coordinator's lenders over one store, as after each start."""

    async def make(rule: LendingRule, text: str | None = None, issuer: str = ISSUER) -> Lenders:
        file = None if text is None else written(tmp_path, text)
        config = Config(tmp_path, "", who_may_lend=rule, lenders=file, identity=IdentityConfig(issuer, "cottage"))
        found = Lenders(Context(config, clock, store, secrets.token_bytes))
        await found.recover()
        return found

    return make


def written(folder: Path, text: str) -> Path:
    """The list, with another stamp than before, however quickly it was written again."""
    file = folder / "lenders.txt"
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(text, "utf-8")
    os.utime(file, ns=(before + 10**9, before + 10**9))
    return file


async def settled(lenders: Lenders) -> None:
    """The list counts once it is the same at two looks."""
    before = lenders.view()
    await lenders.look()
    assert lenders.view() == before, "half of what is being written counts for nothing"
    await lenders.look()


def by(who: Principal) -> OrderedBy:
    return OrderedBy(who, "session", "192.0.2.1")


OPERATOR = by(LOCAL_PRINCIPAL)


async def member(store: Store, name: str, role: Role = Role.SUBMITTER) -> OrderedBy:
    accounts = AccountService(store, SystemClock())
    if not await accounts.any():
        await accounts.create("root", Role.OPERATOR)
    account = await accounts.create(name, role)
    return by(Principal(account.id, ROLE_SCOPES[role], name, role))


# --- the list ---------------------------------------------------------------------------------------------------------------


def test_a_list_names_nodes_and_owners_with_remarks_and_odd_spaces() -> None:
    text = f"# the lab\r\n\r\n node\t {NODE}  # the corner\nowner  Ada   Lovelace\nnode {NODE}\n   # nothing\n"
    assert parse_lenders(text) == LendersList(frozenset({NODE}), {"ada lovelace": "Ada Lovelace"})
    assert parse_lenders("") == LendersList()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"nodes {NODE}", "begins with 'nodes': write `node ADDRESS`, or `owner ACCOUNT`"),
        (NODE, f"begins with '{NODE[:40]}': write `node"),
        ("node", "'' is no node"),
        (f"node {NODE} {OTHER}", "is no node"),
        (f"node {NODE[:30]}", "is no node"),
        (f"node {NODE.swapcase()}", "is no node"),
        (f"node 0x{bytes(32).hex()}", "is no node"),
        ("owner", "is no account"),
        ("owner " + "x" * 65, "is no account"),
        ("owner a\x07b", "is no account"),
        (f"allow: {NODE}", "begins with 'allow:'"),
    ],
)
def test_a_line_of_another_form_is_named_with_its_number_and_the_way_out(line: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(LendersListError, match=r"^line 3: ") as caught:
        read_lenders(written(tmp_path, f"# lab\nowner ada\n{line}\n"))
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_key_in_other_letters_that_is_one_by_chance_lets_nobody_else_in() -> None:
    """Base58 has no check sum: such a line is another key, and the one that was meant stays out."""
    assert NODE not in parse_lenders(f"node {OTHER}").nodes


@pytest.mark.parametrize(
    "text", ["\n" * (MAX_LINES + 1), "".join(f"owner a{number}\n" for number in range(MAX_OWNERS + 1))]
)
def test_a_list_has_an_end(text: str) -> None:
    with pytest.raises(LendersListError, match="at most"):
        parse_lenders(text)


def test_what_is_no_text_or_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(LendersListError, match="cannot be read"):
        read_lenders(tmp_path / "missing")
    (tmp_path / "bytes").write_bytes(b"owner \xff\xfe")
    with pytest.raises(LendersListError, match="cannot be read"):
        read_lenders(tmp_path / "bytes")
    (tmp_path / "bom").write_bytes(b"\xef\xbb\xbfowner ada\n")
    assert read_lenders(tmp_path / "bom").owners == {"ada": "ada"}


# --- the rules --------------------------------------------------------------------------------------------------------------


async def test_everybody_may_lend_where_nothing_else_was_said(made: Made) -> None:
    lenders = await made("everybody")
    assert await lenders.enter(NODE, "") == ""
    with pytest.raises(ConflictError, match="everybody may lend here"):
        await lenders.invite("", 7, OPERATOR)


@over_every_store
async def test_an_invitation_lets_one_computer_in_and_outlives_a_restart(made: Made, store: Store) -> None:
    lenders = await made("invited")
    assert await lenders.enter(NODE, "") == NOT_INVITED
    view, code = await lenders.invite("Ada's attic", 7, OPERATOR)
    assert (view.state, view.node, view.note, view.link) == ("open", None, "Ada's attic", "")
    async with store.transaction() as tx:
        (record,) = await tx.find(InvitationRecord)
    assert code not in repr(record), "who reads the table cannot use it"
    assert await lenders.enter(NODE, code) == ""
    assert lenders.why_not(NODE) == ""
    for later in (lenders, await made("invited")):
        assert await later.enter(NODE, "") == "", "it needs no code again"
        assert await later.enter(NODE, code) == ""
        assert "was used by another computer" in await later.enter(OTHER, code), "stolen, or passed on"
        assert later.why_not(OTHER) == NOT_INVITED
    (shown,) = await lenders.invitations(LOCAL_PRINCIPAL)
    assert (shown.state, shown.node) == ("used", NODE)


async def test_a_code_that_is_not_known_opens_nothing(made: Made) -> None:
    lenders = await made("invited")
    for code in ("nothing", "1" * 22, "' or 1=1 --", "\N{GREEK SMALL LETTER ALPHA}" * 20):
        assert "is not known here" in await lenders.enter(NODE, code)


async def test_an_invitation_ends_unused_and_says_when(made: Made, clock: Later) -> None:
    lenders = await made("invited")
    _, code = await lenders.invite("", 1, OPERATOR)
    clock.more = DAY_S + 1
    assert "the invitation ended on 2" in await lenders.enter(NODE, code)
    (shown,) = await lenders.invitations(LOCAL_PRINCIPAL)
    assert shown.state == "ended"
    clock.more = 0.0
    assert await lenders.enter(NODE, code) == ""
    clock.more = 40 * DAY_S
    assert await lenders.enter(NODE, code) == "", "who is in stays in"


@over_every_store
async def test_of_many_computers_with_one_invitation_one_comes_in(made: Made) -> None:
    lenders = await made("invited")
    _, code = await lenders.invite("", 7, OPERATOR)
    crowd = [NodeKey((number + 10).to_bytes(32, "big")).address for number in range(8)]
    answers = await asyncio.gather(*(lenders.enter(node, code) for node in crowd), return_exceptions=True)
    assert answers.count("") == 1, answers
    assert sum(lenders.why_not(node) == "" for node in crowd) == 1
    for node in crowd:
        await lenders.enter(node, code)
    assert sum(lenders.why_not(node) == "" for node in crowd) == 1


async def test_who_is_in_does_not_use_up_another_invitation(made: Made) -> None:
    lenders = await made("invited", f"node {NODE}\n")
    first, code = await lenders.invite("", 7, OPERATOR)
    assert await lenders.enter(NODE, code) == ""
    assert await lenders.enter(OTHER, code) == "", "the first one was on the list"
    await lenders.withdraw(first.id, OPERATOR)
    _, again = await lenders.invite("", 7, OPERATOR)
    assert await lenders.enter(OTHER, "") == TAKEN_BACK
    assert await lenders.enter(OTHER, again) == ""
    assert (await made("invited")).why_not(OTHER) == "", "the last one counts, also after a restart"


@over_every_store
async def test_a_withdrawn_invitation_lets_nobody_in_and_who_used_it_out(made: Made, store: Store) -> None:
    lenders = await made("invited")
    opened, code = await lenders.invite("", 7, OPERATOR)
    assert (await lenders.withdraw(opened.id, OPERATOR)).state == "withdrawn"
    assert await lenders.enter(NODE, code) == TAKEN_BACK
    used, code = await lenders.invite("", 7, OPERATOR)
    assert await lenders.enter(NODE, code) == ""
    await lenders.withdraw(used.id, OPERATOR)
    await lenders.withdraw(used.id, OPERATOR)
    for later in (lenders, await made("invited")):
        assert later.why_not(NODE) == await later.enter(NODE, code) == TAKEN_BACK
    async with store.transaction() as tx:
        trail = [(line.action, line.subject) for line in await tx.find(TrailRecord)]
    assert trail[-2:] == [("invitation.made", used.id), ("invitation.withdrawn", f"{used.id}: {NODE}")]
    with pytest.raises(NotFoundError, match="no invitation"):
        await lenders.withdraw("0" * 12, OPERATOR)


@over_every_store
async def test_withdrawing_while_it_is_being_used_leaves_nobody_in(made: Made) -> None:
    for _ in range(5):
        lenders = await made("invited")
        one, code = await lenders.invite("", 7, OPERATOR)
        await asyncio.gather(lenders.enter(THIRD, code), lenders.withdraw(one.id, OPERATOR), return_exceptions=True)
        await lenders.withdraw(one.id, OPERATOR)
        assert lenders.why_not(THIRD) in (TAKEN_BACK, NOT_INVITED)


async def test_open_invitations_are_counted_and_old_ones_forgotten(
    made: Made, clock: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_OPEN", 2)
    lenders = await made("invited")
    for _ in range(2):
        await lenders.invite("", 1, OPERATOR)
    with pytest.raises(ConflictError, match="2 invitations are open"):
        await lenders.invite("", 1, OPERATOR)
    clock.more = 40 * DAY_S
    await lenders.invite("", 1, OPERATOR)
    assert len(await lenders.invitations(LOCAL_PRINCIPAL)) == 1


# --- owners -----------------------------------------------------------------------------------------------------------------


@over_every_store
async def test_a_listed_owner_invites_machines_that_lend_while_the_owner_is_listed(
    made: Made, store: Store, tmp_path: Path
) -> None:
    ada, bob = await member(store, "Ada"), await member(store, "bob")
    lenders = await made("listed", f"owner ADA\nowner nobody yet\nnode {THIRD}\n")
    view = lenders.view()
    assert (view.owners, view.unknown, view.nodes, view.problem) == (("ADA",), ("nobody yet",), 1, "")
    for who in (bob, await member(store, "root2", Role.OPERATOR)):
        with pytest.raises(ForbiddenError, match="only owners on the list"):
            await lenders.invite("", 7, who)
    one, code = await lenders.invite("laptop", 7, ada)
    assert one.owned
    assert await lenders.enter(THIRD, "") == ""
    assert f"this computer's key, {NODE}" in await lenders.enter(NODE, "")
    assert await lenders.enter(NODE, code) == ""
    assert await lenders.invitations(bob.who) == []
    with pytest.raises(NotFoundError):
        await lenders.withdraw(one.id, bob)
    written(tmp_path, f"node {THIRD}\n")
    await settled(lenders)
    assert lenders.why_not(NODE) == OWNER_GONE
    assert await lenders.enter(NODE, code) == OWNER_GONE
    written(tmp_path, "owner ada\n")
    await settled(lenders)
    assert (lenders.why_not(NODE), lenders.why_not(THIRD) != "") == ("", True)


async def test_a_disabled_owner_s_machines_may_lend_no_more(made: Made, store: Store) -> None:
    ada = await member(store, "ada")
    lenders = await made("listed", "owner ada\n")
    _, code = await lenders.invite("", 7, ada)
    assert await lenders.enter(NODE, code) == ""
    await AccountService(store, SystemClock()).change(ada.who.account_id, "account.disabled", disabled=True)
    await lenders.look()
    assert lenders.why_not(NODE) == OWNER_GONE
    assert lenders.view().unknown == ("ada",)


async def test_an_operator_s_invitation_counts_for_nothing_once_a_list_is_asked_for(made: Made) -> None:
    lenders = await made("invited")
    _, code = await lenders.invite("", 7, OPERATOR)
    assert await lenders.enter(NODE, code) == ""
    assert "only computers on this network's list" in await (await made("listed", "")).enter(NODE, code)


async def test_a_list_that_cannot_be_used_leaves_the_one_of_before(made: Made, tmp_path: Path) -> None:
    lenders = await made("listed", f"node {NODE}\n")
    file = written(tmp_path, f"node {NODE}\nnode {OTHER}\noops\n")
    await settled(lenders)
    assert "line 3: it begins with 'oops'" in lenders.view().problem
    assert (lenders.why_not(NODE), lenders.why_not(OTHER) != "") == ("", True)
    file.unlink()
    await lenders.look()
    assert "cannot be read" in lenders.view().problem
    assert lenders.why_not(NODE) == ""
    written(tmp_path, f"node {OTHER}\n")
    await settled(lenders)
    assert (lenders.view().problem, lenders.why_not(NODE) != "", lenders.why_not(OTHER)) == ("", True, "")


async def test_an_owner_that_nobody_uses_keeps_the_account_that_the_list_names(made: Made, store: Store) -> None:
    """Else somebody else could take the name, and with it the right."""
    ada = await member(store, "ada")
    lenders = await made("listed", "owner ada\n")
    await lenders.invite("", 7, ada)
    clock = Later()
    clock.more = 400 * DAY_S
    await Forgetting(Context(Config(Path(), ""), clock, store, secrets.token_bytes), lambda _: False).look()
    async with store.transaction() as tx:
        assert await tx.find(Account, col(Account.id).equals(ada.who.account_id))


# --- people whom the identity provider vouches for --------------------------------------------------------------------------


async def seen(store: Store, who: OrderedBy, at: float, issuer: str = ISSUER, kind: str = "identity") -> None:
    """The provider vouches for an account at this time."""
    identity = f"{issuer} {who.who.name}"
    record = CredentialRecord(identity, who.who.account_id, kind, "", issuer.encode(), at, used=at)  # type: ignore[arg-type]
    async with store.transaction() as tx:
        if found := await tx.find(CredentialRecord, col(CredentialRecord.id).equals(identity)):
            await tx.delete(found[0])
        await tx.insert(record)


@over_every_store
async def test_whom_the_provider_vouches_for_invites_machines_that_lend_while_it_does(
    made: Made, store: Store, clock: Later
) -> None:
    ada, bob, eve = [await member(store, name) for name in ("Ada", "bob", "eve")]
    root = await member(store, "root2", Role.OPERATOR)
    lenders = await made("verified")
    assert lenders.why_not(NODE) == NOT_VERIFIED
    await seen(store, ada, clock.time())
    await seen(store, bob, clock.time(), issuer="https://evil.example")
    await seen(store, eve, clock.time(), kind="wallet")
    for who in (bob, eve, root, OPERATOR):
        assert not await lenders.may_invite(who.who)
        with pytest.raises(ForbiddenError, match=r"only people who sign in through id\.example may invite here"):
            await lenders.invite("", 7, who)
    assert await lenders.may_invite(ada.who)
    one, code = await lenders.invite("laptop", 7, ada)
    assert one.owned
    lenders = await made("verified")
    assert await lenders.enter(NODE, code) == "", "also after a restart, before anybody has looked"
    await lenders.look()
    assert (lenders.why_not(NODE), lenders.view().owners) == ("", ("Ada",))
    lenders = await made("verified")
    assert lenders.why_not(NODE) == "", "and after another one"
    clock.more = SEEN_S + 1
    await lenders.look()
    assert (lenders.why_not(NODE), lenders.view().owners) == (NOT_SEEN, ())
    with pytest.raises(ForbiddenError):
        await lenders.invite("", 7, ada)
    await seen(store, ada, clock.time())
    await lenders.look()
    assert lenders.why_not(NODE) == "", "whoever signs in again goes on without another invitation"


async def test_who_is_disabled_or_gives_the_identity_away_lends_no_more(made: Made, store: Store, clock: Later) -> None:
    ada, bob = await member(store, "ada"), await member(store, "bob")
    lenders, accounts = await made("verified"), AccountService(store, SystemClock())
    for who, node in ((ada, NODE), (bob, OTHER)):
        await seen(store, who, clock.time())
        assert await lenders.enter(node, (await lenders.invite("", 7, who))[1]) == ""
    await accounts.change(ada.who.account_id, "account.disabled", disabled=True)
    await accounts.set_password(bob.who.account_id, "hash", "")
    (record,) = await accounts.credentials(bob.who.account_id)
    await accounts.remove_credential(bob.who.account_id, record.id, "")
    await lenders.look()
    assert {lenders.why_not(node) for node in (NODE, OTHER)} == {NOT_SEEN}


async def test_an_invitation_of_somebody_who_left_is_not_used_any_more(made: Made, store: Store, clock: Later) -> None:
    ada = await member(store, "ada")
    lenders = await made("verified")
    await seen(store, ada, clock.time())
    _, code = await lenders.invite("", 365, ada)
    clock.more = SEEN_S + 1
    await lenders.look()
    assert await lenders.enter(NODE, code) == NOT_SEEN
    assert (await lenders.invitations(LOCAL_PRINCIPAL))[0].state == "open", "it is used up by nobody"


async def test_another_provider_s_word_counts_no_more(made: Made, store: Store, clock: Later) -> None:
    ada = await member(store, "ada")
    lenders = await made("verified")
    await seen(store, ada, clock.time())
    assert await lenders.enter(NODE, (await lenders.invite("", 7, ada))[1]) == ""
    lenders = await made("verified", issuer="https://other.example")
    assert lenders.why_not(NODE) == NOT_SEEN


async def test_a_list_counts_beside_the_provider_s_word(made: Made, store: Store, clock: Later, tmp_path: Path) -> None:
    ada, guest = await member(store, "ada"), await member(store, "guest")
    lenders = await made("verified", f"node {THIRD}\nowner guest\n")
    await seen(store, ada, clock.time())
    assert await lenders.enter(THIRD, "") == ""
    for who, node in ((ada, NODE), (guest, OTHER)):
        assert await lenders.enter(node, (await lenders.invite("", 7, who))[1]) == ""
    assert lenders.view().owners == ("ada", "guest")
    written(tmp_path, "# nobody\n")
    await settled(lenders)
    assert [lenders.why_not(node) for node in (NODE, OTHER, THIRD)] == ["", NOT_SEEN, NOT_VERIFIED]


async def test_many_accounts_are_asked_for_in_parts(
    made: Made, store: Store, clock: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ASKED", 2)
    lenders, nodes = await made("verified"), [NodeKey(bytes([number]) * 32).address for number in range(10, 15)]
    for node in nodes:
        who = await member(store, node[:8])
        await seen(store, who, clock.time())
        assert await lenders.enter(node, (await lenders.invite("", 7, who))[1]) == ""
    await lenders.look()
    assert [lenders.why_not(node) for node in nodes] == [""] * 5


async def test_who_comes_while_the_accounts_are_looked_at_is_not_sent_away(
    made: Made, store: Store, clock: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bob = await member(store, "ada"), await member(store, "bob")
    lenders = await made("verified")
    for who, node in ((ada, NODE), (bob, OTHER)):
        await seen(store, who, clock.time())
        assert await lenders.enter(node, (await lenders.invite("", 7, who))[1]) == ""
    bobs, asked = lenders._invited.pop(OTHER), lenders._vouched_for
    lenders._verified.pop(bob.who.account_id)

    async def slow(tx: Transaction, accounts: Iterable[str]) -> dict[str, str]:
        found = await asked(tx, accounts)
        assert bob.who.account_id not in found
        lenders._invited[OTHER] = bobs  # As ``enter`` does it.
        lenders._verified[bob.who.account_id] = "bob"
        return found

    monkeypatch.setattr(lenders, "_vouched_for", slow)
    await lenders.look()
    assert [lenders.why_not(node) for node in (NODE, OTHER)] == ["", ""]
