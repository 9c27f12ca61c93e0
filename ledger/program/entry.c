/* The door of the program: parses the input once, then one switch. */
#include "market.h"

#define MAX_ACCOUNTS 64 /* the locks of one transaction; 64 * 56 bytes fit the frame */

/* Reads accounts and data out of the loader's aligned input; false when there are too many accounts. */
static NOINLINE int parse(u8 *in, Account *accounts, Call *call) {
    u64 count = *(u64 *)in;
    in += 8;
    if (count > MAX_ACCOUNTS) return 0;
    for (u64 i = 0; i < count; i++) {
        Account *a = accounts + i;
        if (in[0] != 0xff) { /* the same account again: its index */
            *a = accounts[in[0]];
            in += 8;
            continue;
        }
        a->is_signer = in[1];
        a->is_writable = in[2];
        a->executable = in[3];
        a->key = (const Pubkey *)(in + 8);
        a->owner = (const Pubkey *)(in + 40);
        a->lamports = (u64 *)(in + 72);
        a->data_len = *(u64 *)(in + 80);
        a->data = in + 88;
        in += 88 + ((a->data_len + MAX_DATA_GROWTH + 7) & ~7ULL);
        a->rent_epoch = *(u64 *)in;
        in += 8;
    }
    call->accounts = accounts;
    call->count = count;
    call->data_len = *(u64 *)in;
    call->data = in + 8;
    call->program = (const Pubkey *)(in + 8 + call->data_len);
    return 1;
}

static NOINLINE u64 dispatch(u8 operation, const Call *call) {
    switch (operation) {
    case 0: return market_configure(call);
    case 1: return escrow_open(call);
    case 2: return escrow_deposit(call);
    case 3: return escrow_settle(call);
    case 4: return escrow_refund(call);
    case 5: return escrow_close(call);
    case 6: return stake_open(call);
    case 7: return stake_deposit(call);
    case 8: return stake_slash(call);
    case 9: return stake_request(call);
    case 10: return stake_withdraw(call);
    case 11: return escrow_admit(call);
    case 12: return escrow_enrol(call);
    case 13: return escrow_grow(call);
    case 14: return escrow_commit(call);
    case 15: return escrow_claim(call);
    case 16: return escrow_extend(call);
    case 17: return stake_move(call);
    case 18: return stake_close(call);
    case 19: return dispute_open(call);
    case 20: return dispute_verdict(call);
    case 21: return dispute_expire(call);
    case 22: return dispute_close(call);
    case 23: return escrow_accept(call);
    default: return INVALID_INSTRUCTION_DATA;
    }
}

u64 entrypoint(u8 *input) {
    Account accounts[MAX_ACCOUNTS];
    Call call;
    if (!parse(input, accounts, &call)) return INVALID_ARGUMENT;
    if (call.data_len < 1) return INVALID_INSTRUCTION_DATA;
    u8 operation = call.data[0];
    call.data += 1;
    call.data_len -= 1;
    return dispatch(operation, &call);
}
