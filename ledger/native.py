"""Escrow where a cluster lacks the market program: a 2-of-3 vault of the token program, with a capped allowance.

Submitter, coordinator and arbiter own the vault together, two of them at a time. Two of them (submitter and coordinator,
at the beginning) allow the coordinator to pay a sum alone; neither can revoke that alone, and no more can be paid. What is
left returns when two agree. So a job costs at most the allowance, and a coordinator that vanishes costs the submitter
nothing that the arbiter cannot give back.

What the token program cannot do is refused by name (``UnsupportedError``): there is no deadline after which anybody
refunds, no list of payees, no promise to claim, no stake and no dispute.

The methods that exist mean what those of ``ledger.client.Ledger`` mean. Amounts paid are read from the vault's
transactions; a numbered marker account, created by each settlement, lets only one settlement follow each state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, TypeAlias

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message, MessageV0, MessageV1, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.system_program import CreateAccountWithSeedParams, create_account_with_seed
from solders.transaction import VersionedTransaction
from solders.transaction_status import UiRawMessage, UiTransaction
from spl.token import instructions as token
from spl.token import models
from spl.token.constants import TOKEN_PROGRAM_ID

from ledger import base58
from ledger.addresses import check_job, keypair, parse_address
from ledger.connection import Connection
from ledger.door import Door, amount_in, checked
from ledger.errors import (
    EscrowExistsError,
    InsufficientFundsError,
    LedgerAnswerError,
    NoEscrowError,
    UnsupportedError,
)
from ledger.history import read_signatures
from ledger.money import DECIMALS, Amount, show
from ledger.program.interface import Market
from ledger.states import EscrowState, PreparedTransaction, StakeState

VersionedMessage: TypeAlias = Message | MessageV0 | MessageV1
NO_DEADLINE = 2**63 - 1
MAX_PAYEES_A_TRANSACTION = 8  # With a token account created for each, as many fit 1,232 bytes.
_MULTISIG_SIZE, _VAULT_SIZE = 355, 165
_TRANSFER_CHECKED = 12
_WHY = "needs the market program, which this cluster lacks: deploy it with cottage ledger deploy"
_LACKING = {
    "prepare_acceptance": "terms that a coordinator asks for",
    "prepare_extension": "a cap and a deadline that the submitter changes",
    "prepare_admission": "a list of payees",
    "prepare_enrolment": "a list of payees",
    "prepare_growth": "a list of payees",
    "prepare_commitment": "a promise that payees claim by themselves",
    "prepare_claim": "a promise that payees claim by themselves",
    "prepare_close": "closing an escrow",
    "prepare_stake": "a stake with a cool-down and a capped slash",
    "open_stake": "a stake with a cool-down and a capped slash",
    "prepare_slash": "a stake with a cool-down and a capped slash",
    "prepare_stake_request": "the cool-down of a stake",
    "prepare_stake_withdrawal": "the cool-down of a stake",
    "prepare_stake_move": "a stake",
    "prepare_stake_close": "a stake",
    "prepare_dispute": "a dispute",
    "prepare_verdict": "a dispute",
    "prepare_dispute_expiry": "a dispute",
    "prepare_dispute_close": "a dispute",
    "terms": "terms of a market",
}


@dataclass(frozen=True)
class NativeConfig:
    """Where the ledger is, in which token, and who arbitrates: neither submitter nor coordinator."""

    url: str
    mint: str
    arbiter: str


@dataclass(frozen=True)
class Draft:
    """A transaction that still lacks a signature; hand ``wire`` to its other signer."""

    wire: bytes
    last_valid_block_height: int

    def complete(self, seed: bytes) -> PreparedTransaction:
        """Add the missing signature.

        Raises:
            LedgerAnswerError: this key does not sign the transaction.
        """
        signer, drafted = keypair(seed), VersionedTransaction.from_bytes(self.wire)
        signers = list(drafted.message.account_keys)[: drafted.message.header.num_required_signatures]
        if signer.pubkey() not in signers:
            raise LedgerAnswerError(
                f"{signer.pubkey()} does not sign this transaction: {', '.join(map(str, signers))} do"
            )
        signatures = list(drafted.signatures)
        signatures[signers.index(signer.pubkey())] = _signature(signer, drafted.message)
        whole = VersionedTransaction.populate(drafted.message, signatures)
        return PreparedTransaction(str(signatures[0]), bytes(whole), self.last_valid_block_height)


@dataclass(frozen=True)
class _Vault:
    """The accounts of one job, which follow from the submitter's key and the job."""

    submitter: Pubkey
    coordinator: Pubkey
    job: bytes
    arbiter: Pubkey

    def seed(self, kind: str) -> str:
        parts = kind.encode() + bytes(self.coordinator) + bytes(self.arbiter) + self.job
        return hashlib.sha256(parts).hexdigest()[:32]

    @property
    def multisig(self) -> Pubkey:
        return Pubkey.create_with_seed(self.submitter, self.seed("owner"), TOKEN_PROGRAM_ID)

    @property
    def address(self) -> Pubkey:
        return Pubkey.create_with_seed(self.submitter, self.seed("vault"), TOKEN_PROGRAM_ID)

    @property
    def owners(self) -> list[Pubkey]:
        return [self.submitter, self.coordinator, self.arbiter]


class NativeLedger(Door):
    """Escrow without the market program; the same door as ``Ledger`` as far as it goes."""

    def __init__(self, connection: Connection, mint: Pubkey, arbiter: Pubkey) -> None:
        super().__init__(connection, Market(SYSTEM_PROGRAM, mint), None)
        self._arbiter = arbiter

    @classmethod
    async def connect(cls, config: NativeConfig) -> NativeLedger:
        """Connect and check that the token is there."""
        connection = Connection(config.url)
        try:
            mint, arbiter = parse_address(config.mint), parse_address(config.arbiter)
            account = (await connection.accounts([mint]))[0]
            if account is None or len(account.data) != 82 or account.data[44] != DECIMALS:
                raise LedgerAnswerError(f"{mint} is no token with {DECIMALS} decimals on {config.url}")
            return cls(connection, mint, arbiter)
        except BaseException:  # Also when cancelled: nobody else could close the connection.
            await connection.aclose()
            raise

    async def aclose(self) -> None:
        """Close the connection."""
        await self._connection.aclose()

    async def __aenter__(self) -> NativeLedger:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __getattr__(self, name: str) -> NoReturn:
        """What only the program can do.

        Raises:
            UnsupportedError: says what is asked for and what to do.
        """
        if name in _LACKING:
            raise UnsupportedError(f"{name}: {_LACKING[name]} {_WHY}")
        raise AttributeError(name)

    async def stake(self, node: str) -> StakeState | None:
        """Nobody has a stake here."""
        parse_address(node)
        return None

    async def stakes(self, nodes: Sequence[str]) -> dict[str, StakeState | None]:
        """Nobody has one."""
        return {node: await self.stake(node) for node in nodes}

    # Escrow

    def vault_address(self, submitter: str, coordinator: str, job: bytes) -> str:
        """The vault of a job, whether it was opened or not."""
        return str(self._vault(submitter, coordinator, job).address)

    def _vault(self, submitter: str, coordinator: str, job: bytes) -> _Vault:
        return _Vault(parse_address(submitter), parse_address(coordinator), check_job(job), self._arbiter)

    async def prepare_escrow(
        self, submitter_seed: bytes, job: bytes, coordinator: str, amount: Amount
    ) -> PreparedTransaction:
        """Open a job's vault and deposit ``amount``. Nobody can pay from it before ``draft_allowance`` was completed.

        Raises:
            EscrowExistsError: this submitter opened this job before.
            InsufficientFundsError: the submitter's wallet holds less.
        """
        signer = keypair(submitter_seed)
        key, vault = signer.pubkey(), self._vault(str(signer.pubkey()), coordinator, job)
        existing = (await self._connection.accounts([vault.address]))[0]
        if existing is not None:
            raise EscrowExistsError(f"{key} opened this job before: look at its vault, or use another job id")
        held = await self.balance(str(key))
        if held < checked(amount):
            raise InsufficientFundsError(f"{key} holds {show(held)}, {show(amount)} are needed: fund the wallet")
        rents = [await self._connection.rent(size) for size in (_MULTISIG_SIZE, _VAULT_SIZE)]
        owners = models.InitializeMultisig2Params(
            program_id=TOKEN_PROGRAM_ID, multisig=vault.multisig, m=2, signers=vault.owners
        )
        account = models.InitializeAccount3Params(
            program_id=TOKEN_PROGRAM_ID, account=vault.address, mint=self._market.mint, owner=vault.multisig
        )
        instructions = [
            _create(key, vault.multisig, vault.seed("owner"), rents[0], _MULTISIG_SIZE, TOKEN_PROGRAM_ID),
            token.initialize_multisig2(owners),
            _create(key, vault.address, vault.seed("vault"), rents[1], _VAULT_SIZE, TOKEN_PROGRAM_ID),
            token.initialize_account3(account),
            self._transfer(self._market.wallet(key), vault.address, key, amount),
        ]
        return await self._prepare(signer, instructions)

    async def draft_allowance(self, submitter_seed: bytes, job: bytes, coordinator: str, amount: Amount) -> Draft:
        """Allow the coordinator to pay ``amount`` more alone; it replaces what is left of an earlier allowance.

        The submitter signs and pays the fee, the coordinator completes it.
        """
        signer = keypair(submitter_seed)
        vault = self._vault(str(signer.pubkey()), coordinator, job)
        approval = models.ApproveCheckedParams(
            program_id=TOKEN_PROGRAM_ID, source=vault.address, mint=self._market.mint, delegate=vault.coordinator,
            owner=vault.multisig, amount=checked(amount), decimals=DECIMALS,
            signers=[vault.submitter, vault.coordinator],
        )  # fmt: skip
        return await self._draft(signer, [token.approve_checked(approval)])

    async def allowance(self, submitter: str, coordinator: str, job: bytes) -> Amount:
        """What the coordinator may still pay alone."""
        data = await self._vault_data(self._vault(submitter, coordinator, job))
        if data[72:76] != b"\1\0\0\0" or Pubkey.from_bytes(data[76:108]) != parse_address(coordinator):
            return Amount(0)
        return Amount(int.from_bytes(data[121:129], "little"))

    async def escrow(self, submitter: str, coordinator: str, job: bytes) -> EscrowState | None:
        """A job's vault and what left it, or None where it was never opened. Its deadline never comes."""
        vault = self._vault(submitter, coordinator, job)
        account = (await self._connection.accounts([vault.address]))[0]
        if account is None:
            return None
        moved, _ = await self._moved(vault)
        home = self._market.wallet(vault.submitter)
        refunded, balance = moved.pop(home, 0), amount_in(account.data)
        paid = sum(moved.values())
        return EscrowState(
            address=str(vault.address), submitter=submitter, coordinator=coordinator, job=job,
            deposited=Amount(paid + refunded + balance), paid=Amount(paid), refunded=Amount(refunded),
            balance=Amount(balance), deadline=NO_DEADLINE, ended=False, closed=False, max_payees=2**31,
            paid_to={str(wallet): Amount(total) for wallet, total in moved.items()},
        )  # fmt: skip

    async def prepare_settlement(
        self, coordinator_seed: bytes, submitter: str, job: bytes, payouts: Mapping[str, Amount]
    ) -> PreparedTransaction | None:
        """Raise payees to their cumulative amounts, at most MAX_PAYEES_A_TRANSACTION of them in a transaction.

        One settlement follows another: a second one prepared from the same state fails, and is then prepared anew.

        Returns:
            None when everybody has received as much already.
        Raises:
            InsufficientFundsError: vault or allowance are smaller than what is due.
        """
        signer = keypair(coordinator_seed)
        key, vault = signer.pubkey(), self._vault(submitter, str(signer.pubkey()), job)
        held = amount_in(await self._vault_data(vault))
        moved, settled = await self._moved(vault)
        due = {
            parse_address(payee): checked(total) - moved.get(self._market.wallet(parse_address(payee)), 0)
            for payee, total in sorted(payouts.items())
        }
        due = dict([(payee, missing) for payee, missing in due.items() if missing > 0][:MAX_PAYEES_A_TRANSACTION])
        if not due:
            return None
        allowed, needed = await self.allowance(submitter, str(key), job), sum(due.values())
        if needed > min(held, allowed):
            message = f"{show(needed)} are due, the vault {vault.address} holds {show(held)} and allows {show(allowed)}"
            raise InsufficientFundsError(f"{message}: the submitter has to allow more")
        name = vault.seed(f"settlement {settled} ")
        marker = Pubkey.create_with_seed(key, name, SYSTEM_PROGRAM)
        instructions = [_create(key, marker, name, await self._connection.rent(0), 0, SYSTEM_PROGRAM)]
        for payee, missing in due.items():
            wallet = self._market.wallet(payee)
            instructions += [
                token.create_idempotent_associated_token_account(key, payee, self._market.mint),
                self._transfer(vault.address, wallet, key, missing),
            ]
        return await self._prepare(signer, instructions)

    async def draft_refund(
        self, seed: bytes, submitter: str, coordinator: str, job: bytes, second: str, amount: Amount
    ) -> Draft:
        """Return ``amount`` to the submitter: the seed's owner signs and pays the fee, ``second`` completes it.

        Both are among submitter, coordinator and arbiter.
        """
        signer, vault = keypair(seed), self._vault(submitter, coordinator, job)
        pair = [signer.pubkey(), parse_address(second)]
        return await self._draft(
            signer,
            [
                token.create_idempotent_associated_token_account(signer.pubkey(), vault.submitter, self._market.mint),
                self._transfer(
                    vault.address, self._market.wallet(vault.submitter), vault.multisig, checked(amount), pair
                ),
            ],
        )

    # How

    def _transfer(
        self, source: Pubkey, target: Pubkey, owner: Pubkey, amount: int, signers: Sequence[Pubkey] = ()
    ) -> Instruction:
        parameters = models.TransferCheckedParams(
            program_id=TOKEN_PROGRAM_ID, source=source, dest=target, mint=self._market.mint, owner=owner,
            amount=amount, decimals=DECIMALS, signers=list(signers),
        )  # fmt: skip
        return token.transfer_checked(parameters)

    async def _vault_data(self, vault: _Vault) -> bytes:
        account = (await self._connection.accounts([vault.address]))[0]
        if account is None:
            raise NoEscrowError(f"the vault {vault.address} of {vault.submitter} was never opened: deposit first")
        return account.data

    async def _moved(self, vault: _Vault) -> tuple[dict[Pubkey, int], int]:
        """What each token account received from the vault, and how many settlements there were."""
        moved, settled = dict[Pubkey, int](), 0
        for signature in (await read_signatures(self._connection, vault.address))[::-1]:
            answer = await self._connection.transaction(signature)
            body, meta = answer.transaction.transaction, answer.transaction.meta
            if not isinstance(body, UiTransaction) or not isinstance(body.message, UiRawMessage) or meta is None:
                raise LedgerAnswerError(
                    f"transaction {signature} came in an unknown encoding: is this a Solana ledger?"
                )
            transfers = list(_transfers(body.message, vault.address))
            settled += any(by == vault.coordinator for _, by, _ in transfers)
            for target, _, units in transfers:
                moved[target] = moved.get(target, 0) + units
        return moved, settled

    async def _draft(self, signer: Keypair, instructions: Sequence[Instruction]) -> Draft:
        window = await self._sender.window()
        message = MessageV0.try_compile(signer.pubkey(), instructions, [], window.blockhash)
        signatures = [Signature.default()] * message.header.num_required_signatures
        signatures[0] = _signature(signer, message)  # The fee's payer stands first.
        drafted = VersionedTransaction.populate(message, signatures)
        return Draft(bytes(drafted), window.last_valid_block_height)


def _transfers(message: UiRawMessage, vault: Pubkey) -> list[tuple[Pubkey, Pubkey, int]]:
    """Target, who authorised it, and units of every transfer out of the vault."""
    keys, found = message.account_keys, list[tuple[Pubkey, Pubkey, int]]()
    for instruction in message.instructions:
        data = base58.decode(instruction.data)
        accounts = [keys[index] for index in instruction.accounts]
        if keys[instruction.program_id_index] != TOKEN_PROGRAM_ID or data[:1] != bytes([_TRANSFER_CHECKED]):
            continue
        if accounts[0] == vault:
            found.append((accounts[2], accounts[3], int.from_bytes(data[1:9], "little")))
    return found


def _signature(signer: Keypair, message: VersionedMessage) -> Signature:
    return signer.sign_message(to_bytes_versioned(message))


def _create(payer: Pubkey, address: Pubkey, seed: str, rent: int, size: int, owner: Pubkey) -> Instruction:
    parameters = CreateAccountWithSeedParams(
        from_pubkey=payer, to_pubkey=address, base=payer, seed=seed, lamports=rent, space=size, owner=owner
    )
    return create_account_with_seed(parameters)
