/* The part of the Solana program interface that the market uses, written from the documented layout
 * (loader v3, aligned input). Compiled with mainline LLVM for BPF: no libc, no globals, at most five
 * arguments a function, 4096 bytes of stack a frame. */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

typedef struct { u8 bytes[32]; } Pubkey;

/* SolAccountInfo: the order and widths are the runtime's. */
typedef struct {
    const Pubkey *key;
    u64 *lamports;
    u64 data_len;
    u8 *data;
    const Pubkey *owner;
    u64 rent_epoch;
    u8 is_signer, is_writable, executable;
} Account;

typedef struct { const Pubkey *pubkey; u8 is_writable, is_signer; } AccountMeta;

typedef struct {
    const Pubkey *program_id;
    const AccountMeta *accounts;
    u64 account_len;
    const u8 *data;
    u64 data_len;
} Instruction;

typedef struct { const void *addr; u64 len; } Slice;
typedef struct { const Slice *addr; u64 len; } SignerSeeds;

typedef struct {
    u64 slot;
    i64 epoch_start;
    u64 epoch, leader_schedule_epoch;
    i64 unix_timestamp;
} Clock;

/* exemption_threshold is an IEEE double; the program reads its bits, BPF has no floating point. */
typedef struct { u64 lamports_per_byte; u64 exemption_threshold_bits; u8 burn_percent; } Rent;

u64 sol_log_data(const Slice *fields, u64 count);
u64 sol_invoke_signed_c(const Instruction *, const Account *, u64 count, const SignerSeeds *, u64 signers);
u64 sol_try_find_program_address(const Slice *seeds, u64 count, const Pubkey *program, Pubkey *out, u8 *bump);
u64 sol_get_clock_sysvar(Clock *);
u64 sol_get_rent_sysvar(Rent *);
u64 sol_sha256(const Slice *parts, u64 count, u8 *digest);
u64 sol_memcpy_(void *to, const void *from, u64 len);
u64 sol_memset_(void *to, u8 value, u64 len);

#define NOINLINE __attribute__((noinline))
#define INLINE static inline __attribute__((always_inline))

/* Errors of the runtime stand in the high half; the low half alone is Custom(n). */
#define INVALID_ARGUMENT (2ULL << 32)
#define INVALID_INSTRUCTION_DATA (3ULL << 32)
#define MISSING_SIGNATURE (8ULL << 32)

/* The runtime leaves this much room behind an account's data for growth within one instruction. */
#define MAX_DATA_GROWTH 10240

INLINE int same_key(const void *a, const void *b) {
    const u64 *x = a, *y = b;
    return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3];
}

INLINE void copy_key(void *to, const void *from) { __builtin_memcpy(to, from, 32); }

INLINE u64 read_u64(const u8 *at) {
    u64 value;
    __builtin_memcpy(&value, at, 8);
    return value;
}

INLINE u32 read_u32(const u8 *at) {
    u32 value;
    __builtin_memcpy(&value, at, 4);
    return value;
}

INLINE u16 read_u16(const u8 *at) {
    u16 value;
    __builtin_memcpy(&value, at, 2);
    return value;
}

/* Data of accounts is 8-aligned; keys within it stand at multiples of 8 in every layout read here
 * except behind the odd offsets of the loader's and the token program's options. */
INLINE int same_bytes(const u8 *a, const u8 *b) {
    u64 different = 0;
    for (u64 i = 0; i < 32; i += 8) different |= read_u64(a + i) ^ read_u64(b + i);
    return different == 0;
}
