/* What the coordinator has promised, anybody can have paid: a Merkle root of cumulative earnings, and a proof. */
#include "market.h"

enum { ORDER = 10, AT_PROOF = 10 }; /* slot u16, cumulative u64 */

/* [coordinator s, escrow w, vault, mint, token]; root[32] total u64 period u64
 * The sum never falls and never passes what the escrow can pay, so that what is promised is covered. */
u64 escrow_commit(const Call *call) {
    if (call->data_len != 48) return INVALID_INSTRUCTION_DATA;
    Escrow *escrow;
    u64 error = load_escrow(call, 5, &escrow);
    if (error) return error;
    if (!same_key(call->accounts[AUTHORITY].key, &escrow->coordinator)) return E_WRONG_AUTHORITY;
    if (escrow->status != OPEN) return E_ENDED;
    u64 total = read_u64(call->data + 32), period = read_u64(call->data + 40);
    if (period <= escrow->period) return E_STALE;
    if (total < escrow->committed) return E_BAD_TERMS;
    if (total > escrow->cap) return E_PAY_CAP;
    if (total > escrow->deposited - escrow->refunded) return E_INSUFFICIENT;
    copy_key(&escrow->earnings, call->data);
    escrow->committed = total;
    escrow->period = period;
    log_event("CMIT", call->accounts + STATE, call->data, 48);
    return 0;
}

/* [anyone s, escrow w, vault w, mint, token, payee token account w]; slot u16 cumulative u64, proof */
u64 escrow_claim(const Call *call) {
    if (call->data_len < AT_PROOF + 8) return INVALID_INSTRUCTION_DATA;
    Escrow *escrow;
    u64 error = load_escrow(call, 6, &escrow);
    if (error) return error;
    if (!can_receive(call, call->accounts + REST)) return E_WRONG_DESTINATION;
    u8 leaf[40];
    copy_key(leaf, call->accounts[REST].key);
    __builtin_memcpy(leaf + 32, call->data + 2, 8);
    Pubkey digest;
    hash_leaf(leaf, sizeof leaf, &digest);
    error = check_proof(&escrow->earnings, &digest, call->data + AT_PROOF, call->data_len - AT_PROOF);
    if (error) return error;
    return pay(call, escrow, call->data, 1);
}
