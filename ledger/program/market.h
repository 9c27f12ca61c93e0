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
    E_ENDED = 10,            /* the escrow was refunded: no deposits and promises any more */
    E_TOO_EARLY = 11,        /* the deadline or the cool-down has not passed */
    E_DEADLINE_PASSED = 12,  /* the deadline lies in the past */
    E_INSUFFICIENT = 13,     /* more than the vault holds */
    E_PAYEES_FULL = 14,      /* no room for another payee in the table or the list */
    E_OVERFLOW = 15,         /* a total would not fit 64 bits */
    E_ZERO_AMOUNT = 16,      /* nothing to move */
    E_SLASH_CAP = 17,        /* above the share of the stake that one window allows */
    E_NOT_EMPTY = 18,        /* close before everything left it */
    E_NO_REQUEST = 19,       /* withdraw without a request */
    E_BAD_TERMS = 20,        /* a market term out of its bounds */
    E_RENT = 21,             /* the cluster's rent parameters are of no kind known here */
    E_NOT_A_PAYEE = 22,      /* no entry in the escrow's table */
    E_BAD_PROOF = 23,        /* the Merkle proof leads to another root */
    E_PAY_CAP = 24,          /* more than the submitter allows to be paid in sum */
    E_STALE = 25,            /* a later period was committed already */
    E_BOND = 26,             /* the bond is smaller than the terms ask for */
    E_DECIDED = 27,          /* the dispute has its verdict, or expired */
    E_SELF = 28,             /* challenger and accused, or challenger and judge, are one */
    E_DISPUTED = 29,         /* the stake stays, with its judge, while a dispute over it waits */
    E_USED = 30,             /* somebody was listed, paid or promised something before the coordinator took the terms */
};

enum { TAG_ESCROW = 1, TAG_STAKE = 2, TAG_MARKET = 3, TAG_DISPUTE = 4 };
enum { OPEN = 1, ENDED = 2, CLOSED = 3 };
enum { UPHELD = 2, REJECTED = 3, EXPIRED = 4 }; /* of a dispute; OPEN before */
enum { CONSENT_ADMIT = 1, CONSENT_END = 2 };    /* what the coordinator may do alone */
#define ACCEPTED 0x8000 /* beside the consents: the coordinator has found its terms here and took the job on */

#define VERSION 2 /* of the layouts */
#define REVISION 1 /* of what the program does with them; the terms name the one that wrote them. 0: before there were any */
#define EVERYTHING 0xffffffffffffffffULL /* asked for as a withdrawal: whatever is there when it is paid */
#define MAX_PAYEES 236 /* (10240 - header) / 40: what one instruction may allocate */
#define MAX_GROWTH 255 /* 10240 / 40, for the same reason */
#define MAX_TABLE 65535 /* slots and leaves are counted in 16 bits */
#define MAX_BATCH 50 /* 50 payments of 48 bytes fit the frame, and their accounts the 64 locks of a transaction */
#define FRONTIER 16 /* one peak a bit of the list's length */
#define MAX_COOLDOWN (90LL * 86400)
#define MAX_WINDOW (30LL * 86400)
#define CLAIM_GRACE (7LL * 86400) /* so long after the deadline promised earnings stay in the escrow */
#define MAX_DISPUTES 65535 /* that wait at once over one stake: counted in 16 bits */
#define REASONS 16 /* a stake remembers this many slashes, so that none is applied twice */

typedef struct { Pubkey account; u64 paid; } Payee;

typedef struct {
    u8 tag, bump, status, version;
    u16 capacity, used;
    i64 deadline;
    u64 deposited, paid, refunded;
    Pubkey submitter, coordinator, mint, vault, job;
    /* up to here a closed escrow stays */
    u64 cap, committed, period;
    u32 count;
    u16 consent, lent;         /* of the table's entries, so many whose rent the coordinator lent */
    Pubkey earnings;           /* root over the promised cumulative earnings */
    Pubkey frontier[FRONTIER]; /* of the list of payees: the peak of 2^k leaves in place k */
    Payee payees[];
} Escrow;

#define TOMBSTONE __builtin_offsetof(Escrow, cap)

typedef struct {
    u8 tag, bump, version, pad;
    u16 slash_bps, reason_next;
    i64 cooldown, window, window_start, unlock_at;
    u64 window_base, window_slashed, requested;
    u64 deposited, slashed, withdrawn;
    Pubkey node, coordinator, mint, vault, treasury, next_coordinator;
    i64 move_at;
    u16 challenger_bps, disputes; /* of the second kind those that wait for a verdict */
    u32 hold; /* so long after a cool-down they may keep what it was for; 0 in accounts from before there was a bound */
    i64 opened_at;
    Pubkey reasons[REASONS];
} Stake;

typedef struct {
    u8 tag, bump, version, revision;
    u16 slash_bps, challenger_bps;
    i64 cooldown, window, verdict_time;
    u64 bond;
    Pubkey mint, treasury;
} Market;

typedef struct {
    u8 tag, bump, status, version;
    u32 pad;
    i64 deadline;
    u64 bond;
    Pubkey challenger, node, coordinator, mint, vault, audit, evidence;
} Dispute;

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
u64 check_money(const Call *call, const Pubkey *vault, const Pubkey *mint);
u64 vault_balance(const Account *vault);
int is_token_account(const Account *account);
int can_receive(const Call *call, const Account *account);
int token_account_belongs_to(const Account *account, const Pubkey *owner);
u64 transfer_tokens(const Call *call, u64 from, u64 to, u64 amount, const SignerSeeds *owner_seeds);
u64 close_vault(const Call *call, u64 to, const SignerSeeds *owner_seeds);

/* state.c */
u64 create_state(const Call *call, u64 space, const Slice *seeds, u64 seed_count, u8 *bump);
u64 fund_state(const Call *call, u64 space);
u64 rent_minimum(u64 space, u64 *lamports);
u64 now(i64 *seconds);
u64 add(u64 *total, u64 amount);
int is_zero(const u8 *key);
u64 share_of(u64 amount, u64 basis_points);
void resize_data(const Account *account, u64 len);
void destroy_state(const Account *state, const Account *heir, u64 size);
void log_event(const char *kind, const Account *state, const void *payload, u64 len);

/* merkle.c */
void hash_leaf(const void *content, u64 len, Pubkey *digest);
u64 append_leaf(Escrow *escrow, const u8 *content);
void list_root(const Escrow *escrow, Pubkey *root);
u64 check_proof(const Pubkey *root, Pubkey *digest, const u8 *proof, u64 len);

/* terms.c */
u64 load_terms(const Call *call, u64 at, const Market **out);

/* escrow.c */
u64 find_escrow(const Call *call, u64 accounts, Escrow **out);
u64 load_escrow(const Call *call, u64 accounts, Escrow **out);
Payee *entry_of(Escrow *escrow, u64 slot, const u8 *account);
u64 pay(const Call *call, Escrow *escrow, const u8 *orders, u64 count);

/* The instructions. */
u64 market_configure(const Call *);
u64 escrow_open(const Call *);
u64 escrow_deposit(const Call *);
u64 escrow_settle(const Call *);
u64 escrow_refund(const Call *);
u64 escrow_close(const Call *);
u64 escrow_accept(const Call *);
u64 escrow_extend(const Call *);
u64 escrow_admit(const Call *);
u64 escrow_enrol(const Call *);
u64 escrow_grow(const Call *);
u64 escrow_commit(const Call *);
u64 escrow_claim(const Call *);
u64 stake_open(const Call *);
u64 stake_deposit(const Call *);
u64 stake_slash(const Call *);
u64 stake_request(const Call *);
u64 stake_withdraw(const Call *);
u64 stake_move(const Call *);
u64 stake_close(const Call *);
u64 dispute_open(const Call *);
u64 dispute_verdict(const Call *);
u64 dispute_expire(const Call *);
u64 dispute_close(const Call *);
