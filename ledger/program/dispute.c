/* A dispute: somebody puts a bond against a node's audit, the node's coordinator decides with the hash of the
 * evidence. Upheld, the bond returns to the challenger; rejected, it goes to the accused; undecided, it returns. */
#include "market.h"

static const u8 SEED[7] = {'d', 'i', 's', 'p', 'u', 't', 'e'};
enum { TERMS = 5, ACCUSED = 6, STAKED = 7 }; /* the accused's stake stands at the same place in a verdict */

typedef struct { Slice seeds[4]; SignerSeeds signer; } DisputeSigner;

INLINE const SignerSeeds *sign_as(DisputeSigner *s, const Dispute *dispute) {
    s->seeds[0] = (Slice){SEED, sizeof SEED};
    s->seeds[1] = (Slice){&dispute->audit, 32};
    s->seeds[2] = (Slice){&dispute->challenger, 32};
    s->seeds[3] = (Slice){&dispute->bump, 1};
    s->signer = (SignerSeeds){s->seeds, 4};
    return &s->signer;
}

static NOINLINE u64 load(const Call *call, u64 accounts, Dispute **out) {
    const Account *a = call->accounts;
    if (call->count < accounts) return INVALID_ARGUMENT;
    if (!a[AUTHORITY].is_signer) return MISSING_SIGNATURE;
    if (!same_key(a[STATE].owner, call->program) || a[STATE].data_len != sizeof(Dispute)) return E_NOT_OURS;
    Dispute *dispute = (Dispute *)a[STATE].data;
    if (dispute->tag != TAG_DISPUTE || dispute->version != VERSION) return E_NOT_OURS;
    *out = dispute;
    return check_money(call, &dispute->vault, &dispute->mint);
}

/* Who is accused and who judges stand in the accused's stake, which also counts the disputes that wait. */
static NOINLINE u64 load_accused(const Call *call, Stake **out) {
    const Account *a = call->accounts;
    if (!same_key(a[ACCUSED].owner, call->program) || a[ACCUSED].data_len != sizeof(Stake)) return E_NOT_OURS;
    Stake *stake = (Stake *)a[ACCUSED].data;
    if (stake->tag != TAG_STAKE || stake->version != VERSION) return E_NOT_OURS;
    if (!same_key(a[MINT].key, &stake->mint)) return E_WRONG_MINT;
    *out = stake;
    return 0;
}

/* [challenger s w, dispute w, vault, mint, system, terms, accused's stake w, its vault]; audit[32]
 * What the vault holds is the bond. Until the dispute is decided the stake stays where it is, if there is any. */
u64 dispute_open(const Call *call) {
    const Account *a = call->accounts;
    if (call->data_len != 32 || is_zero(call->data)) return INVALID_INSTRUCTION_DATA;
    if (call->count < 8) return INVALID_ARGUMENT;
    if (!a[AUTHORITY].is_signer) return MISSING_SIGNATURE;
    const Market *market;
    Stake *stake;
    i64 time;
    u64 error = load_terms(call, TERMS, &market);
    if (error) return error;
    error = load_accused(call, &stake);
    if (error) return error;
    const Pubkey *challenger = a[AUTHORITY].key;
    if (same_key(challenger, &stake->node) || same_key(challenger, &stake->coordinator)) return E_SELF;
    if (!same_key(a[STAKED].key, &stake->vault)) return E_WRONG_VAULT;
    if (!vault_balance(a + STAKED)) return E_INSUFFICIENT; /* nothing that a dispute could keep, or win */
    if (stake->disputes == MAX_DISPUTES) return E_OVERFLOW;
    error = now(&time);
    if (error) return error;

    u8 bump;
    Slice seeds[4] = {{SEED, sizeof SEED}, {call->data, 32}, {a[AUTHORITY].key, 32}, {&bump, 1}};
    error = create_state(call, sizeof(Dispute), seeds, 3, &bump);
    if (error) return error;
    error = check_fresh_vault(a + VAULT, a + MINT, a + STATE);
    if (error) return error;
    u64 bond = vault_balance(a + VAULT);
    if (!bond || bond < market->bond) return E_BOND;
    u32 hold = (u32)market->verdict_time; /* at most MAX_COOLDOWN */
    if (!stake->disputes || hold > stake->hold) stake->hold = hold;
    stake->disputes++;

    Dispute *dispute = (Dispute *)a[STATE].data;
    dispute->tag = TAG_DISPUTE;
    dispute->bump = bump;
    dispute->status = OPEN;
    dispute->version = VERSION;
    dispute->deadline = time + market->verdict_time;
    dispute->bond = bond;
    copy_key(&dispute->challenger, a[AUTHORITY].key);
    copy_key(&dispute->node, &stake->node);
    copy_key(&dispute->coordinator, &stake->coordinator);
    copy_key(&dispute->mint, a[MINT].key);
    copy_key(&dispute->vault, a[VAULT].key);
    copy_key(&dispute->audit, call->data);
    log_event("DISP", a + STATE, dispute, sizeof(Dispute));
    return 0;
}

/* Pays the whole vault to a token account of the winner, closes the question, and lets the stake go. Where the winner
 * has no account the bond stays for dispute_close: nobody else must pay the rent of one to have a question closed. */
static NOINLINE u64 decide(const Call *call, Dispute *dispute, u8 status, const Pubkey *winner) {
    const Account *a = call->accounts;
    Stake *stake;
    u64 error = load_accused(call, &stake);
    if (error) return error;
    if (!same_key(&stake->node, &dispute->node)) return E_NOT_OURS;
    if (is_token_account(a + REST)) {
        if (!token_account_belongs_to(a + REST, winner)) return E_WRONG_DESTINATION;
        DisputeSigner signer;
        error = transfer_tokens(call, VAULT, REST, vault_balance(a + VAULT), sign_as(&signer, dispute));
        if (error) return error;
    }
    dispute->status = status;
    if (!--stake->disputes) stake->hold = 0;
    return 0;
}

/* [coordinator s, dispute w, vault w, mint, token, winner's token account w, accused's stake w]; upheld u8 evidence[32] */
u64 dispute_verdict(const Call *call) {
    const Account *a = call->accounts;
    if (call->data_len != 33 || call->data[0] > 1 || is_zero(call->data + 1)) return INVALID_INSTRUCTION_DATA;
    Dispute *dispute;
    i64 time;
    u64 error = load(call, 7, &dispute);
    if (error) return error;
    if (!same_key(a[AUTHORITY].key, &dispute->coordinator)) return E_WRONG_AUTHORITY;
    if (dispute->status != OPEN) return E_DECIDED;
    error = now(&time);
    if (error) return error;
    if (time >= dispute->deadline) return E_DEADLINE_PASSED;
    int upheld = call->data[0];
    copy_key(&dispute->evidence, call->data + 1);
    error = decide(call, dispute, upheld ? UPHELD : REJECTED, upheld ? &dispute->challenger : &dispute->node);
    if (error) return error;
    log_event("VERD", a + STATE, dispute, sizeof(Dispute));
    return 0;
}

/* [anyone s, dispute w, vault w, mint, token, challenger's token account w, accused's stake w]
 * The coordinator's silence costs the challenger nothing. */
u64 dispute_expire(const Call *call) {
    if (call->data_len) return INVALID_INSTRUCTION_DATA;
    Dispute *dispute;
    i64 time;
    u64 error = load(call, 7, &dispute);
    if (error) return error;
    if (dispute->status != OPEN) return E_DECIDED;
    error = now(&time);
    if (error) return error;
    if (time < dispute->deadline) return E_TOO_EARLY;
    error = decide(call, dispute, EXPIRED, &dispute->challenger);
    if (error) return error;
    log_event("EXPD", call->accounts + STATE, dispute, sizeof(Dispute));
    return 0;
}

/* [anyone s, dispute w, vault w, mint, token, challenger w, winner's token account w]
 * What is in the vault still, or came there after the verdict, goes to who won; rent to the challenger, who paid it. */
u64 dispute_close(const Call *call) {
    const Account *a = call->accounts;
    if (call->data_len) return INVALID_INSTRUCTION_DATA;
    Dispute *dispute;
    u64 error = load(call, 7, &dispute);
    if (error) return error;
    if (dispute->status == OPEN) return E_NOT_EMPTY;
    if (!same_key(a[REST].key, &dispute->challenger)) return E_WRONG_DESTINATION;
    DisputeSigner signer;
    const SignerSeeds *seeds = sign_as(&signer, dispute);
    u64 left = vault_balance(a + VAULT);
    if (left) {
        const Pubkey *winner = dispute->status == REJECTED ? &dispute->node : &dispute->challenger;
        if (!token_account_belongs_to(a + REST + 1, winner)) return E_WRONG_DESTINATION;
        error = transfer_tokens(call, VAULT, REST + 1, left, seeds);
        if (error) return error;
    }
    error = close_vault(call, REST, seeds);
    if (error) return error;
    log_event("DCLS", a + STATE, dispute, sizeof(Dispute));
    destroy_state(a + STATE, a + REST, sizeof(Dispute));
    return 0;
}
