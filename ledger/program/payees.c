/* Whom an escrow may pay: a list that only grows, kept as the peaks of its Merkle tree, and a table of those of the
 * list who can be paid. The submitter begins the list; every later payee is told as an event. */
#include "market.h"

typedef struct { u32 index, slot; Pubkey account; } Admission;
enum { NO_SLOT = 0xffffffff };

static NOINLINE u64 make_entry(Escrow *escrow, const u8 *account, u32 *slot) {
    if (escrow->used == escrow->capacity) return E_PAYEES_FULL;
    *slot = escrow->used;
    Payee *entry = escrow->payees + escrow->used;
    copy_key(&entry->account, account);
    entry->paid = 0;
    escrow->used++;
    return 0;
}

static NOINLINE u64 admit(const Call *call, Escrow *escrow, const u8 *account, int enrol) {
    Admission event;
    event.index = escrow->count;
    event.slot = NO_SLOT;
    copy_key(&event.account, account);
    if (enrol) {
        if (entry_of(escrow, MAX_TABLE, account)) return 0;
        u64 error = make_entry(escrow, account, &event.slot);
        if (error) return error;
    }
    u64 error = append_leaf(escrow, account);
    if (error) return error;
    log_event("ADMT", call->accounts + STATE, &event, sizeof event);
    return 0;
}

/* The submitter, or the coordinator to whom it consented. Once that one has accepted, the room that it counted on is not
 * for others to fill. */
static int may_admit(const Escrow *escrow, const Pubkey *who) {
    int consented = escrow->consent & CONSENT_ADMIT;
    if (same_key(who, &escrow->coordinator) && consented) return 1;
    return same_key(who, &escrow->submitter) && !(consented && (escrow->consent & ACCEPTED));
}

/* [submitter or coordinator s, escrow w]; enrol u8, token accounts[32] ..
 * With enrol each gets its entry at once, and who has one is left out: repeating it changes nothing. */
u64 escrow_admit(const Call *call) {
    const Account *a = call->accounts;
    if (call->data_len < 33 || (call->data_len - 1) % 32 || call->data[0] > 1) return INVALID_INSTRUCTION_DATA;
    Escrow *escrow;
    u64 error = find_escrow(call, 2, &escrow);
    if (error) return error;
    if (!may_admit(escrow, a[AUTHORITY].key)) return E_WRONG_AUTHORITY;
    for (u64 at = 1; at < call->data_len; at += 32) {
        error = admit(call, escrow, call->data + at, call->data[0]);
        if (error) return error;
    }
    return 0;
}

/* [anyone s, escrow w]; token account[32], proof: that it is in the list */
u64 escrow_enrol(const Call *call) {
    if (call->data_len < 40) return INVALID_INSTRUCTION_DATA;
    Escrow *escrow;
    u64 error = find_escrow(call, 2, &escrow);
    if (error) return error;
    Pubkey root, digest;
    list_root(escrow, &root);
    hash_leaf(call->data, 32, &digest);
    error = check_proof(&root, &digest, call->data + 32, call->data_len - 32);
    if (error) return error;
    if (entry_of(escrow, MAX_TABLE, call->data)) return 0;
    Admission event;
    event.index = read_u32(call->data + 32);
    copy_key(&event.account, call->data);
    error = make_entry(escrow, call->data, &event.slot);
    if (error) return error;
    log_event("ENRL", call->accounts + STATE, &event, sizeof event);
    return 0;
}

/* [payer s w, escrow w, system]; more u16
 * Adds empty entries to the table. The close gives back what the coordinator paid for them; what others pay is the
 * submitter's, as what was there before. */
u64 escrow_grow(const Call *call) {
    const Account *a = call->accounts;
    if (call->data_len != 2) return INVALID_INSTRUCTION_DATA;
    Escrow *escrow;
    u64 error = find_escrow(call, 3, &escrow), more = read_u16(call->data);
    if (error) return error;
    u64 capacity = escrow->capacity + more, space = sizeof(Escrow) + capacity * sizeof(Payee);
    if (more < 1 || more > MAX_GROWTH || capacity > MAX_TABLE) return E_BAD_TERMS;
    u64 before, after, held = *a[STATE].lamports;
    error = rent_minimum(sizeof(Escrow) + escrow->capacity * sizeof(Payee), &before);
    if (error) return error;
    error = rent_minimum(space, &after);
    if (error) return error;
    error = fund_state(call, space);
    if (error) return error;
    if (same_key(a[AUTHORITY].key, &escrow->coordinator) && held < after)
        escrow->lent += (u16)((after - held) / ((after - before) / more));
    resize_data(a + STATE, space);
    escrow->capacity = (u16)capacity;
    log_event("GROW", a + STATE, &escrow->capacity, 2);
    return 0;
}
