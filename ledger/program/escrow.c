/* A job's money: deposited by the submitter, paid out by the coordinator in cumulative amounts, the rest
 * refunded. At any time deposited = paid + refunded + what the vault holds, and paid <= cap. */
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

/* The escrow among the call's accounts, for what moves no money. */
u64 find_escrow(const Call *call, u64 accounts, Escrow **out) {
    const Account *a = call->accounts;
    if (call->count < accounts) return INVALID_ARGUMENT;
    if (!a[AUTHORITY].is_signer) return MISSING_SIGNATURE;
    if (!same_key(a[STATE].owner, call->program) || a[STATE].data_len < TOMBSTONE) return E_NOT_OURS;
    Escrow *escrow = (Escrow *)a[STATE].data;
    if (escrow->tag != TAG_ESCROW || escrow->version != VERSION) return E_NOT_OURS;
    if (escrow->status == CLOSED) return E_CLOSED;
    if (a[STATE].data_len < sizeof(Escrow)) return E_NOT_OURS;
    *out = escrow;
    return 0;
}

/* Checks the common five accounts against the escrow and counts tokens that somebody sent straight to the
 * vault as deposited, so that the totals always agree with the vault. */
u64 load_escrow(const Call *call, u64 accounts, Escrow **out) {
    Escrow *escrow;
    u64 error = find_escrow(call, accounts, &escrow);
    if (error) return error;
    error = check_money(call, &escrow->vault, &escrow->mint);
    if (error) return error;
    u64 held = escrow->deposited - escrow->paid - escrow->refunded;
    *out = escrow;
    return add(&escrow->deposited, vault_balance(call->accounts + VAULT) - held);
}

enum { AT_COORDINATOR = 32, AT_DEADLINE = 64, AT_CAP = 72, AT_CAPACITY = 80, AT_CONSENT = 82, AT_COUNT = 84, AT_PEAKS = 88 };

/* The list with which the submitter begins: its length, and its peaks from the largest to the smallest. */
static NOINLINE u64 check_opening(const Call *call) {
    if (call->data_len < AT_PEAKS) return INVALID_INSTRUCTION_DATA;
    u64 count = read_u32(call->data + AT_COUNT), capacity = read_u16(call->data + AT_CAPACITY), peaks = 0;
    if (count > MAX_TABLE || capacity < 1 || capacity > MAX_PAYEES) return E_BAD_TERMS;
    if (!read_u64(call->data + AT_CAP) || read_u16(call->data + AT_CONSENT) > (CONSENT_ADMIT | CONSENT_END))
        return E_BAD_TERMS;
    for (u64 left = count; left; left &= left - 1) peaks++;
    return call->data_len == AT_PEAKS + peaks * 32 ? 0 : INVALID_INSTRUCTION_DATA;
}

static NOINLINE void begin_list(Escrow *escrow, u32 count, const u8 *peaks) {
    escrow->count = count;
    for (u64 level = FRONTIER; level-- > 0;) {
        if (!((u64)count >> level & 1)) continue;
        copy_key(&escrow->frontier[level], peaks);
        peaks += 32;
    }
}

/* [submitter s w, escrow w, vault, mint, system]
 * job[32] coordinator[32] deadline i64 cap u64 capacity u16 consent u16 count u32 peaks[32] .. */
u64 escrow_open(const Call *call) {
    const Account *a = call->accounts;
    const u8 *data = call->data;
    if (call->count < 5) return INVALID_ARGUMENT;
    if (!a[AUTHORITY].is_signer) return MISSING_SIGNATURE;
    u64 error = check_opening(call), capacity = read_u16(data + AT_CAPACITY);
    if (error) return error;
    i64 time, deadline = (i64)read_u64(data + AT_DEADLINE);
    error = now(&time);
    if (error) return error;
    if (deadline <= time) return E_DEADLINE_PASSED;

    u8 bump;
    Slice seeds[4] = {{SEED, sizeof SEED}, {a[AUTHORITY].key, 32}, {data, 32}, {&bump, 1}};
    error = create_state(call, sizeof(Escrow) + capacity * sizeof(Payee), seeds, 3, &bump);
    if (error) return error;
    error = check_fresh_vault(a + VAULT, a + MINT, a + STATE);
    if (error) return error;

    Escrow *escrow = (Escrow *)a[STATE].data;
    escrow->tag = TAG_ESCROW;
    escrow->bump = bump;
    escrow->status = OPEN;
    escrow->version = VERSION;
    escrow->capacity = (u16)capacity;
    escrow->deadline = deadline;
    escrow->cap = read_u64(data + AT_CAP);
    escrow->consent = read_u16(data + AT_CONSENT);
    escrow->deposited = vault_balance(a + VAULT);
    copy_key(&escrow->submitter, a[AUTHORITY].key);
    copy_key(&escrow->job, data);
    copy_key(&escrow->coordinator, data + AT_COORDINATOR);
    copy_key(&escrow->mint, a[MINT].key);
    copy_key(&escrow->vault, a[VAULT].key);
    begin_list(escrow, read_u32(data + AT_COUNT), data + AT_PEAKS);
    log_event("OPEN", a + STATE, data + AT_COORDINATOR, call->data_len - AT_COORDINATOR);
    return 0;
}

enum { ASKED_DEADLINE = 0, ASKED_CAP = 8, ASKED_AMOUNT = 16, ASKED_CAPACITY = 24, ASKED_CONSENT = 26, ASKED = 28 };

/* Whether an escrow is at least what its coordinator asked for. */
static NOINLINE u64 compare(const Escrow *escrow, const u8 *asked) {
    if (escrow->deadline < (i64)read_u64(asked + ASKED_DEADLINE) || escrow->cap < read_u64(asked + ASKED_CAP) ||
        escrow->capacity < read_u16(asked + ASKED_CAPACITY) ||
        (escrow->consent & ~ACCEPTED) != read_u16(asked + ASKED_CONSENT))
        return E_BAD_TERMS;
    if (escrow->deposited < read_u64(asked + ASKED_AMOUNT)) return E_INSUFFICIENT;
    if (escrow->consent & ACCEPTED) return 0;
    return escrow->count || escrow->used || escrow->paid || escrow->refunded || escrow->committed ? E_USED : 0;
}

/* [coordinator s, escrow w, vault, mint, token]; deadline i64 cap u64 amount u64 capacity u16 consent u16
 * The coordinator takes the job on, if what it asked for is what stands here: no earlier deadline, no lower cap, no less
 * money and room, just these consents, and nobody listed yet. None of it gets worse afterwards, and where the
 * coordinator may admit payees, nobody else does from now on. */
u64 escrow_accept(const Call *call) {
    if (call->data_len != ASKED) return INVALID_INSTRUCTION_DATA;
    Escrow *escrow;
    i64 time;
    u64 error = load_escrow(call, 5, &escrow);
    if (error) return error;
    if (!same_key(call->accounts[AUTHORITY].key, &escrow->coordinator)) return E_WRONG_AUTHORITY;
    if (escrow->status != OPEN) return E_ENDED;
    error = now(&time);
    if (error) return error;
    if (time >= escrow->deadline) return E_DEADLINE_PASSED;
    error = compare(escrow, call->data);
    if (error) return error;
    escrow->consent |= ACCEPTED;
    log_event("ACPT", call->accounts + STATE, call->data, ASKED);
    return 0;
}

/* [submitter s, escrow w]; cap u64 deadline i64
 * Payees and coordinator count on both, so neither ever goes down. */
u64 escrow_extend(const Call *call) {
    if (call->data_len != 16) return INVALID_INSTRUCTION_DATA;
    Escrow *escrow;
    u64 error = find_escrow(call, 2, &escrow), cap = read_u64(call->data);
    if (error) return error;
    i64 deadline = (i64)read_u64(call->data + 8);
    if (!same_key(call->accounts[AUTHORITY].key, &escrow->submitter)) return E_WRONG_AUTHORITY;
    if (escrow->status != OPEN) return E_ENDED;
    if (cap < escrow->cap || deadline < escrow->deadline) return E_BAD_TERMS;
    escrow->cap = cap;
    escrow->deadline = deadline;
    log_event("EXTD", call->accounts + STATE, call->data, 16);
    return 0;
}

/* [depositor s, escrow w, vault w, mint, token, source w]; amount u64 */
u64 escrow_deposit(const Call *call) {
    if (call->data_len != 8) return INVALID_INSTRUCTION_DATA;
    Escrow *escrow;
    u64 error = load_escrow(call, 6, &escrow), amount = read_u64(call->data);
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

/* A token account's entry; slot says where it probably is. */
Payee *entry_of(Escrow *escrow, u64 slot, const u8 *account) {
    u64 used = escrow->used;
    if (slot < used && same_bytes(escrow->payees[slot].account.bytes, account)) return escrow->payees + slot;
    for (u64 i = 0; i < used; i++)
        if (same_bytes(escrow->payees[i].account.bytes, account)) return escrow->payees + i;
    return 0;
}

typedef struct { Pubkey account; u64 amount, cumulative; } Payment;

/* What is due: the payments that move anything, which of the call's accounts each goes to, and their sum. Entries are
 * raised at once, so that a payee who is named twice is paid once. Who cannot be paid is left out, lest one payee that
 * closes its account keep forty-nine others from their money. */
static NOINLINE u64 decide(const Call *call, Escrow *escrow, const u8 *orders, u64 count, Payment *due) {
    u64 sum = 0;
    for (u64 i = 0; i < count; i++, orders += 10) {
        const Account *payee = call->accounts + REST + i;
        if (same_key(payee->key, &escrow->vault)) return E_WRONG_DESTINATION;
        Payee *entry = entry_of(escrow, read_u16(orders), payee->key->bytes);
        if (!entry) return E_NOT_A_PAYEE;
        u64 cumulative = read_u64(orders + 2);
        due[i].amount = 0;
        if (cumulative <= entry->paid || !can_receive(call, payee)) continue;
        copy_key(&due[i].account, payee->key);
        due[i].amount = cumulative - entry->paid;
        due[i].cumulative = cumulative;
        entry->paid = cumulative;
        u64 error = add(&sum, due[i].amount);
        if (error) return error;
    }
    if (sum > escrow->cap - escrow->paid) return E_PAY_CAP;
    if (sum > vault_balance(call->accounts + VAULT)) return E_INSUFFICIENT;
    escrow->paid += sum; /* cannot overflow: never above cap */
    return 0;
}

/* One event for all payments, before they happen: the token program's own lines may fill the log afterwards. */
static NOINLINE void tell(const Call *call, const Payment *due, u64 count) {
    Payment told[MAX_BATCH];
    u64 moved = 0;
    for (u64 i = 0; i < count; i++)
        if (due[i].amount) told[moved++] = due[i];
    if (moved) log_event("PAID", call->accounts + STATE, told, moved * sizeof(Payment));
}

/* Raises payees to their cumulative amounts. An amount at or below what was paid already moves nothing, so a repeated
 * settlement, or an older one that arrives late, is harmless. orders: slot u16 and cumulative u64 for each account
 * behind the common five. */
u64 pay(const Call *call, Escrow *escrow, const u8 *orders, u64 count) {
    Payment due[MAX_BATCH];
    u64 error = decide(call, escrow, orders, count, due);
    if (error) return error;
    tell(call, due, count);
    EscrowSigner signer;
    const SignerSeeds *seeds = sign_as(&signer, escrow);
    for (u64 i = 0; i < count; i++) {
        if (!due[i].amount) continue;
        error = transfer_tokens(call, VAULT, REST + i, due[i].amount, seeds);
        if (error) return error;
    }
    return 0;
}

/* [coordinator s, escrow w, vault w, mint, token, payee token accounts w ..]; slot u16 cumulative u64 a payee */
u64 escrow_settle(const Call *call) {
    Escrow *escrow;
    u64 error = load_escrow(call, 6, &escrow);
    if (error) return error;
    if (!same_key(call->accounts[AUTHORITY].key, &escrow->coordinator)) return E_WRONG_AUTHORITY;
    u64 payees = call->count - REST;
    if (payees > MAX_BATCH || call->data_len != payees * 10) return INVALID_INSTRUCTION_DATA;
    return pay(call, escrow, call->data, payees);
}

/* Whether the signers may refund before the deadline: both together, or the coordinator to whom the submitter
 * consented when it opened the escrow. */
static NOINLINE int agreed(const Call *call, const Escrow *escrow, int by_submitter, int by_coordinator) {
    const Account *second = call->accounts + REST + 1;
    int cosigned = call->count > REST + 1 && second->is_signer;
    if (by_submitter) return cosigned && same_key(second->key, &escrow->coordinator);
    if (!by_coordinator) return 0;
    return (escrow->consent & CONSENT_END) || (cosigned && same_key(second->key, &escrow->submitter));
}

/* What providers were promised and did not get yet; it stays in the escrow until the grace has passed. */
static NOINLINE u64 promised(const Escrow *escrow, i64 time) {
    if (escrow->committed <= escrow->paid || time - CLAIM_GRACE >= escrow->deadline) return 0;
    return escrow->committed - escrow->paid;
}

/* [authority s, escrow w, vault w, mint, token, destination w [, cosigner s]]
 * After the deadline anybody may refund, before it only who agreed() says; always to a token account of the
 * submitter, and never what was promised to providers. */
u64 escrow_refund(const Call *call) {
    const Account *a = call->accounts;
    if (call->data_len) return INVALID_INSTRUCTION_DATA;
    Escrow *escrow;
    i64 time;
    u64 error = load_escrow(call, 6, &escrow);
    if (error) return error;
    error = now(&time);
    if (error) return error;
    int by_coordinator = same_key(a[AUTHORITY].key, &escrow->coordinator);
    int by_submitter = same_key(a[AUTHORITY].key, &escrow->submitter);
    if (time < escrow->deadline && !agreed(call, escrow, by_submitter, by_coordinator))
        return by_submitter || by_coordinator ? E_TOO_EARLY : E_WRONG_AUTHORITY;
    if (!token_account_belongs_to(a + REST, &escrow->submitter)) return E_WRONG_DESTINATION;
    u64 amount = vault_balance(a + VAULT), kept = promised(escrow, time);
    amount = amount > kept ? amount - kept : 0;
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

/* What the coordinator lent for entries of the table, at most what is there. */
static NOINLINE u64 loan(const Escrow *escrow, u64 there, u64 *lamports) {
    u64 with, without, error = rent_minimum(TOMBSTONE + escrow->lent * sizeof(Payee), &with);
    if (error) return error;
    error = rent_minimum(TOMBSTONE, &without);
    *lamports = with - without < there ? with - without : there;
    return error;
}

/* [authority s, escrow w, vault w, mint, token, submitter w [, coordinator w]]
 * Returns the rent of the vault and of the payee table: to the coordinator what it lent, else to the submitter. The
 * header stays as a tombstone with the totals: a job can never be opened, and so never be paid, a second time. */
u64 escrow_close(const Call *call) {
    const Account *a = call->accounts;
    if (call->data_len) return INVALID_INSTRUCTION_DATA;
    Escrow *escrow;
    u64 error = load_escrow(call, 6, &escrow);
    if (error) return error;
    if (!same_key(a[AUTHORITY].key, &escrow->coordinator) && !same_key(a[AUTHORITY].key, &escrow->submitter))
        return E_WRONG_AUTHORITY;
    if (!same_key(a[REST].key, &escrow->submitter)) return E_WRONG_DESTINATION;
    if (escrow->lent && (call->count < REST + 2 || !same_key(a[REST + 1].key, &escrow->coordinator)))
        return E_WRONG_DESTINATION;
    if (escrow->status != ENDED || vault_balance(a + VAULT)) return E_NOT_EMPTY;
    EscrowSigner signer;
    error = close_vault(call, REST, sign_as(&signer, escrow));
    if (error) return error;
    u64 keep, back;
    error = rent_minimum(TOMBSTONE, &keep);
    if (error) return error;
    error = loan(escrow, *a[STATE].lamports - keep, &back);
    if (error) return error;
    escrow->status = CLOSED;
    escrow->used = 0;
    escrow->capacity = 0;
    resize_data(a + STATE, TOMBSTONE);
    *a[REST].lamports += *a[STATE].lamports - keep - back;
    *a[STATE].lamports = keep;
    if (escrow->lent) *a[REST + 1].lamports += back;
    log_event("CLOS", a + STATE, &escrow->deposited, 24);
    return 0;
}
