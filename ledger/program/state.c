/* Creating, measuring and shrinking state accounts; time; events. */
#include "market.h"

static const Pubkey SYSTEM_PROGRAM = {{0}};
enum { SYSTEM_ASSIGN = 1, SYSTEM_TRANSFER = 2, SYSTEM_ALLOCATE = 8 };
enum { SYSTEM = 4 }; /* where an opening instruction passes the system program */

#define ACCOUNT_OVERHEAD 128 /* bytes that the runtime counts beside the data */
#define DOUBLE_ONE 0x3ff0000000000000ULL
#define DOUBLE_TWO 0x4000000000000000ULL

u64 rent_minimum(u64 space, u64 *lamports) {
    Rent rent;
    u64 error = sol_get_rent_sysvar(&rent);
    if (error) return error;
    if (rent.exemption_threshold_bits != DOUBLE_ONE && rent.exemption_threshold_bits != DOUBLE_TWO) return E_RENT;
    *lamports = (space + ACCOUNT_OVERHEAD) * rent.lamports_per_byte;
    if (rent.exemption_threshold_bits == DOUBLE_TWO) *lamports *= 2;
    return 0;
}

static NOINLINE u64 system_call(const Call *call, const u8 *data, u64 len, const SignerSeeds *seeds) {
    const Account *a = call->accounts;
    /* Transfer goes from the authority to the state; allocate and assign name the state alone. */
    int is_transfer = data[0] == SYSTEM_TRANSFER;
    AccountMeta metas[2] = {{a[AUTHORITY].key, 1, 1}, {a[STATE].key, 1, !is_transfer}};
    Instruction instruction = {&SYSTEM_PROGRAM, is_transfer ? metas : metas + 1, is_transfer ? 2 : 1, data, len};
    return sol_invoke_signed_c(&instruction, a, call->count, seeds, is_transfer ? 0 : 1);
}

/* Tops the state account up from the authority to the rent of so many bytes. */
u64 fund_state(const Call *call, u64 space) {
    const Account *state = call->accounts + STATE;
    u64 needed, error = rent_minimum(space, &needed);
    if (error || *state->lamports >= needed) return error;
    u64 missing = needed - *state->lamports;
    u8 data[12];
    __builtin_memset(data, 0, 4);
    data[0] = SYSTEM_TRANSFER;
    __builtin_memcpy(data + 4, &missing, 8);
    return system_call(call, data, 12, 0);
}

/* Makes the state account at its canonical address. Somebody may have sent lamports there before: top up,
 * allocate and assign work then, where create_account would not. seeds must have room for the bump. */
u64 create_state(const Call *call, u64 space, const Slice *seeds, u64 seed_count, u8 *bump) {
    const Account *a = call->accounts, *state = a + STATE;
    Pubkey canonical;
    if (!same_key(a[SYSTEM].key, &SYSTEM_PROGRAM)) return E_WRONG_PROGRAM;
    u64 error = sol_try_find_program_address(seeds, seed_count, call->program, &canonical, bump);
    if (error) return error;
    if (!same_bytes(canonical.bytes, state->key->bytes)) return E_WRONG_ADDRESS;
    if (!same_key(state->owner, &SYSTEM_PROGRAM) || state->data_len) return E_ALREADY_OPEN;

    error = fund_state(call, space);
    if (error) return error;
    SignerSeeds signer = {seeds, seed_count + 1};
    u8 data[36];
    __builtin_memset(data, 0, 4);
    data[0] = SYSTEM_ALLOCATE;
    __builtin_memcpy(data + 4, &space, 8);
    error = system_call(call, data, 12, &signer);
    if (error) return error;
    data[0] = SYSTEM_ASSIGN;
    copy_key(data + 4, call->program);
    return system_call(call, data, 36, &signer);
}

u64 now(i64 *seconds) {
    Clock clock;
    u64 error = sol_get_clock_sysvar(&clock);
    *seconds = clock.unix_timestamp;
    return error;
}

u64 add(u64 *total, u64 amount) {
    if (*total + amount < *total) return E_OVERFLOW;
    *total += amount;
    return 0;
}

int is_zero(const u8 *key) {
    return !(read_u64(key) | read_u64(key + 8) | read_u64(key + 16) | read_u64(key + 24));
}

/* amount * basis_points / 10000, without an overflow of 64 bits */
u64 share_of(u64 amount, u64 basis_points) {
    return amount / 10000 * basis_points + amount % 10000 * basis_points / 10000;
}

/* The runtime reads the new length from the word before the data. */
void resize_data(const Account *account, u64 len) { *(u64 *)(account->data - 8) = len; }

/* Gives everything up: lamports to the heir, no data, back to the system program. The runtime takes the owner
 * from where it stands in the input. */
void destroy_state(const Account *state, const Account *heir, u64 size) {
    sol_memset_(state->data, 0, size);
    resize_data(state, 0);
    *heir->lamports += *state->lamports;
    *state->lamports = 0;
    copy_key((void *)state->owner, &SYSTEM_PROGRAM);
}

/* One "Program data:" line: a kind of four letters, the state account, the payload. */
void log_event(const char *kind, const Account *state, const void *payload, u64 len) {
    Slice fields[3] = {{kind, 4}, {state->key, 32}, {payload, len}};
    sol_log_data(fields, 3);
}
