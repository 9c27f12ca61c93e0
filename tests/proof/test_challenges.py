"""A bond against a committed step, by somebody who is no node of the job: the real program, and a coordinator that audits it."""

from pathlib import Path

import pytest

from coordinator.domain.audits.trust import Audit
from coordinator.proof import challenge
from coordinator.proof.checks import failed, findings
from coordinator.proof.gather import gather
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord, RoundRecord
from ledger.addresses import StepPlace, address_of
from ledger.local.genesis import BOND, VERDICT_S
from ledger.money import Amount
from ledger.program.layout import Ruling
from ledger.states import DisputeState
from tests.proof.town import MAX_TURNS, OVER, Town, town
from tests.support.dispute_history import dispute_history

LIAR = 2
DOUBTER = b"d" * 32
WHO = address_of(DOUBTER)


@pytest.fixture(autouse=True)
def nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.services.audits.sampling.rates.rate", lambda *_: 0)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "wallet.json"
    path.write_text(DOUBTER.hex())
    return path


async def ask(
    place: Town, job: str, commit: CommitRecord, *words: str, step: int | None = 0
) -> challenge.ChallengeResult:
    """Run the command, as its words would."""
    seat = ["--round", str(commit.round), "--stage", str(commit.stage), "--replica", str(commit.replica)]
    seat += ["--epoch", str(commit.epoch)]
    what = ["--outer"] if step is None else ["--step", str(step)]
    options = challenge.parser().parse_args([job, *seat, *what, "--coordinator", place.url, *words])
    return await challenge.challenge(options)


async def committed(place: Town, job: str, number: int) -> CommitRecord:
    """The newest commitment of a node that counts and that the ledger holds."""
    node = place.nodes[number - 1].key.address
    for _ in range(MAX_TURNS):
        await place.turn()
        async with place.parts.context.store.transaction() as tx:
            commits = await tx.find(
                CommitRecord, col(CommitRecord.job).equals(job), col(CommitRecord.node).equals(node)
            )
            rounds = await tx.find(
                RoundRecord, col(RoundRecord.job).equals(job), col(RoundRecord.state).equals("complete")
            )
        done = [c for c in commits if c.drawable and any((r.epoch, r.number) == (c.epoch, c.round) for r in rounds)]
        if done:
            newest = max(done, key=lambda commit: commit.round)
            memos = (await place.parts.books.evidence(job, newest.round))[-1].memos
            if any(memo.state == "confirmed" for memo in memos):
                return newest
    raise AssertionError("nothing was committed to")


async def decided(place: Town, job: str, commit: CommitRecord, step: int = 0) -> DisputeState:
    """The bond once the coordinator has decided, and everything is on the ledger."""
    about = StepPlace(job, commit.epoch, commit.round, commit.stage, commit.replica, step)
    for _ in range(1_000):
        await place.turn()
        await place.parts.bonds.poll()
        state = await place.ledger.dispute(WHO, about.bytes)
        assert state is not None
        if state.ruling is not Ruling.OPEN:
            return state
    events = [event.text for event in await place.parts.jobs.events(job, 0)][-12:]
    raise AssertionError(f"nobody decides: {events}")


async def audits_of(place: Town, job: str) -> list[Audit]:
    async with place.parts.context.store.transaction() as tx:
        return await tx.find(Audit, col(Audit.job).equals(job))


async def until_over(place: Town, job: str) -> None:
    for _ in range(MAX_TURNS):
        await place.turn()
        view, receipts = await place.parts.jobs.get(job), await place.parts.jobs.receipts(job)
        if view.state in OVER and all(receipt.state not in ("queued", "sent") for receipt in receipts):
            return
    raise AssertionError(f"job {job} is {view.state}")


async def test_a_lie_that_nobody_drew_is_slashed_with_the_verdict_and_pays_the_stranger_who_doubted_it(
    tmp_path: Path, key: Path
) -> None:
    async with town(tmp_path, {LIAR: {"lie": "skips"}}, audits=0) as place:
        await place.ledger.faucet(WHO, Amount(BOND))
        job = await place.submit()
        commit = await committed(place, job, LIAR)
        with pytest.raises(challenge.rerun.RerunError, match="nobody has opened that step"):
            await ask(place, job, commit, "--key", str(key))
        shown = await ask(place, job, commit, "--unseen")
        assert "can be put up with --key" in shown.text
        assert await place.ledger.balance(WHO) == BOND, "without a key nothing is sent"
        result = await ask(place, job, commit, "--unseen", "--key", str(key))
        assert result.bond == "open"
        assert await place.ledger.balance(WHO) == 0, "the least that the terms ask"
        state = await decided(place, job, commit)
        assert (state.ruling, state.balance, state.node) == (Ruling.UPHELD, 0, commit.node)
        audits = [audit for audit in await audits_of(place, job) if audit.accuser == WHO]
        assert [(a.node, a.state, a.blame, a.twice) for a in audits] == [(commit.node, "failed", "wrong", True)]
        slashes = [e for e in await place.ledger.stake_history(commit.node) if e.kind == "stake_slashed"]
        about = StepPlace(job, commit.epoch, commit.round, commit.stage, commit.replica, 0)
        verdicts = [e for e in await dispute_history(place.ledger, WHO, about.bytes) if e.kind == "dispute_decided"]
        assert [e.signature for e in slashes] == [e.signature for e in verdicts], "one transaction"
        assert await place.ledger.balance(WHO) == BOND + slashes[0].fields["part"] > BOND
        await until_over(place, job)
        assert "upheld" in (await ask(place, job, commit, "--unseen", "--key", str(key), "--wait")).text
        case = await gather(job, place.rpc, None, None, place.url)
        assert case.published is not None
        twice = [one for one in case.published.rounds if one.round == commit.round]
        assert len(twice) == 2, "the job went back before the lie"
        with pytest.raises(challenge.ProofNotFoundError, match="name one with --epoch"):
            challenge._round(twice, None)
        with pytest.raises(challenge.ProofNotFoundError, match="not completed in epoch 77"):
            challenge._round(twice, 77)
        assert challenge._round(twice, commit.epoch).epoch == commit.epoch
        assert failed(list(findings(case))) == [], "an audit that somebody asked for is no drawn one"
        closed = await ask(place, job, commit, "--collect", "--key", str(key))
        assert closed.bond == "closed"
        assert await place.ledger.dispute(WHO, about.bytes) is None


@pytest.mark.parametrize("step", [0, None], ids=["a step", "the outer step"])
async def test_who_doubts_honest_work_pays_whom_it_accused(tmp_path: Path, key: Path, step: int | None) -> None:
    async with town(tmp_path, audits=0) as place:
        await place.ledger.faucet(WHO, Amount(BOND))
        job = await place.submit()
        commit = await committed(place, job, LIAR)
        await ask(place, job, commit, "--unseen", "--key", str(key), step=step)
        state = await decided(place, job, commit, commit.leaves if step is None else step)
        assert (state.ruling, state.balance) == (Ruling.REJECTED, 0)
        assert await place.ledger.balance(commit.node) >= BOND
        audits = [audit for audit in await audits_of(place, job) if audit.accuser == WHO]
        assert [a.state for a in audits] == ["passed"]
        assert len({verdict.auditor for verdict in audits[0].verdicts}) == 2, "one auditor may be its friend"
        await until_over(place, job)
        for node in place.nodes:
            stake = await place.ledger.stake(node.key.address)
            assert stake is not None
            assert stake.slashed == 0


async def test_a_step_that_was_opened_before_needs_no_prover(tmp_path: Path, key: Path) -> None:
    async with town(tmp_path, audits=4) as place:
        await place.ledger.faucet(WHO, Amount(BOND))
        job = await place.submit()
        for _ in range(MAX_TURNS):
            await place.turn()
            looked = [a for a in await audits_of(place, job) if a.state == "passed" and a.outer is None]
            if looked:
                break
        old = looked[0]
        about = StepPlace(job, old.epoch, old.round, old.stage, old.replica, old.step)
        await place.ledger.confirm(await place.ledger.prepare_dispute(DOUBTER, old.node, about.bytes))
        await place.parts.bonds.poll()
        asked = next(audit for audit in await audits_of(place, job) if audit.accuser == WHO)
        assert (asked.state, asked.opening) == ("replaying", old.opening)
        async with place.parts.context.store.transaction() as tx:
            commits = await tx.find(
                CommitRecord,
                col(CommitRecord.job).equals(job),
                col(CommitRecord.epoch).equals(old.epoch),
                col(CommitRecord.round).equals(old.round),
            )
        commit = next(c for c in commits if (c.stage, c.replica) == (old.stage, old.replica))
        assert (await decided(place, job, commit, old.step)).ruling is Ruling.REJECTED
        await until_over(place, job)
        case = await gather(job, place.rpc, None, None, place.url)
        assert failed(list(findings(case))) == []


async def test_a_bond_about_nothing_is_left_to_expire_and_comes_back(tmp_path: Path, key: Path) -> None:
    async with town(tmp_path, {LIAR: {"lie": "skips"}}, audits=0) as place:
        await place.ledger.faucet(WHO, Amount(BOND))
        job = await place.submit()
        commit = await committed(place, job, LIAR)
        with pytest.raises(challenge.ProofNotFoundError, match="there is no step 77"):
            await ask(place, job, commit, "--unseen", step=77)
        about = StepPlace(job, commit.epoch, commit.round, commit.stage, commit.replica, 77)
        await place.ledger.confirm(await place.ledger.prepare_dispute(DOUBTER, commit.node, about.bytes))
        for _ in range(20):
            await place.turn()
            await place.parts.bonds.poll()
        assert [audit for audit in await audits_of(place, job) if audit.accuser] == []
        place.clock.t += VERDICT_S + 1
        seed = DOUBTER
        await place.ledger.confirm(await place.ledger.prepare_dispute_expiry(seed, WHO, about.bytes))
        assert await place.ledger.balance(WHO) == BOND


async def test_a_job_that_is_over_is_audited_no_more(tmp_path: Path, key: Path) -> None:
    async with town(tmp_path, {LIAR: {"lie": "skips"}}, audits=0) as place:
        await place.ledger.faucet(WHO, Amount(BOND))
        job = await place.train()
        commit = await committed(place, job, LIAR)
        await ask(place, job, commit, "--unseen", "--key", str(key))
        for _ in range(20):
            await place.turn()
            await place.parts.bonds.poll()
        assert await audits_of(place, job) == []


def test_a_place_is_read_back_from_its_bytes() -> None:
    from ledger.addresses import audit_bytes, audit_of, place_of

    place = StepPlace("0a" * 16, 3, 2**31 - 1, 255, 1023, 2**31 - 1)
    assert place_of(place.bytes) == place
    assert audit_of(place.bytes) is None
    assert place_of(audit_bytes("c1" * 16)) is None


@pytest.mark.parametrize(
    "words", [["nonsense", "--round", "0", "--stage", "0", "--replica", "0", "--step", "0"]], ids=["no job"]
)
def test_wrong_use_is_told_from_a_coordinator_that_does_not_answer(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert challenge.main([*words, "--coordinator", "http://127.0.0.1:9"]) == challenge.EXIT_USAGE
    assert "no job id" in capsys.readouterr().err
    words[0] = "0a" * 16
    assert challenge.main([*words, "--coordinator", "http://127.0.0.1:9"]) == challenge.EXIT_UNREACHABLE
    assert "does not answer" in capsys.readouterr().err
