"""Who may lend here: everybody, who was invited, or who is on the operator's list. Asked at the door, and before work is given.

::

    everybody   whoever comes
    invited     who has used an invitation of the operator's; also who is on the list, where there is one
    listed      nodes on the list, and machines that an owner on the list has invited
    verified    the same, and whoever signed in through the identity provider within a while is an owner, too

What a node says of itself decides nothing: its key is proven, its wallet is not. So a list names keys, and accounts, whose owners
hand each machine an invitation. A right that is taken back counts at once; seats go to others as those of a node that drains.
"""

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from common import base58
from common.system_words import reason
from common.untrusted_text import untrusted
from common.urls import authority, parse_url
from coordinator.domain.account import Account, Principal, Scope
from coordinator.domain.lenders import MAX_BYTES, LendersList, LendersListError, parse_lenders
from coordinator.errors import ConflictError, ForbiddenError, NotFoundError
from coordinator.services.accounts.accounts import AccountService
from coordinator.services.accounts.identities import SEEN_S
from coordinator.services.core.context import Context
from coordinator.services.operation.ports import OrderedBy
from coordinator.store.ports import Condition, Transaction, col
from coordinator.store.records import CredentialRecord, InvitationRecord
from protocol.rest.lending import InvitationState, InvitationView, LendersView, LendingRule

CODE_BYTES: Final = 16  # Nobody guesses 2^128, however often they may try.
MAX_OPEN = 500  # Invitations of an account that nobody has used yet.
KEPT_S = 30 * 86_400.0  # What ended unused, or was taken back, is shown as long.
DAY_S = 86_400.0
TRIES = 3  # Where two machines come with one invitation at a time, the second one reads what the first one wrote.
_GONE = (0,)
LOOK_S = 2.0  # Between two looks at the list's file and its owners' accounts.
MAX_ASKED = 10_000  # Accounts in one question to the store.
APART_S = 300.0  # Clocks of coordinators are no farther apart: what one has written so long before the last look is read again.

NOT_INVITED = "only computers that were invited may lend here: ask whoever runs this network for an invitation"
ANOTHER = "ask whoever invited you for another one"
TAKEN_BACK = f"the invitation of this computer was taken back: {ANOTHER}"
OWNER_GONE = (
    "who invited this computer is not on this network's list any more: ask whoever runs this network to be put there"
)
NOT_VERIFIED = (
    "only computers of people who sign in here through their organisation may lend: sign in on this network's page, "
    "and open an invitation that you make there for this computer"
)
NOT_SEEN = (
    "nobody vouches now for who invited this computer: they sign in on this network's page through their organisation, "
    f"at least every {SEEN_S / DAY_S:.0f} days"
)

LOG = logging.getLogger(__name__)


def read_lenders(file: Path) -> LendersList:
    """What a file says who may lend.

    Raises:
        LendersListError: it cannot be read, or a line of it is wrong.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise LendersListError(f"it is longer than {MAX_BYTES:,} bytes")
        return parse_lenders(data.decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise LendersListError(f"it cannot be read: {reason(error)}") from error


class Lenders:
    """The rule, the list and the invitations. Implements ``operation.ports.LendersPort``."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rule: LendingRule = context.config.who_may_lend
        self._accounts = AccountService(context.store, context.clock)
        self._list = LendersList()
        self._stamp: tuple[int, ...] = ()  # Of the file when it was read last; none: it never was.
        self._seen: tuple[int, ...] = ()  # At the last look.
        self._problem = ""
        self._owners: dict[str, str] = {}  # Accounts on the list that are good, by their ids, and how they are called.
        # The same of accounts that the identity provider vouches for, once asked for.
        self._verified: dict[str, str] = {}
        self._invited: dict[str, InvitationRecord] = {}  # By the node that has used it last.
        self._computers: dict[str, str] = {}  # Of nodes that are further cards of a computer, whose right is theirs.
        self._followed = 0.0  # Until when it is known what other cells have done with invitations.

    async def recover(self) -> None:
        """Read who has used an invitation, and the list."""
        if self._rule == "everybody":
            return
        self._followed = self._context.clock.time()
        async with self._context.store.transaction() as tx:
            used = await tx.find(InvitationRecord, col(InvitationRecord.used) > 0.0)
        self._invited = {}
        for record in used:
            self._remember(record)
        await self.look()

    async def look(self) -> None:
        """Read the list where its file has changed, and which owners have accounts that are good.

        While the file cannot be used, the list of before counts.
        """
        if self._rule == "everybody":
            return
        file = self._context.config.lenders
        if file is not None:
            await asyncio.to_thread(self._read, file)
        names = tuple(sorted(self._list.owners))
        async with self._context.store.transaction() as tx:
            await self._follow(tx)
            found = (
                await tx.find(Account, col(Account.key).in_(names), col(Account.disabled).equals(False))
                if names
                else []
            )
            asked = self._with_machines() | set(self._verified)
            vouched = await self._vouched_for(tx, asked)
        # Whoever came in the meantime was not asked for here.
        self._verified = vouched | {one: name for one, name in self._verified.items() if one not in asked}
        self._owners = {account.id: account.key for account in found}

    async def _follow(self, tx: Transaction) -> None:
        """Learn which invitations were used, or taken back, by way of other cells."""
        if self._context.cell.of == 1:
            return
        since, self._followed = self._followed - APART_S, self._context.clock.time()
        used = await tx.find(InvitationRecord, col(InvitationRecord.used) > since)
        withdrawn = await tx.find(InvitationRecord, col(InvitationRecord.withdrawn) > since)
        for record in (*used, *withdrawn):
            self._remember(record)

    async def _vouched_for(self, tx: Transaction, accounts: Iterable[str]) -> dict[str, str]:
        """Those of ``accounts`` that are good and signed in through the present provider within ``SEEN_S``, with their names."""
        provider, asked = self._context.config.identity, sorted(accounts)
        if self._rule != "verified" or provider is None:
            return {}
        since = self._context.clock.time() - SEEN_S
        found: dict[str, str] = {}
        for start in range(0, len(asked), MAX_ASKED):
            seen = await tx.find(
                CredentialRecord,
                col(CredentialRecord.account_id).in_(tuple(asked[start : start + MAX_ASKED])),
                col(CredentialRecord.kind).equals("identity"),
                col(CredentialRecord.public_key).equals(provider.issuer.encode()),
                col(CredentialRecord.used) > since,
            )
            ids = tuple({record.account_id for record in seen})
            good = await tx.find(Account, col(Account.id).in_(ids), col(Account.disabled).equals(False)) if ids else []
            found |= {account.id: account.name for account in good}
        return found

    def _with_machines(self) -> set[str]:
        """Accounts that have invited a node here as owners."""
        return {record.owner for record in self._invited.values() if record.owner}

    def _is_owner(self, account: str) -> bool:
        return account in self._owners or account in self._verified

    async def _look_at(self, account: str) -> None:
        """Whoever has just been vouched for does not wait."""
        if self._rule != "verified":
            return
        async with self._context.store.transaction() as tx:
            self._verified |= await self._vouched_for(tx, (account,))

    def _read(self, file: Path) -> None:
        """Read it where it was changed, and is the same at two looks: else it may be half of what somebody writes just now."""
        problem = self._problem
        try:
            stat = file.stat()
            stamp, before = (stat.st_mtime_ns, stat.st_size, stat.st_ino), self._seen
            self._seen = stamp
            if stamp == self._stamp or (self._stamp and stamp != before):
                return
            self._stamp = stamp
            self._list, self._problem = read_lenders(file), ""
            LOG.info("%s names %d nodes and %d owners", file, len(self._list.nodes), len(self._list.owners))
            return
        except OSError as error:
            self._stamp, self._seen, self._problem = _GONE, (), f"it cannot be read: {reason(error)}"
        except LendersListError as error:
            self._problem = str(error)
        if self._problem != problem:
            LOG.error("%s: %s; until that is mended the list of before counts", file, self._problem)

    # --- who may --------------------------------------------------------------------------------------------------------

    def is_card_of(self, node: str, computer: str | None) -> None:
        """Know that a node is a further card of ``computer``, as that one has signed; None: it is a computer of its own."""
        if computer is None:
            self._computers.pop(node, None)
        else:
            self._computers[node] = computer

    def why_not(self, node: str) -> str:
        """Why a node may not lend, as its owner is told; empty: it may. A card may where its computer may."""
        node = self._computers.get(node, node)
        if self._rule == "everybody" or node in self._context.config.auditors or node in self._list.nodes:
            return ""
        record = self._invited.get(node)
        if record is None:
            return self._stranger(node)
        return TAKEN_BACK if record.withdrawn is not None else self._why_void(record, node)

    def _stranger(self, node: str) -> str:
        if self._rule == "invited":
            return NOT_INVITED
        if self._rule == "verified":
            return NOT_VERIFIED
        return (
            f"only computers on this network's list may lend here: give whoever runs it this computer's key, {node}, "
            "or open an invitation of an owner on the list"
        )

    def _why_void(self, record: InvitationRecord, node: str) -> str:
        """Why what an invitation gives counts for nothing now."""
        if record.owner:
            return "" if self._is_owner(record.owner) else NOT_SEEN if self._rule == "verified" else OWNER_GONE
        return "" if self._rule == "invited" else self._stranger(node)

    async def enter(self, node: str, code: str) -> str:
        """Why a node that has proven its key may not lend; empty: it may, with this invitation or without.

        An invitation is used up only by a node that needs it, and by the first one: however many come at a time. A card uses it
        for its computer.
        """
        node = self._computers.get(node, node)
        why = self.why_not(node)
        if why and self._context.cell.of > 1:  # It may have used its invitation by way of another cell, a moment ago.
            why = await self._look_for(node)
        if not why or not code:
            return why
        for left in reversed(range(TRIES)):
            try:
                return await self._use(node, code)
            except ConflictError:
                if not left:
                    raise
        raise AssertionError

    async def _look_for(self, node: str) -> str:
        """As ``why_not``, by what is stored."""
        async with self._context.store.transaction() as tx:
            found = await tx.find(InvitationRecord, col(InvitationRecord.node).equals(node))
            self._verified |= await self._vouched_for(tx, {record.owner for record in found if record.owner})
        for record in found:
            self._remember(record)
        return self.why_not(node)

    async def _use(self, node: str, code: str) -> str:
        now = self._context.clock.time()
        async with self._context.store.transaction() as tx:
            await tx.hold_shared()
            found = await tx.find(InvitationRecord, col(InvitationRecord.digest).equals(_digest(code)))
            if not found:
                return f"the invitation is not known here: {ANOTHER}"
            record = found[0]
            if record.node not in (None, node):
                return f"the invitation was used by another computer, and each takes its own: {ANOTHER}"
            if record.withdrawn is not None:
                return TAKEN_BACK
            if record.owner:
                self._verified |= await self._vouched_for(tx, (record.owner,))
            if why := self._why_void(record, node):
                return why
            if record.node is None:
                if record.expires <= now:
                    return f"the invitation ended on {_day(record.expires)}: {ANOTHER}"
                record = await tx.update(msgspec.structs.replace(record, node=node, used=now))
        self._remember(record)
        LOG.info("%s may lend, by invitation %s", node, record.id)
        return ""

    def _remember(self, record: InvitationRecord) -> None:
        """Of a node's invitations the last one counts, as it was stored last."""
        if record.node is None:
            return
        known = self._invited.setdefault(record.node, record)
        newer = known.version < record.version if known.id == record.id else (known.used or 0) < (record.used or 0)
        if newer:
            self._invited[record.node] = record

    # --- invitations ----------------------------------------------------------------------------------------------------

    async def invite(self, note: str, days: int, by: OrderedBy) -> tuple[InvitationView, str]:
        """As ``LendersPort.invite``.

        Raises:
            ConflictError: none is needed here, or too many are open.
            ForbiddenError: who asks is neither the operator nor an owner.
        """
        if self._rule == "everybody":
            raise ConflictError("everybody may lend here: the page /join has all that a computer needs")
        who, now = by.who, self._context.clock.time()
        await self.look()  # Whoever was just put on the list does not wait.
        await self._look_at(who.account_id)
        owner = who.account_id if self._is_owner(who.account_id) else ""
        if not owner and (Scope.OPERATE not in who.scopes or self._rule != "invited"):
            raise ForbiddenError(self._why_no_owner(who))
        code = base58.encode(self._context.entropy(CODE_BYTES))
        identity = self._context.entropy(6).hex()
        shown = untrusted(" ".join(note.split()), 100)
        record = InvitationRecord(identity, _digest(code), who.account_id, owner, shown, now, now + days * DAY_S)
        async with self._context.store.transaction() as tx:
            await tx.hold_shared()
            own = await tx.find(InvitationRecord, col(InvitationRecord.account_id).equals(who.account_id))
            for one in own:
                if max(one.expires, one.withdrawn or 0.0) < now - KEPT_S and one.node is None:
                    await tx.delete(one)
            held = [one for one in own if _state_of(one, now) == "open"]
            if len(held) >= MAX_OPEN:
                raise ConflictError(f"{len(held)} invitations are open: withdraw one first, or wait until one is used")
            await tx.insert(record)
            subject = f"{identity}: {shown}" if shown else identity
            await self._accounts.note_within(tx, who, by.via, "invitation.made", subject, by.address)
        return self._shown(record, who.name), code

    def _why_no_owner(self, who: Principal) -> str:
        provider = self._context.config.identity
        if self._rule == "verified" and provider is not None:
            host = authority(parse_url(provider.issuer))
            return f"only people who sign in through {host} may invite here: sign in with it, or add it on /account"
        return f"only owners on the list may invite here: {_line_of(who)}"

    async def invitations(self, who: Principal) -> Sequence[InvitationView]:
        """As ``LendersPort.invitations``."""
        where: list[Condition] = []
        if Scope.OPERATE not in who.scopes:
            where = [col(InvitationRecord.account_id).equals(who.account_id)]
        async with self._context.store.transaction() as tx:
            found = await tx.find(InvitationRecord, *where)
            makers = tuple(sorted({record.account_id for record in found}))
            names = {one.id: one.name for one in await tx.find(Account, col(Account.id).in_(makers))}
        return [self._shown(record, names.get(record.account_id, "")) for record in found]

    async def withdraw(self, invitation: str, by: OrderedBy) -> InvitationView:
        """As ``LendersPort.withdraw``.

        Raises:
            NotFoundError: there is none such, or it is somebody else's.
            ConflictError: it changes all the time.
        """
        for left in reversed(range(TRIES)):
            try:
                record, name = await self._withdraw(invitation, by)
            except ConflictError:
                if not left:
                    raise
            else:
                break
        self._remember(record)
        return self._shown(record, name)

    async def _withdraw(self, invitation: str, by: OrderedBy) -> tuple[InvitationRecord, str]:
        async with self._context.store.transaction() as tx:
            await tx.hold_shared()
            found = await tx.find(InvitationRecord, col(InvitationRecord.id).equals(invitation))
            if not found or (Scope.OPERATE not in by.who.scopes and found[0].account_id != by.who.account_id):
                raise NotFoundError(f"there is no invitation {invitation[:40]!r}", "invitation")
            maker = await tx.find(Account, col(Account.id).equals(found[0].account_id))
            name = maker[0].name if maker else ""
            if found[0].withdrawn is not None:
                return found[0], name
            subject = f"{invitation}: {found[0].node}" if found[0].node else invitation
            await self._accounts.note_within(tx, by.who, by.via, "invitation.withdrawn", subject, by.address)
            taken = msgspec.structs.replace(found[0], withdrawn=self._context.clock.time())
            return await tx.update(taken), name

    def _shown(self, record: InvitationRecord, name: str) -> InvitationView:
        return InvitationView(
            id=record.id,
            by=untrusted(name),
            owned=record.owner != "",
            note=record.note,
            state=_state_of(record, self._context.clock.time()),
            created=record.created,
            expires=record.expires,
            node=record.node,
            used=record.used,
        )

    def view(self) -> LendersView:
        """As ``LendersPort.view``."""
        here = set(self._owners.values())
        written = self._list.owners.items()
        listed = {untrusted(name) for key, name in written if key in here}
        verified = {untrusted(self._verified[one]) for one in self._with_machines() & self._verified.keys()}
        return LendersView(
            rule=self._rule,
            min_stake=self._context.config.min_stake,
            nodes=len(self._list.nodes),
            owners=tuple(sorted(listed | verified)),
            unknown=tuple(sorted(untrusted(name) for key, name in written if key not in here)),
            problem=untrusted(self._problem),
        )

    async def may_invite(self, who: Principal) -> bool:
        """As ``LendersPort.may_invite``."""
        await self._look_at(who.account_id)
        return self._is_owner(who.account_id) or (self._rule == "invited" and Scope.OPERATE in who.scopes)


def _state_of(record: InvitationRecord, now: float) -> InvitationState:
    if record.withdrawn is not None:
        return "withdrawn"
    if record.node is not None:
        return "used"
    return "open" if now < record.expires else "ended"


def _line_of(who: Principal) -> str:
    if Scope.OPERATE in who.scopes:
        return (
            f"add the line `owner {who.name}` to the file of --lenders" if who.name else "name the machine's key there"
        )
    return "ask whoever runs this network to put your account there"


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def _day(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d")
