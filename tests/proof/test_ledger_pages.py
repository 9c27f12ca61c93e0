"""The ledger's pages and resources, over HTTP, from a real coordinator whose money is on the real embedded ledger."""

import re
from collections.abc import AsyncIterator

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from coordinator.client import Client
from coordinator.store.records import NodeRecord
from protocol.evidence import leaves_of, root_of
from tests.coordinator.fakes import BUDGET
from tests.proof.town import Town, town

pytestmark = pytest.mark.asyncio(loop_scope="module")
HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(1)>{{7*7}}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Town]:
    """One node lied and was slashed; two jobs are over, one has a hostile name; a node has one too."""
    async with town(tmp_path_factory.mktemp("pages"), {2: {"lie": "root"}}, audits=4) as made:
        made.nodes[0].profile = msgspec.structs.replace(made.nodes[0].profile, name=HOSTILE)
        await made.train("Shakespeare, small")
        await made.train(HOSTILE)
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(place: Town) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(place.url, headers={"Accept": "text/html"}) as session:
        yield session


async def jobs_of(place: Town) -> list[str]:
    """The jobs, oldest first."""
    return [view.id for view in await place.parts.jobs.list(10, None)][::-1]


async def text_of(http: aiohttp.ClientSession, path: str, status: int = 200) -> str:
    async with http.get(path) as response:
        assert response.status == status, path
        return await response.text()


async def test_every_transaction_is_listed_with_its_signature_and_the_sums_end_in_zero(
    place: Town, http: aiohttp.ClientSession
) -> None:
    page = await text_of(http, "/ledger")
    for entry in await place.parts.books.entries((), None, None, 50):
        assert entry.signature in page
    assert "balances" in page
    assert "does not balance" not in page
    totals = await place.parts.books.totals()
    assert totals.deposited == 2 * BUDGET == totals.paid + totals.refunded + totals.held
    assert totals.difference == 0
    assert totals.slashed > 0


async def test_the_ledger_is_narrowed_by_kind_and_by_job_and_turned_page_by_page(
    place: Town, http: aiohttp.ClientSession
) -> None:
    first, second = await jobs_of(place)
    slashes = await text_of(http, "/ledger?show=slashes")
    assert place.nodes[1].key.address in slashes
    assert 'aria-current="page">Slashes' in slashes
    assert "payout" not in slashes.split("<tbody")[1]
    mine = await text_of(http, f"/ledger?job={first}")
    assert f"/ledger/job/{second}" not in mine
    entries = await place.parts.books.entries((), None, None, 200)
    seen: list[int] = []
    before: int | None = None
    while part := await place.parts.books.entries((), None, before, 7):
        seen += [entry.id for entry in part]
        before = part[-1].id
    assert seen == [entry.id for entry in entries]
    assert len(set(seen)) == len(seen)
    assert "no older transactions" in await text_of(http, "/ledger?before=1")
    assert "Nobody has lost stake" in await text_of(http, f"/ledger?show=slashes&job={second}")


async def test_job_node_and_round_lead_to_each_other(place: Town, http: aiohttp.ClientSession) -> None:
    job, _ = await jobs_of(place)
    page = await text_of(http, f"/ledger/job/{job}")
    assert f"cottage ledger check {job} --coordinator {place.url} --rpc {place.rpc}" in page
    assert f'href="/jobs/{job}/rounds/1"' in page
    nodes = re.findall(r'href="(/nodes/[^"#]+)"', page)
    assert len(set(nodes)) == 5
    for path in set(nodes):
        shown = await text_of(http, path)
        assert f'href="/ledger/job/{job}"' in shown
    one = await text_of(http, f"/jobs/{job}/rounds/1")
    assert place.nodes[2].key.address in one
    async with http.get(f"/ledger/node/{place.nodes[2].key.address}", allow_redirects=False) as response:
        assert response.headers["Location"].startswith(f"/nodes/{place.nodes[2].key.address}")
    for path in ("/network", f"/jobs/{job}"):
        assert f"/nodes/{place.nodes[2].key.address}" in await text_of(http, path)


async def test_a_round_shows_its_block_its_draw_its_verdicts_and_the_leaves_that_are_hashed(
    place: Town, http: aiohttp.ClientSession
) -> None:
    job, _ = await jobs_of(place)
    for found in await place.parts.books.evidence(job, 0):
        page = await text_of(http, f"/jobs/{job}/rounds/1")
        assert found.draw is not None
        assert found.draw.block in page
        assert found.draw.seed in page
        assert all(memo.root in page and memo.signature in page for memo in found.memos)
        assert [memo.what for memo in found.memos] == ["commitments", "outcome"]
        assert all(memo.root == root_of(leaves_of(found, memo.what)) for memo in found.memos)
        assert all(commitment.root[:16] in page for commitment in found.commitments)


async def test_the_node_that_lied_shows_its_ban_its_stake_and_its_slash(
    place: Town, http: aiohttp.ClientSession
) -> None:
    liar = place.nodes[1].key.address
    account = await place.parts.books.node(liar)
    assert account.node.banned
    assert account.stake is not None
    assert account.stake.deposited == account.stake.balance + account.stake.slashed
    assert account.audits["failed"] >= 1
    page = await text_of(http, f"/nodes/{liar}")
    assert "banned" in page
    assert account.slashes[0].signature in page
    honest = await place.parts.books.node(place.nodes[2].key.address)
    assert sum(job.paid for job in honest.jobs) == honest.node.earned > 0


async def test_receipts_say_what_each_nodes_round_was_worth_and_which_transaction_paid_it(
    place: Town, http: aiohttp.ClientSession
) -> None:
    _, job = await jobs_of(place)
    commits = await place.parts.jobs.commits(job)
    paid = {entry.signature: entry for entry in await place.parts.books.entries(("settle",), job, None, 200)}
    assert all(commit.signature in paid for commit in commits if commit.state == "verified")
    for signature, entry in paid.items():
        assert entry.amount == sum(commit.amount for commit in commits if commit.signature == signature)
    page = await text_of(http, f"/jobs/{job}")
    assert all(signature in page for signature in paid)
    assert "cottage ledger check" in page


async def test_names_that_hold_scripts_are_only_ever_text(place: Town, http: aiohttp.ClientSession) -> None:
    _, job = await jobs_of(place)
    node = place.nodes[0].key.address
    for path in ("/ledger", f"/ledger/job/{job}", f"/jobs/{job}/rounds/1", f"/nodes/{node}", "/ledger/audits"):
        page = await text_of(http, path)
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert " style=" not in page
    assert "&lt;script&gt;" in await text_of(http, f"/nodes/{node}")


@pytest.mark.parametrize(
    "path",
    [
        "/ledger/job/x",
        "/ledger/job/" + "0" * 32,
        "/ledger/node/<script>",
        "/nodes/0OIl",
        "/nodes/" + "1" * 44,
        "/nodes/..%2f..%2fetc",
        "/jobs/{job}/rounds/0",
        "/jobs/{job}/rounds/-1",
        "/jobs/{job}/rounds/9999999999",
        "/jobs/{job}/rounds/99",
        "/jobs/{job}/rounds/1e3",
        "/jobs/" + "0" * 32 + "/rounds/1",
        "/api/v1/nodes/x",
        "/api/v1/jobs/{job}/rounds/77/evidence",
        "/api/v1/jobs/zz/ledger",
        "/api/v1/nodes/%00",
    ],
)
async def test_what_is_not_there_is_not_found(place: Town, http: aiohttp.ClientSession, path: str) -> None:
    page = await text_of(http, path.replace("{job}", (await jobs_of(place))[0]), 404)
    assert "<script>" not in page


@pytest.mark.parametrize(
    "query", ["kind=gold", "limit=0", "limit=201", "cursor=-1", "job=x", "limit=1e2", "kind=settle,%3Cscript%3E"]
)
async def test_questions_out_of_bounds_are_refused_with_the_way_out(
    place: Town, http: aiohttp.ClientSession, query: str
) -> None:
    async with http.get(f"/api/v1/ledger?{query}", headers={"Accept": "application/json"}) as response:
        assert response.status == 422
        problem = await response.json()
        assert problem["field"] == query.partition("=")[0]
        assert problem["detail"]


async def test_the_pages_bear_whatever_is_typed_into_their_addresses(place: Town, http: aiohttp.ClientSession) -> None:
    for query in ("show=nonsense", "before=many", "before=" + "9" * 40, "show=%3Cscript%3E"):
        assert "<script>" not in (await text_of(http, f"/ledger?{query}")).replace("<script src=", "")
    assert "No audit is void" in await text_of(http, f"/ledger/audits?state=void&job={(await jobs_of(place))[1]}")
    await text_of(http, "/ledger/audits?state=x", 422)


async def test_the_interface_describes_and_serves_the_evidence(place: Town, http: aiohttp.ClientSession) -> None:
    job, _ = await jobs_of(place)
    async with Client(place.url) as client:
        evidence = await client.evidence(job, 0)
        assert [one.epoch for one in evidence] == [one.epoch for one in await place.parts.books.evidence(job, 0)]
        assert (await client.job_ledger(job)).totals.difference == 0
        assert (await client.node_account(place.nodes[2].key.address)).node.node == place.nodes[2].key.address
    async with http.get("/openapi.json") as response:
        document = await response.json()
    operation = document["paths"]["/api/v1/jobs/{job}/rounds/{round}/evidence"]["get"]
    assert [parameter["name"] for parameter in operation["parameters"]] == ["job", "round"]
    assert "RoundEvidence" in document["components"]["schemas"]


async def test_a_node_that_never_worked_has_a_page_that_says_so(place: Town, http: aiohttp.ClientSession) -> None:
    stranger = "4Nd1mBQtrMJVYVfKf2PJy9NZUZdTAsp7D4xWLs4gDB4T"
    async with place.parts.context.store.transaction() as tx:
        await tx.insert(NodeRecord(stranger, stranger, place.nodes[4].profile, 0.0, 0.0))
    page = await text_of(http, f"/nodes/{stranger}")
    for words in ("has no stake on the ledger", "not contributed to a round yet", "was not paid yet", "was drawn yet"):
        assert words in page
