"""An owner without SOL sends tokens, and a sponsor pays: what each side signs, and what the ledger makes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.account import Account
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message, MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.system_program import AdvanceNonceAccountParams, TransferParams, advance_nonce_account, transfer
from solders.transaction import VersionedTransaction
from spl.token import instructions as token
from spl.token import models
from spl.token.constants import TOKEN_2022_PROGRAM_ID, TOKEN_PROGRAM_ID

from ledger.client import Ledger, LedgerConfig
from ledger.errors import AlteredTransactionError, TransactionExpiredError, TransactionFailedError
from ledger.local.chain import BLOCKHASH_SLOTS, SLOT_S
from ledger.money import Amount
from ledger.program.interface import MarketAddresses
from ledger.sponsored import SponsoredTransfer
from tests.ledger.conftest import serving_world
from tests.ledger.surfpool import SurfpoolWorld
from tests.ledger.world import World, key

SPONSOR, OWNER, TARGET, THIEF = (key(f"{name} of a transfer") for name in ("sponsor", "owner", "target", "thief"))
MARKET = MarketAddresses(key("a market").pubkey(), key("a mint").pubkey())
BLOCKHASH = Hash.new_unique()
ARRIVES, COSTS = Amount(4_692_608), Amount(307_392)
AGREED = SponsoredTransfer(str(SPONSOR.pubkey()), str(OWNER.pubkey()), str(TARGET.pubkey()), ARRIVES, COSTS, opens=True)
SEED = bytes(OWNER.secret())


def wire_of(message: MessageV0 | Message, signatures: int = 2) -> bytes:
    return bytes(VersionedTransaction.populate(message, [Signature.default()] * signatures))


def compiled(*instructions: Instruction, payer: Pubkey | None = None) -> bytes:
    message = MessageV0.try_compile(payer or SPONSOR.pubkey(), list(instructions), [], BLOCKHASH)
    return wire_of(message, message.header.num_required_signatures)


def moved(
    units: int,
    to: Keypair = TARGET,
    market: MarketAddresses = MARKET,
    owner: Keypair = OWNER,
    decimals: int = 6,
    program: Pubkey = TOKEN_PROGRAM_ID,
) -> Instruction:
    return token.transfer_checked(
        models.TransferCheckedParams(
            program_id=program,
            source=market.wallet(owner.pubkey()),
            dest=market.wallet(to.pubkey()),
            mint=market.mint,
            owner=owner.pubkey(),
            amount=units,
            decimals=decimals,
            signers=[],
        )
    )


OPEN = token.create_idempotent_associated_token_account(SPONSOR.pubkey(), TARGET.pubkey(), MARKET.mint)
SEND, PAY = moved(ARRIVES), moved(COSTS, SPONSOR)
OTHER_MINT = MarketAddresses(MARKET.program, key("another mint").pubkey())
OWN_WALLET, OWN = MARKET.wallet(OWNER.pubkey()), OWNER.pubkey()

HOSTILE: dict[str, Callable[[], bytes]] = {
    "more arrives than was shown": lambda: compiled(OPEN, moved(ARRIVES + 1), PAY),
    "less arrives than was shown": lambda: compiled(OPEN, moved(ARRIVES - 1), PAY),
    "the costs are more by one": lambda: compiled(OPEN, SEND, moved(COSTS + 1, SPONSOR)),
    "the costs are all there is": lambda: compiled(OPEN, SEND, moved(10**12, SPONSOR)),
    "the costs are paid twice": lambda: compiled(OPEN, SEND, PAY, PAY),
    "the costs go to somebody else": lambda: compiled(OPEN, SEND, moved(COSTS, THIEF)),
    "the amount goes to somebody else": lambda: compiled(OPEN, moved(ARRIVES, THIEF), PAY),
    "the amount goes to the sponsor": lambda: compiled(OPEN, moved(ARRIVES, SPONSOR), PAY),
    "amount and costs are exchanged": lambda: compiled(OPEN, moved(COSTS), moved(ARRIVES, SPONSOR)),
    "the order is another one": lambda: compiled(OPEN, PAY, SEND),
    "the account is not made": lambda: compiled(SEND, PAY),
    "nothing is sent": lambda: compiled(OPEN, PAY),
    "another token is sent": lambda: compiled(OPEN, moved(ARRIVES, market=OTHER_MINT), PAY),
    "the costs are in another token": lambda: compiled(OPEN, SEND, moved(COSTS, SPONSOR, OTHER_MINT)),
    "decimals are others": lambda: compiled(OPEN, moved(ARRIVES, decimals=9), PAY),
    "another program is called": lambda: compiled(OPEN, moved(ARRIVES, program=TOKEN_2022_PROGRAM_ID), PAY),
    "the owner pays the fee": lambda: compiled(OPEN, SEND, PAY, payer=OWN),
    "the owner pays the rent": lambda: compiled(
        token.create_idempotent_associated_token_account(OWN, TARGET.pubkey(), MARKET.mint), SEND, PAY
    ),
    "an account is made for the thief": lambda: compiled(
        token.create_idempotent_associated_token_account(SPONSOR.pubkey(), THIEF.pubkey(), MARKET.mint), SEND, PAY
    ),
    "a third one takes more": lambda: compiled(OPEN, SEND, PAY, moved(1, THIEF)),
    "a delegate is approved": lambda: compiled(
        OPEN,
        SEND,
        PAY,
        token.approve(
            models.ApproveParams(
                program_id=TOKEN_PROGRAM_ID,
                source=OWN_WALLET,
                delegate=THIEF.pubkey(),
                owner=OWN,
                amount=10**12,
                signers=[],
            )
        ),
    ),
    "the account changes hands": lambda: compiled(
        OPEN,
        SEND,
        PAY,
        token.set_authority(
            models.SetAuthorityParams(
                program_id=TOKEN_PROGRAM_ID,
                account=OWN_WALLET,
                authority=models.AuthorityType.ACCOUNT_OWNER,
                current_authority=OWN,
                signers=[],
                new_authority=THIEF.pubkey(),
            )
        ),
    ),
    "the account is closed": lambda: compiled(
        OPEN,
        SEND,
        PAY,
        token.close_account(
            models.CloseAccountParams(
                program_id=TOKEN_PROGRAM_ID, account=OWN_WALLET, dest=THIEF.pubkey(), owner=OWN, signers=[]
            )
        ),
    ),
    "the owner's SOL goes": lambda: compiled(
        OPEN, SEND, PAY, transfer(TransferParams(from_pubkey=OWN, to_pubkey=THIEF.pubkey(), lamports=1))
    ),
    "an unknown program comes along": lambda: compiled(
        OPEN, SEND, PAY, Instruction(THIEF.pubkey(), b"x", [AccountMeta(OWN, is_signer=True, is_writable=True)])
    ),
    "the owner's account is writable": lambda: compiled(
        OPEN, SEND, PAY, Instruction(SYSTEM_PROGRAM, b"", [AccountMeta(OWN, is_signer=True, is_writable=True)])
    ),
    "a nonce lets it never expire": lambda: compiled(
        advance_nonce_account(
            AdvanceNonceAccountParams(nonce_pubkey=THIEF.pubkey(), authorized_pubkey=SPONSOR.pubkey())
        ),
        OPEN,
        SEND,
        PAY,
    ),
    "somebody else signs, too": lambda: compiled(
        OPEN, SEND, PAY, transfer(TransferParams(from_pubkey=THIEF.pubkey(), to_pubkey=OWN, lamports=1))
    ),
    "the message is of another version": lambda: wire_of(
        Message.new_with_blockhash([OPEN, SEND, PAY], SPONSOR.pubkey(), BLOCKHASH)
    ),
    "one signature is missing": lambda: wire_of(AGREED.message(MARKET, BLOCKHASH), 1),
    "there is nothing": lambda: b"",
    "it is no transaction": lambda: b"\xff" * 200,
}


@pytest.mark.parametrize("change", HOSTILE)
def test_neither_side_signs_a_transaction_that_was_changed(change: str) -> None:
    wire = HOSTILE[change]()
    for sign, seed in ((AGREED.signed_by_owner, SEED), (AGREED.signed_by_both, bytes(SPONSOR.secret()))):
        with pytest.raises(AlteredTransactionError):
            sign(MARKET, wire, seed)


def test_what_was_agreed_on_is_signed_by_both_and_by_nobody_else() -> None:
    signed = AGREED.signed_by_owner(MARKET, compiled(OPEN, SEND, PAY), SEED)
    whole = AGREED.signed_by_both(MARKET, signed, bytes(SPONSOR.secret()))
    parsed = VersionedTransaction.from_bytes(whole)
    parsed.verify_and_hash_message()
    assert AGREED.signature(MARKET, whole) == str(parsed.signatures[0])
    with pytest.raises(AlteredTransactionError, match="not signed by both"):
        AGREED.signature(MARKET, signed)
    forged = AGREED.signed_by_owner(MARKET, compiled(OPEN, SEND, PAY), bytes(THIEF.secret()))
    with pytest.raises(AlteredTransactionError, match=f"not signed by {OWN}"):
        AGREED.signed_by_both(MARKET, forged, bytes(SPONSOR.secret()))


def test_without_costs_and_without_an_account_there_is_one_instruction() -> None:
    plain = SponsoredTransfer(AGREED.sponsor, AGREED.owner, AGREED.target, ARRIVES, Amount(0), opens=False)
    assert plain.draft(MARKET, BLOCKHASH) == compiled(SEND)
    with pytest.raises(AlteredTransactionError):
        plain.signed_by_owner(MARKET, compiled(SEND, PAY), SEED)


@pytest.mark.parametrize("owner", [AGREED.sponsor, AGREED.target])
def test_nobody_pays_itself(owner: str) -> None:
    with pytest.raises(AlteredTransactionError, match="two other wallets"):
        SponsoredTransfer(AGREED.sponsor, owner, AGREED.target, ARRIVES, COSTS, opens=False).draft(MARKET, BLOCKHASH)


def blockhash_at() -> range:
    """Where the message's one part lies that the other side may choose."""
    wire = AGREED.draft(MARKET, BLOCKHASH)
    start = wire.index(bytes(BLOCKHASH))
    return range(start, start + 32)


@given(st.data())
def test_any_other_byte_of_the_message_is_refused(data: st.DataObject) -> None:
    wire = bytearray(AGREED.draft(MARKET, BLOCKHASH))
    first = 1 + 2 * 64  # Behind the signatures, which nobody takes over.
    place = data.draw(st.integers(first, len(wire) - 1))
    wire[place] ^= data.draw(st.integers(1, 255))
    if place in blockhash_at():
        signed = AGREED.signed_by_owner(MARKET, bytes(wire), SEED)
        message = VersionedTransaction.from_bytes(signed).message
        assert to_bytes_versioned(message) == to_bytes_versioned(AGREED.message(MARKET, message.recent_blockhash))
        return
    with pytest.raises(AlteredTransactionError):
        AGREED.signed_by_owner(MARKET, bytes(wire), SEED)


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.booleans(),
    st.sampled_from([SPONSOR, OWNER, TARGET, THIEF]),
    st.sampled_from([SPONSOR, OWNER, TARGET, THIEF]),
)
def test_only_the_amounts_and_accounts_that_were_shown_are_signed(
    arrives: int, costs: int, opens: bool, target: Keypair, payee: Keypair
) -> None:
    made = [OPEN] if opens else []
    wire = compiled(*made, moved(arrives, target), moved(costs, payee))
    same = (arrives, costs, opens, target, payee) == (ARRIVES, COSTS, True, TARGET, SPONSOR)
    if same:
        AGREED.signed_by_owner(MARKET, wire, SEED)
        return
    with pytest.raises(AlteredTransactionError):
        AGREED.signed_by_owner(MARKET, wire, SEED)


# --- on the ledger ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def client(world: World, request: pytest.FixtureRequest) -> AsyncIterator[Ledger]:
    """A client of the world, over JSON-RPC, wherever the world is."""
    if isinstance(world, SurfpoolWorld):
        config = LedgerConfig(world.url, str(world.market.program), str(world.market.mint))
        async with await Ledger.connect(config) as client:
            yield client
        return
    async with serving_world(world) as url, await Ledger.connect(LedgerConfig(url)) as client:
        yield client


def poor(world: World, tokens: int) -> Pubkey:
    """Somebody with tokens and not one lamport."""
    who = world.new_key("poor")
    world.send(world.create_wallet(who), world.move_tokens(world.node, world.wallet(who), tokens))
    return who


def transfer_of(
    world: World, owner: Pubkey, target: Pubkey, arrives: int, costs: int, opens: bool
) -> SponsoredTransfer:
    return SponsoredTransfer(str(world.coordinator), str(owner), str(target), Amount(arrives), Amount(costs), opens)


@pytest.mark.clusters
async def test_an_owner_without_sol_sends_and_the_sums_are_exact(world: World, client: Ledger) -> None:
    owner, target = poor(world, 5_000_000), world.new_key("receiver")
    sponsor, sponsored = world.key("coordinator"), world.tokens(world.coordinator)
    cost = await client.sponsored_cost()
    assert (cost.fee, await client.receiver(str(target)), await client.lamports(str(owner))) == (10_000, "none", 0)
    for arrives, costs, opens in ((4_000_000, 307_392, True), (691_108, 1_500, False)):
        before = await client.lamports(str(world.coordinator))
        agreed = transfer_of(world, owner, target, arrives, costs, opens)
        draft = await client.draft_sponsored(agreed)
        signed, last = await client.sign_sponsored(bytes(world.keys[owner].secret()), agreed, draft)
        whole = await client.complete_sponsored(bytes(sponsor.secret()), agreed, signed)
        assert client.sponsored(agreed, whole.wire, last).signature == whole.signature, "as the owner has it back"
        await client.submit(whole)
        spent = before - await client.lamports(str(world.coordinator))
        assert spent == cost.fee + (cost.rent if opens else 0)
    assert await client.receiver(str(target)) == "account"
    assert (world.tokens(owner), world.tokens(target)) == (0, 4_691_108)
    assert world.tokens(world.coordinator) - sponsored == 308_892
    assert await client.lamports(str(owner)) == 0


@pytest.mark.clusters
async def test_the_sponsor_pays_no_rent_where_the_tokens_do_not_come(world: World, client: Ledger) -> None:
    owner, target = poor(world, 100), world.new_key("receiver")
    agreed = transfer_of(world, owner, target, 100, 1, opens=True)  # One more than there is.
    signed, _ = await client.sign_sponsored(
        bytes(world.keys[owner].secret()), agreed, await client.draft_sponsored(agreed)
    )
    whole = await client.complete_sponsored(bytes(world.key("coordinator").secret()), agreed, signed)
    before = await client.lamports(str(world.coordinator))
    with pytest.raises(TransactionFailedError, match="holds less"):
        await client.submit(whole)
    assert await client.receiver(str(target)) == "none"
    assert await client.lamports(str(world.coordinator)) == before
    assert world.tokens(owner) == 100


# --- on the embedded ledger, whose clock a test moves ---------------------------------------------------------------------


async def test_an_account_closed_meanwhile_is_not_made_again(world: World, ledger: Ledger) -> None:
    owner = poor(world, 1_000)
    agreed = transfer_of(world, owner, world.stranger, 900, 100, opens=False)
    signed, _ = await ledger.sign_sponsored(
        bytes(world.keys[owner].secret()), agreed, await ledger.draft_sponsored(agreed)
    )
    world.send(*world.close_wallet(world.stranger))
    whole = await ledger.complete_sponsored(bytes(world.key("coordinator").secret()), agreed, signed)
    with pytest.raises(TransactionFailedError):
        await ledger.submit(whole)
    assert await ledger.receiver(str(world.stranger)) == "none"
    assert world.tokens(owner) == 1_000


async def test_what_was_drawn_up_too_long_ago_is_not_signed(world: World, ledger: Ledger) -> None:
    owner = poor(world, 1_000)
    agreed = transfer_of(world, owner, world.stranger, 900, 100, opens=False)
    signed, last = await ledger.sign_sponsored(
        bytes(world.keys[owner].secret()), agreed, await ledger.draft_sponsored(agreed)
    )
    assert not await ledger.is_over(last)
    world.clock.advance(SLOT_S * (BLOCKHASH_SLOTS + 2))
    with pytest.raises(TransactionExpiredError, match="ask for a new one"):
        await ledger.complete_sponsored(bytes(world.key("coordinator").secret()), agreed, signed)
    assert await ledger.is_over(last)


async def test_tokens_go_to_wallets_only(world: World, ledger: Ledger) -> None:
    assert await ledger.receiver(str(world.stranger)) == "account"
    assert await ledger.receiver(str(world.new_key("nobody yet"))) == "none"
    assert await ledger.receiver(str(world.wallet(world.stranger))) == "no wallet", "a token account"
    assert await ledger.receiver(str(world.market.program)) == "no wallet", "a program"
    assert await ledger.receiver(str(world.wallet(world.new_key("nobody")))) == "no wallet", "nobody has its key"
    given = world.new_key("gave its account away")
    world.send(world.create_wallet(given))
    world.send(
        token.set_authority(
            models.SetAuthorityParams(
                program_id=TOKEN_PROGRAM_ID,
                account=world.wallet(given),
                current_authority=given,
                authority=models.AuthorityType.ACCOUNT_OWNER,
                new_authority=world.stranger,
                signers=[],
            )
        )
    )
    assert await ledger.receiver(str(given)) == "no wallet", "what arrives there is somebody else's"
    funded = world.new_key("whose account's address holds SOL")
    world.put(world.wallet(funded), Account(10**9, b"", SYSTEM_PROGRAM))
    assert await ledger.receiver(str(funded)) == "none"


async def test_a_sponsor_gets_its_own_account_once(world: World, ledger: Ledger) -> None:
    sponsor = world.new_key("a sponsor without tokens")
    world.put(sponsor, Account(10**9, b"", SYSTEM_PROGRAM))
    seed = bytes(world.keys[sponsor].secret())
    await ledger.open_account(seed)
    left = await ledger.lamports(str(sponsor))
    await ledger.open_account(seed)
    assert (await ledger.receiver(str(sponsor)), await ledger.lamports(str(sponsor))) == ("account", left)
