/* Layouts, error numbers and shared helpers of the market program.
 * ledger/program/interface.py holds the same numbers for Python; a test compares the two. */
#pragma once
#include "solana.h"

/* Custom error numbers. */
enum {
    E_NOT_OURS = 1,          /* state account missing, of another program or of another kind */
    E_WRONG_AUTHORITY = 2,   /* the signer is not the one whom this state names */
    E_WRONG_ADDRESS = 3,     /* a passed account is not at its canonical address */
    E_WRONG_VAULT = 4,       /* not the vault that this state recorded, or not a clean token account */
    E_WRONG_MINT = 5,        /* not the mint that this state recorded */
    E_WRONG_PROGRAM = 6,     /* a passed program is not the one expected */
    E_WRONG_DESTINATION = 7, /* the money would go to somebody whom the rule does not allow */
    E_ALREADY_OPEN = 8,      /* this state exists (or existed) already */
    E_CLOSED = 9,            /* the escrow was closed */
    E_ENDED = 10,            /* the escrow was refunded: no deposits any more */
    E_TOO_EARLY = 11,        /* the deadline or the cool-down has not passed */
    E_DEADLINE_PASSED = 12,  /* the deadline lies in the past */
    E_INSUFFICIENT = 13,     /* more than the vault holds */
    E_PAYEES_FULL = 14,      /* more payees than the escrow was opened for */
    E_OVERFLOW = 15,         /* a total would not fit 64 bits */
    E_ZERO_AMOUNT = 16,      /* nothing to move */
    E_SLASH_CAP = 17,        /* above the share of the stake that one window allows */
    E_NOT_EMPTY = 18,        /* close before everything was refunded */
    E_NO_REQUEST = 19,       /* withdraw without a request */
    E_BAD_TERMS = 20,        /* a market term out of its bounds */
    E_RENT = 21,             /* the cluster's rent parameters are of no kind known here */
};

enum { TAG_ESCROW = 1, TAG_STAKE = 2, TAG_MARKET = 3 };
enum { OPEN = 1, ENDED = 2, CLOSED = 3 };

#define MAX_PAYEES 250 /* (10240 - header) / 40: what one instruction may allocate */
#define MAX_COOLDOWN (90LL * 86400)
#define MAX_WINDOW (30LL * 86400)
#define REASONS 16 /* a stake remembers this many slashes, so that none is applied twice */

typedef struct { Pubkey account; u64 paid; } Payee;

typedef struct {
    u8 tag, bump, status, version;
    u16 capacity, used;
    i64 deadline;
    u64 deposited, paid, refunded;
    Pubkey submitter, coordinator, mint, vault, job;
    Payee payees[];
} Escrow;

typedef struct {
    u8 tag, bump, version, pad;
    u16 slash_bps, reason_next;
    i64 cooldown, window, window_start, unlock_at;
    u64 window_base, window_slashed, requested;
    u64 deposited, slashed, withdrawn;
    Pubkey node, coordinator, mint, vault, treasury;
    Pubkey reasons[REASONS];
} Stake;

typedef struct {
    u8 tag, bump, version, pad;
    u16 slash_bps, pad2;
    i64 cooldown, window;
    Pubkey mint, treasury;
} Market;

/* One call: the accounts in the order that the instruction documents, its data without the first byte. */
typedef struct {
    const Account *accounts;
    u64 count;
    const u8 *data;
    u64 data_len;
    const Pubkey *program;
} Call;

/* The five accounts with which every instruction on an existing escrow or stake begins. */
enum { AUTHORITY = 0, STATE = 1, VAULT = 2, MINT = 3, TOKEN = 4, REST = 5 };

/* token.c */
int is_token_program(const Pubkey *key);
u64 check_fresh_vault(const Account *vault, const Account *mint, const Account *owner);
u64 vault_balance(const Account *vault);
int token_account_belongs_to(const Account *account, const Pubkey *owner);
u64 transfer_tokens(const Call *call, u64 from, u64 to, u64 amount, const SignerSeeds *owner_seeds);
u64 close_vault(const Call *call, const SignerSeeds *owner_seeds);

/* state.c */
u64 create_state(const Call *call, u64 space, const Slice *seeds, u64 seed_count, u8 *bump);
u64 rent_minimum(u64 space, u64 *lamports);
u64 now(i64 *seconds);
u64 add(u64 *total, u64 amount);
void shrink_data(const Account *account, u64 len);
void log_event(const char *kind, const Account *state, const void *payload, u64 len);

/* escrow.c, stake.c, terms.c */
u64 escrow_open(const Call *);
u64 escrow_deposit(const Call *);
u64 escrow_settle(const Call *);
u64 escrow_refund(const Call *);
u64 escrow_close(const Call *);
u64 stake_open(const Call *);
u64 stake_deposit(const Call *);
u64 stake_slash(const Call *);
u64 stake_request(const Call *);
u64 stake_withdraw(const Call *);
u64 market_configure(const Call *);
