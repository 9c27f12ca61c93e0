/* A job's money: deposited by the submitter, paid out by the coordinator in cumulative amounts, the rest
 * refunded. At any time deposited = paid + refunded + what the vault holds. */
#include "market.h"

static const u8 SEED[6] = {'e', 's', 'c', 'r', 'o', 'w'};

/* Source of the seeds with which the escrow signs; lives in the caller's frame. */
typedef struct { Slice seeds[4]; SignerSeeds signer; } EscrowSigner;

INLINE const SignerSeeds *sign_as(EscrowSigner *s, const Escrow *escrow) {
    s->seeds[0] = (Slice){SEED, sizeof SEED};
    s->seeds[1] = (Slice){&escrow->submitter, 32};
    s->seeds[2] = (Slice){&escrow->job, 32};
    s->seeds[3] = (Slice){&escrow->bump, 1};
    s->signer = (SignerSeeds){s->seeds, 4};
    return &s->signer;
}

/* Checks the common five accounts against the escrow and counts tokens that somebody sent straight to the
 * vault as deposited, so that the totals always agree with the vault. */
static NOINLINE u64 load(const Call *call, u64 accounts, Escrow **out) {
    const Account *a = call->accounts;
    if (call->count < accounts) return INVALID_ARGUMENT;
    if (!a[AUTHORITY].is_signer) return MISSING_SIGNATURE;
    if (!same_key(a[STATE].owner, call->program) || a[STATE].data_len < sizeof(Escrow)) return E_NOT_OURS;
    Escrow *escrow = (Escrow *)a[STATE].data;
    if (escrow->tag != TAG_ESCROW) return E_NOT_OURS;
    if (escrow->status == CLOSED) return E_CLOSED;
    if (!same_key(a[VAULT].key, &escrow->vault)) return E_WRONG_VAULT;
    if (!same_key(a[MINT].key, &escrow->mint)) return E_WRONG_MINT;
    if (!is_token_program(a[TOKEN].key)) return E_WRONG_PROGRAM;
    u64 held = escrow->deposited - escrow->paid - escrow->refunded;
    *out = escrow;
    return add(&escrow->deposited, vault_balance(a + VAULT) - held);
}

/* [submitter s w, escrow w, vault, mint, system]; job[32] coordinator[32] deadline i64 capacity u16 */
u64 escrow_open(const Call *call) {
    const Account *a = call->accounts;
    if (call->data_len != 74) return INVALID_INSTRUCTION_DATA;
    if (call->count < 5) return INVALID_ARGUMENT;
    if (!a[AUTHORITY].is_signer) return MISSING_SIGNATURE;
    u64 capacity = read_u16(call->data + 72);
    if (capacity < 1 || capacity > MAX_PAYEES) return E_BAD_TERMS;
    i64 time, deadline = (i64)read_u64(call->data + 64);
    u64 error = now(&time);
    if (error) return error;
    if (deadline <= time) return E_DEADLINE_PASSED;

    u8 bump;
    Slice seeds[4] = {{SEED, sizeof SEED}, {a[AUTHORITY].key, 32}, {call->data, 32}, {&bump, 1}};
    error = create_state(call, sizeof(Escrow) + capacity * sizeof(Payee), seeds, 3, &bump);
    if (error) return error;
    error = check_fresh_vault(a + VAULT, a + MINT, a + STATE);
    if (error) return error;

    Escrow *escrow = (Escrow *)a[STATE].data;
    escrow->tag = TAG_ESCROW;
    escrow->bump = bump;
    escrow->status = OPEN;
    escrow->version = 1;
    escrow->capacity = (u16)capacity;
    escrow->deadline = deadline;
    escrow->deposited = vault_balance(a + VAULT);
    copy_key(&escrow->submitter, a[AUTHORITY].key);
    copy_key(&escrow->job, call->data);
    copy_key(&escrow->coordinator, call->data + 32);
    copy_key(&escrow->mint, a[MINT].key);
    copy_key(&escrow->vault, a[VAULT].key);
    log_event("OPEN", a + STATE, call->data + 32, 40);
    return 0;
}

/* [depositor s, escrow w, vault w, mint, token, source w]; amount u64 */
u64 escrow_deposit(const Call *call) {
    if (call->data_len != 8) return INVALID_INSTRUCTION_DATA;
    Escrow *escrow;
    u64 error = load(call, 6, &escrow), amount = read_u64(call->data);
    if (error) return error;
    if (escrow->status != OPEN) return E_ENDED;
    if (!amount) return E_ZERO_AMOUNT;
    error = transfer_tokens(call, REST, VAULT, amount, 0);
    if (error) return error;
    error = add(&escrow->deposited, amount);
    if (error) return error;
    log_event("FUND", call->accounts + STATE, &amount, 8);
    return 0;
}

/* The payee's entry, made when it is new; null when the table is full. */
static NOINLINE Payee *entry_of(Escrow *escrow, const Pubkey *account) {
    u64 used = escrow->used;
    for (u64 i = 0; i < used; i++)
        if (same_key(&escrow->payees[i].account, account)) return escrow->payees + i;
    if (used == escrow->capacity) return 0;
    Payee *entry = escrow->payees + used;
    copy_key(&entry->account, account);
    entry->paid = 0;
    escrow->used = (u16)(used + 1);
    return entry;
}

/* Raises one payee to its cumulative amount. An amount at or below what was paid already moves nothing, so
 * a repeated settlement, or an older one that arrives late, is harmless. */
static NOINLINE u64 pay(const Call *call, Escrow *escrow, u64 index, u64 cumulative) {
    const Account *payee = call->accounts + index;
    if (same_key(payee->key, &escrow->vault)) return E_WRONG_DESTINATION;
    Payee *entry = entry_of(escrow, payee->key);
    if (!entry) return E_PAYEES_FULL;
    if (cumulative <= entry->paid) return 0;
    u64 amount = cumulative - entry->paid;
    if (amount > vault_balance(call->accounts + VAULT)) return E_INSUFFICIENT;
    EscrowSigner signer;
    u64 error = transfer_tokens(call, VAULT, index, amount, sign_as(&signer, escrow));
    if (error) return error;
    entry->paid = cumulative;
    escrow->paid += amount; /* cannot overflow: never above deposited */
    struct { Pubkey account; u64 amount, cumulative; } event;
    copy_key(&event.account, payee->key);
    event.amount = amount;
    event.cumulative = cumulative;
    log_event("PAID", call->accounts + STATE, &event, sizeof event);
    return 0;
}

/* [coordinator s, escrow w, vault w, mint, token, payee token accounts w ..]; cumulative u64 a payee */
u64 escrow_settle(const Call *call) {
    Escrow *escrow;
    u64 error = load(call, 6, &escrow);
    if (error) return error;
    if (!same_key(call->accounts[AUTHORITY].key, &escrow->coordinator)) return E_WRONG_AUTHORITY;
    u64 payees = call->count - REST;
    if (call->data_len != payees * 8) return INVALID_INSTRUCTION_DATA;
    for (u64 i = 0; i < payees; i++) {
        error = pay(call, escrow, REST + i, read_u64(call->data + i * 8));
        if (error) return error;
    }
    return 0;
}

/* [authority s, escrow w, vault w, mint, token, destination w [, coordinator s]]
 * The coordinator may refund at any time, the submitter alone once the deadline has passed; always to a
 * token account of the submitter. */
u64 escrow_refund(const Call *call) {
    const Account *a = call->accounts;
    if (call->data_len) return INVALID_INSTRUCTION_DATA;
    Escrow *escrow;
    u64 error = load(call, 6, &escrow);
    if (error) return error;
    int by_coordinator = same_key(a[AUTHORITY].key, &escrow->coordinator);
    int agreed = call->count > 6 && a[6].is_signer && same_key(a[6].key, &escrow->coordinator);
    if (!by_coordinator && !same_key(a[AUTHORITY].key, &escrow->submitter)) return E_WRONG_AUTHORITY;
    if (!by_coordinator && !agreed) {
        i64 time;
        error = now(&time);
        if (error) return error;
        if (time < escrow->deadline) return E_TOO_EARLY;
    }
    if (!token_account_belongs_to(a + REST, &escrow->submitter)) return E_WRONG_DESTINATION;
    u64 amount = vault_balance(a + VAULT);
    if (amount) {
        EscrowSigner signer;
        error = transfer_tokens(call, VAULT, REST, amount, sign_as(&signer, escrow));
        if (error) return error;
    }
    error = add(&escrow->refunded, amount);
    if (error) return error;
    escrow->status = ENDED;
    log_event("REFD", a + STATE, &amount, 8);
    return 0;
}

/* [authority s, escrow w, vault w, mint, token, submitter w]
 * Returns the rent of the vault and of the payee table. The header stays as a tombstone with the totals: a
 * job can never be opened, and so never be paid, a second time. */
u64 escrow_close(const Call *call) {
    const Account *a = call->accounts;
    if (call->data_len) return INVALID_INSTRUCTION_DATA;
    Escrow *escrow;
    u64 error = load(call, 6, &escrow);
    if (error) return error;
    if (!same_key(a[AUTHORITY].key, &escrow->coordinator) && !same_key(a[AUTHORITY].key, &escrow->submitter))
        return E_WRONG_AUTHORITY;
    if (!same_key(a[REST].key, &escrow->submitter)) return E_WRONG_DESTINATION;
    if (escrow->status != ENDED || vault_balance(a + VAULT)) return E_NOT_EMPTY;
    EscrowSigner signer;
    error = close_vault(call, sign_as(&signer, escrow));
    if (error) return error;
    u64 keep;
    error = rent_minimum(sizeof(Escrow), &keep);
    if (error) return error;
    escrow->status = CLOSED;
    escrow->used = 0;
    escrow->capacity = 0;
    shrink_data(a + STATE, sizeof(Escrow));
    *a[REST].lamports += *a[STATE].lamports - keep;
    *a[STATE].lamports = keep;
    log_event("CLOS", a + STATE, &escrow->deposited, 24);
    return 0;
}
