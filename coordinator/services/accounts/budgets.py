"""What accounts may have the coordinator keep, work out and pay, in one place: of one account, and of all strangers together.

Accounts are free, so a bound of one is none. An account is *known* once verified work of a job of its own was paid for, or when
it is the operator's. Those that are not share a second budget beside their own: what a crowd of new accounts costs is what the
sum says, and whoever is known goes on beside it.
``docs/explanation/threat-model.md`` has the table, with what is bound elsewhere (connections,
nodes, transfers, sign-ins).

Rates are counted in memory, of as many accounts as ``throttle`` remembers; what is kept is counted where it is kept.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from common.clock import Clock
from coordinator.domain.account import LOCAL_ACCOUNT, Account, Role
from coordinator.domain.job import Job
from coordinator.errors import TooManyError
from coordinator.services.accounts.throttle import Throttle
from coordinator.store.ports import Store, col

STRANGERS = "strangers"
MAX_REMEMBERED = 50_000  # Accounts of which it is remembered whether they are known.
LOOK_S = 60.0  # Whoever is not known may be a minute later.


@dataclass(frozen=True)
class RateBudget:
    """``burst`` at once, and then one in ``seconds``: of one account. ``all_``: of all strangers together."""

    what: str
    burst: float
    seconds: float
    all_burst: float
    all_seconds: float


# Each may write a line of the timeline, of the log and of the trail: 1 KB.
CHANGES = RateBudget("changes", 300, 10, 10_000, 1)
PRICES = RateBudget("prices", 120, 0.5, 400, 0.1)  # One is a run of the planner, 5 to 50 ms of a processor.
CHECKS = RateBudget("checks of datasets", 30, 60, 300, 10)  # One is a process, and a report that is kept for a day.
UPLOADS = RateBudget("uploads", 200, 30, 4_000, 2)
TESTS = RateBudget("tests of notices", 10, 60, 100, 5)  # One is a request to wherever the account says.
# Each gets a mail from us that it may not have asked for.
ADDRESSES = RateBudget("mail addresses", 3, 6 * 3600, 50, 120)
# Of requests with an Idempotency-Key.
ANSWERS = RateBudget("bytes of kept answers", 32 << 20, 1 / 512, 512 << 20, 1 / 8192)
COMPLETIONS = RateBudget("requests to models", 120, 0.5, 600, 0.1)
LOOKS = RateBudget("looks at the ledger", 60, 2, 600, 0.2)  # At an escrow; the ledger's endpoint counts, too.
RATES = (CHANGES, PRICES, CHECKS, UPLOADS, TESTS, ADDRESSES, ANSWERS, COMPLETIONS, LOOKS)

MAX_KEYS = 50  # API keys of an account that are good; as many that are not stay to be recognised.
MAX_CREDENTIALS = 20  # Wallets, passkeys and identities of an account.
MAX_SESSIONS = 50  # Browsers of an account; one more ends the one that was used longest ago.
MAX_TRAIL = 20_000  # Lines of an account's trail; beyond it the oldest go. That is 4 MB.
MAX_NOTICES = 500  # Deliveries of an account that are remembered once they are over.
MAX_CHALLENGES = 20_000  # Begun sign-ins of everybody; each is at most 1 KB, and gone after five minutes.
MAX_HASHES = 64  # Passwords that wait to be hashed: two at a time, some 20 a second.
MAX_ACCOUNTS = 200_000  # 1 KB each.
UNUSED_S = 30 * 86_400.0  # An account without anything of its own, in which nobody signed in for as long, goes.

MAX_UNPAID_JOBS = 32  # Of an account: not funded yet, or ended within a day without paying anybody.
MAX_UNPAID_JOBS_OF_ALL = 4_096
# Of an account, failed by their own files within the time below: each had machines start for nothing.
MAX_FAULTY_JOBS = 3
FAULTY_S = 86_400.0
FUND_S = 86_400.0  # A job that nobody funds ends after a day, and is gone a day later.
MAX_PREPARED_AT_ONCE = 2  # Datasets that are tokenised: a process of up to 8 GB each.
MAX_PREPARED_EACH = 2  # Of an account, running or waiting.
MAX_PREPARED_WAITING = 32
MAX_CHECKS_EACH = 4  # Of an account, running or waiting; the queue takes turns between accounts.
MAX_TRIALS_EACH = 2
MAX_TRIALS = 8
MAX_COMPLETIONS_EACH = 16  # Answers of models to programs of an account, under way or waiting.
MAX_COMPLETIONS = 64

MAX_FILES = 2_000  # Uploaded files of an account,
MAX_FILES_KNOWN = 50_000  # and of one that is known: an array of 10,000 elements reads as many.
MAX_FILES_OF_ALL = 100_000  # Of all strangers.
FILE_SHARE = 8  # A stranger's files have at most one part in so many of the disk, and two parts where it is known;
ALL_SHARE = 2  # those of all strangers together, one part in so many.

MAX_BODIES = 256 << 20  # Bytes of documents that are arriving, of everybody.
MAX_BODIES_EACH = 16 << 20  # Of one account or address.


class Budgets:
    """Over any store. The built-in account, which is the operator's, has no limits."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._own = {rate.what: Throttle(clock, 1 / rate.seconds, rate.burst) for rate in RATES}
        self._all = {rate.what: Throttle(clock, 1 / rate.all_seconds, rate.all_burst) for rate in RATES}
        self._known: OrderedDict[str, float] = OrderedDict()

    async def known(self, account_id: str) -> bool:
        """Whether an account is known: see the module."""
        if account_id == LOCAL_ACCOUNT:
            return True
        now = self._clock.now()
        if (until := self._known.get(account_id)) is not None and now < abs(until):
            return until > 0
        async with self._store.transaction() as tx:
            paid = bool(
                await tx.everywhere.find(Job, col(Job.account_id).equals(account_id), col(Job.paid) > 0, limit=1)
            )
            paid = paid or bool(
                await tx.find(
                    Account, col(Account.id).equals(account_id), col(Account.role).equals(Role.OPERATOR), limit=1
                )
            )
        self._known[account_id] = float("inf") if paid else -(now + LOOK_S)
        self._known.move_to_end(account_id)
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return paid

    async def take(self, rate: RateBudget, account_id: str, amount: float = 1.0) -> None:
        """Count something that an account asks for.

        Raises:
            TooManyError: it has had its part, or all strangers together have had theirs.
        """
        if account_id == LOCAL_ACCOUNT:
            return
        if wait := self._own[rate.what].take(account_id, amount):
            raise TooManyError(f"{rate.what}: your account has had {rate.burst:,g} at once, go on more slowly", wait)
        if not await self.known(account_id) and (wait := self._all[rate.what].take(STRANGERS, amount)):
            raise TooManyError(f"{rate.what}: too many are asked for by new accounts just now, yours among them", wait)

    async def used(self, rate: RateBudget, account_id: str, amount: float) -> None:
        """Count what is known only afterwards; who owes some gets no more until it is earned."""
        if account_id != LOCAL_ACCOUNT:
            self._own[rate.what].spend(account_id, amount)
            if not await self.known(account_id):
                self._all[rate.what].spend(STRANGERS, amount)


class LaneBudget:
    """Something that takes long: how many of one account are in it, running or waiting, and of everybody."""

    def __init__(self, what: str, each: int, total: int, retry_s: float) -> None:
        self._what = what
        self._each = each
        self._total = total
        self._retry_s = retry_s
        self._in: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._in.total()

    @contextmanager
    def enter(self, account_id: str) -> Iterator[None]:
        """Be in it until the body ends.

        Raises:
            TooManyError: it is full, or as many of the account are in it as may be.
        """
        if account_id != LOCAL_ACCOUNT and self._in[account_id] >= self._each:
            raise TooManyError(
                f"{self._in[account_id]} {self._what} of yours are under way: wait for one", self._retry_s
            )
        if self._in.total() >= self._total:
            raise TooManyError(f"{self._total} {self._what} wait already: try again later", self._retry_s)
        self._in[account_id] += 1
        try:
            yield
        finally:
            self._in -= Counter({account_id: 1})


class Bodies:
    """Bytes of documents that are arriving, in memory until the last one has."""

    def __init__(self, each: int = MAX_BODIES_EACH, total: int = MAX_BODIES) -> None:
        self._each = each
        self._total = total
        self._held: Counter[str] = Counter()

    def add(self, whose: str, size: int) -> None:
        """So many bytes more are here.

        Raises:
            TooManyError: of this account or address, or of everybody, there are too many. The bytes are not counted.
        """
        if self._held[whose] + size > self._each or self._held.total() + size > self._total:
            raise TooManyError("more documents are arriving than there is room for: send fewer at a time", 10.0)
        self._held[whose] += size

    def free(self, whose: str, size: int) -> None:
        """So many bytes are done with."""
        self._held -= Counter({whose: size})
