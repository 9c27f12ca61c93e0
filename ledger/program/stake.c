/* A node's stake: its own money behind its word. The coordinator whom the node chose may slash a capped
 * share into the treasury; the rest comes back after a cool-down. deposited = slashed + withdrawn + vault. */
#include "market.h"

static const u8 SEED[5] = {'s', 't', 'a', 'k', 'e'};

typedef struct { Slice seeds[3]; SignerSeeds signer; } StakeSigner;

INLINE const SignerSeeds *sign_as(StakeSigner *s, const Stake *stake) {
    s->seeds[0] = (Slice){SEED, sizeof SEED};
    s->seeds[1] = (Slice){&stake->node, 32};
    s->seeds[2] = (Slice){&stake->bump, 1};
    s->signer = (SignerSeeds){s->seeds, 3};
    return &s->signer;
}

static NOINLINE u64 load(const Call *call, u64 accounts, Stake **out) {
    const Account *a = call->accounts;
    if (call->count < accounts) return INVALID_ARGUMENT;
    if (!a[AUTHORITY].is_signer) return MISSING_SIGNATURE;
    if (!same_key(a[STATE].owner, call->program) || a[STATE].data_len != sizeof(Stake)) return E_NOT_OURS;
    Stake *stake = (Stake *)a[STATE].data;
    if (stake->tag != TAG_STAKE || stake->version != VERSION) return E_NOT_OURS;
    u64 error = check_money(call, &stake->vault, &stake->mint);
    if (error) return error;
    u64 held = stake->deposited - stake->slashed - stake->withdrawn;
    *out = stake;
    return add(&stake->deposited, vault_balance(a + VAULT) - held);
}

/* [node s w, stake w, vault, mint, system, market]; coordinator[32]
 * The market's terms are copied: a later change of terms does not reach a stake that stands. */
u64 stake_open(const Call *call) {
    const Account *a = call->accounts;
    if (call->data_len != 32) return INVALID_INSTRUCTION_DATA;
    if (call->count < 6) return INVALID_ARGUMENT;
    if (!a[AUTHORITY].is_signer) return MISSING_SIGNATURE;
    const Market *market;
    i64 time;
    u64 error = load_terms(call, REST, &market);
    if (error) return error;
    error = now(&time);
    if (error) return error;

    u8 bump;
    Slice seeds[3] = {{SEED, sizeof SEED}, {a[AUTHORITY].key, 32}, {&bump, 1}};
    error = create_state(call, sizeof(Stake), seeds, 2, &bump);
    if (error) return error;
    error = check_fresh_vault(a + VAULT, a + MINT, a + STATE);
    if (error) return error;

    Stake *stake = (Stake *)a[STATE].data;
    stake->tag = TAG_STAKE;
    stake->bump = bump;
    stake->version = VERSION;
    stake->slash_bps = market->slash_bps;
    stake->cooldown = market->cooldown;
    stake->window = market->window;
    stake->challenger_bps = market->challenger_bps;
    stake->opened_at = time;
    stake->deposited = vault_balance(a + VAULT);
    copy_key(&stake->node, a[AUTHORITY].key);
    copy_key(&stake->coordinator, call->data);
    copy_key(&stake->mint, a[MINT].key);
    copy_key(&stake->vault, a[VAULT].key);
    copy_key(&stake->treasury, &market->treasury);
    log_event("STAK", a + STATE, call->data, 32);
    return 0;
}

/* [depositor s, stake w, vault w, mint, token, source w]; amount u64 */
u64 stake_deposit(const Call *call) {
    if (call->data_len != 8) return INVALID_INSTRUCTION_DATA;
    Stake *stake;
    u64 error = load(call, 6, &stake), amount = read_u64(call->data);
    if (error) return error;
    if (!amount) return E_ZERO_AMOUNT;
    error = transfer_tokens(call, REST, VAULT, amount, 0);
    if (error) return error;
    error = add(&stake->deposited, amount);
    if (error) return error;
    log_event("BOND", call->accounts + STATE, &amount, 8);
    return 0;
}

static NOINLINE int slashed_before(const Stake *stake, const u8 *reason) {
    for (u64 i = 0; i < REASONS; i++)
        if (same_bytes(stake->reasons[i].bytes, reason)) return 1;
    return 0;
}

/* What may still be slashed in this window: a share of the most that the stake was since the window began, as far as
 * slashes saw it. What was added counts as well, or a slash of a small stake would cover a large one for a window; what
 * was taken out does not lower it. */
static NOINLINE u64 left_of_window(Stake *stake, u64 balance, i64 time) {
    if (time >= stake->window_start + stake->window) {
        stake->window_start = time;
        stake->window_base = balance;
        stake->window_slashed = 0;
    }
    u64 whole = balance + stake->window_slashed; /* cannot overflow: never above deposited */
    if (whole > stake->window_base) stake->window_base = whole;
    u64 cap = share_of(stake->window_base, stake->slash_bps);
    return cap > stake->window_slashed ? cap - stake->window_slashed : 0;
}

/* Never to the coordinator, lest it earn from what it judges; and nobody challenges itself. */
static NOINLINE int may_share(const Stake *stake, const Account *challenger) {
    return is_token_account(challenger) && !same_key(challenger->key, &stake->vault) &&
           !token_account_belongs_to(challenger, &stake->coordinator) &&
           !token_account_belongs_to(challenger, &stake->node);
}

/* Takes the amount out of the vault: the challenger's part to the account behind the treasury's, if there is one. */
static NOINLINE u64 take(const Call *call, const Stake *stake, u64 amount, u64 part) {
    StakeSigner signer;
    const SignerSeeds *seeds = sign_as(&signer, stake);
    u64 error = part ? transfer_tokens(call, VAULT, REST + 1, part, seeds) : 0;
    if (error || part == amount) return error;
    return transfer_tokens(call, VAULT, REST, amount - part, seeds);
}

static NOINLINE u64 check_slash(const Call *call, Stake *stake, u64 amount, int shared) {
    const Account *a = call->accounts;
    i64 time;
    u64 error = now(&time), balance = vault_balance(a + VAULT);
    if (error) return error;
    if (token_account_belongs_to(a + REST, &stake->coordinator)) return E_WRONG_DESTINATION;
    if (shared && !may_share(stake, a + REST + 1)) return E_WRONG_DESTINATION;
    if (amount > left_of_window(stake, balance, time)) return E_SLASH_CAP;
    return amount > balance ? E_INSUFFICIENT : 0;
}

/* [coordinator s, stake w, vault w, mint, token, treasury w [, challenger's token account w]]; amount u64 reason[32]
 * A reason that was slashed already moves nothing: repeating a slash is harmless. */
u64 stake_slash(const Call *call) {
    const Account *a = call->accounts;
    if (call->data_len != 40) return INVALID_INSTRUCTION_DATA;
    Stake *stake;
    u64 error = load(call, 6, &stake), amount = read_u64(call->data);
    if (error) return error;
    const u8 *reason = call->data + 8;
    if (!same_key(a[AUTHORITY].key, &stake->coordinator)) return E_WRONG_AUTHORITY;
    if (!same_key(a[REST].key, &stake->treasury)) return E_WRONG_DESTINATION;
    if (!amount) return E_ZERO_AMOUNT;
    if (is_zero(reason)) return INVALID_INSTRUCTION_DATA; /* an empty slot is all zero, so no reason may be */
    if (slashed_before(stake, reason)) return 0;
    int shared = call->count > REST + 1;
    error = check_slash(call, stake, amount, shared);
    if (error) return error;
    struct { u64 amount; Pubkey reason; u64 part; Pubkey challenger; } event;
    __builtin_memset(&event, 0, sizeof event);
    event.amount = amount;
    copy_key(&event.reason, reason);
    if (shared) {
        event.part = share_of(amount, stake->challenger_bps);
        copy_key(&event.challenger, a[REST + 1].key);
    }
    error = take(call, stake, amount, event.part);
    if (error) return error;
    stake->slashed += amount; /* cannot overflow: never above deposited */
    stake->window_slashed += amount;
    copy_key(&stake->reasons[stake->reason_next], reason);
    stake->reason_next = (u16)((stake->reason_next + 1) % REASONS);
    log_event("SLSH", a + STATE, &event, sizeof event);
    return 0;
}

/* [node s, stake w, vault, mint, token]; amount u64
 * Starts the cool-down for this amount; zero takes a request back. With EVERYTHING a stake can be emptied and closed in
 * one transaction, whatever others add to it meanwhile. */
u64 stake_request(const Call *call) {
    const Account *a = call->accounts;
    if (call->data_len != 8) return INVALID_INSTRUCTION_DATA;
    Stake *stake;
    u64 error = load(call, 5, &stake), amount = read_u64(call->data);
    if (error) return error;
    if (!same_key(a[AUTHORITY].key, &stake->node)) return E_WRONG_AUTHORITY;
    if (amount > vault_balance(a + VAULT) && amount != EVERYTHING) return E_INSUFFICIENT;
    i64 time;
    error = now(&time);
    if (error) return error;
    stake->requested = amount;
    stake->unlock_at = amount ? time + stake->cooldown : 0;
    log_event("WREQ", a + STATE, call->data, 8);
    return 0;
}

/* Whether disputes keep what was asked for and was due at that time. A verdict takes no longer than the hold, so by then
 * every accusation from before the cool-down's end is decided or over; later ones keep nothing, or nonsense could keep a
 * stake for ever. */
static NOINLINE int is_held(const Stake *stake, i64 due, i64 time) {
    return stake->disputes && time < due + (stake->hold ? (i64)stake->hold : MAX_COOLDOWN);
}

/* [node s, stake w, vault w, mint, token, destination w]
 * Pays what was requested, or what slashing has left of it, to a token account of the node. */
u64 stake_withdraw(const Call *call) {
    const Account *a = call->accounts;
    if (call->data_len) return INVALID_INSTRUCTION_DATA;
    Stake *stake;
    u64 error = load(call, 6, &stake);
    if (error) return error;
    if (!same_key(a[AUTHORITY].key, &stake->node)) return E_WRONG_AUTHORITY;
    if (!stake->requested) return E_NO_REQUEST;
    i64 time;
    error = now(&time);
    if (error) return error;
    if (is_held(stake, stake->unlock_at, time)) return E_DISPUTED;
    if (time < stake->unlock_at) return E_TOO_EARLY;
    if (!token_account_belongs_to(a + REST, &stake->node)) return E_WRONG_DESTINATION;
    u64 balance = vault_balance(a + VAULT), amount = stake->requested < balance ? stake->requested : balance;
    if (!amount) return E_INSUFFICIENT;
    StakeSigner signer;
    error = transfer_tokens(call, VAULT, REST, amount, sign_as(&signer, stake));
    if (error) return error;
    stake->withdrawn += amount;
    stake->requested = 0;
    stake->unlock_at = 0;
    log_event("WDRW", a + STATE, &amount, 8);
    return 0;
}

/* [node s, stake w, vault, mint, token]; coordinator[32]
 * While the stake is empty and undisputed the change is immediate. Else it is asked for now, and done when asked for again
 * after the cool-down: the old coordinator judges what was done under it. */
u64 stake_move(const Call *call) {
    const Account *a = call->accounts;
    if (call->data_len != 32) return INVALID_INSTRUCTION_DATA;
    Stake *stake;
    i64 time;
    u64 error = load(call, 5, &stake);
    if (error) return error;
    if (!same_key(a[AUTHORITY].key, &stake->node)) return E_WRONG_AUTHORITY;
    if (is_zero(call->data)) return E_BAD_TERMS;
    error = now(&time);
    if (error) return error;
    int asked = stake->move_at && same_bytes(stake->next_coordinator.bytes, call->data);
    if (asked && is_held(stake, stake->move_at, time)) return E_DISPUTED;
    struct { Pubkey coordinator; i64 move_at; } event;
    copy_key(&event.coordinator, call->data);
    event.move_at = 0;
    int free = !vault_balance(a + VAULT) && !stake->disputes;
    if (free || (asked && time >= stake->move_at)) {
        copy_key(&stake->coordinator, call->data);
    } else {
        if (asked) return E_TOO_EARLY;
        copy_key(&stake->next_coordinator, call->data);
        event.move_at = time + stake->cooldown; /* 0 stands for done */
    }
    stake->move_at = event.move_at;
    log_event("MOVE", a + STATE, &event, sizeof event);
    return 0;
}

/* [node s w, stake w, vault w, mint, token]
 * Gives the rent of an empty stake back. Not while its last window lasts, whose reasons it must remember. */
u64 stake_close(const Call *call) {
    const Account *a = call->accounts;
    if (call->data_len) return INVALID_INSTRUCTION_DATA;
    Stake *stake;
    i64 time;
    u64 error = load(call, 5, &stake);
    if (error) return error;
    if (!same_key(a[AUTHORITY].key, &stake->node)) return E_WRONG_AUTHORITY;
    if (vault_balance(a + VAULT)) return E_NOT_EMPTY;
    if (stake->disputes) return E_DISPUTED;
    error = now(&time);
    if (error) return error;
    if (time < stake->window_start + stake->window) return E_TOO_EARLY;
    StakeSigner signer;
    error = close_vault(call, AUTHORITY, sign_as(&signer, stake));
    if (error) return error;
    log_event("SCLS", a + STATE, &stake->deposited, 24);
    destroy_state(a + STATE, a + AUTHORITY, sizeof(Stake));
    return 0;
}
