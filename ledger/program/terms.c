/* The market's terms, one account a mint, written by whoever may upgrade the program. */
#include "market.h"

static const u8 SEED[6] = {'m', 'a', 'r', 'k', 'e', 't'};
/* BPFLoaderUpgradeab1e11111111111111111111111 */
static const Pubkey LOADER = {{2, 168, 246, 145, 78, 136, 161, 176, 226, 16, 21, 62, 247, 99, 174, 43,
                               0, 194, 185, 61, 22, 193, 36, 210, 192, 83, 122, 16, 4, 128, 0, 0}};
enum { PROGRAM_DATA = 3, AT_HAS_AUTHORITY = 12, AT_AUTHORITY = 13, PROGRAM_DATA_HEADER = 45 };
enum { TREASURY = 2, LOADED = 5 };

/* The program's data account holds the key that may upgrade it. */
static NOINLINE u64 check_upgrade_authority(const Call *call) {
    const Account *loaded = call->accounts + LOADED;
    Slice seed = {call->program, 32};
    Pubkey expected;
    u8 bump;
    u64 error = sol_try_find_program_address(&seed, 1, &LOADER, &expected, &bump);
    if (error) return error;
    if (!same_bytes(expected.bytes, loaded->key->bytes)) return E_WRONG_ADDRESS;
    if (!same_key(loaded->owner, &LOADER) || loaded->data_len < PROGRAM_DATA_HEADER) return E_WRONG_ADDRESS;
    if (read_u32(loaded->data) != PROGRAM_DATA || !loaded->data[AT_HAS_AUTHORITY]) return E_WRONG_AUTHORITY;
    return same_bytes(loaded->data + AT_AUTHORITY, call->accounts[AUTHORITY].key->bytes) ? 0 : E_WRONG_AUTHORITY;
}

/* The terms of the mint that the call names, at one of its accounts. */
u64 load_terms(const Call *call, u64 at, const Market **out) {
    const Account *a = call->accounts + at;
    const Market *market = (const Market *)a->data;
    if (!same_key(a->owner, call->program) || a->data_len != sizeof(Market)) return E_NOT_OURS;
    if (market->tag != TAG_MARKET || market->version != VERSION) return E_NOT_OURS;
    if (!same_key(call->accounts[MINT].key, &market->mint)) return E_WRONG_MINT;
    *out = market;
    return 0;
}

static int out_of_bounds(const Market *asked) {
    return asked->slash_bps > 10000 || asked->challenger_bps > 10000 || asked->cooldown < 0 ||
           asked->cooldown > MAX_COOLDOWN || asked->window < 1 || asked->window > MAX_WINDOW ||
           asked->verdict_time < 1 || asked->verdict_time > MAX_COOLDOWN;
}

/* [upgrade authority s w, market w, treasury token account, mint, system, program data]
 * slash_bps u16 challenger_bps u16 cooldown i64 window i64 verdict_time i64 bond u64
 * Creates the terms or replaces them. */
u64 market_configure(const Call *call) {
    const Account *a = call->accounts;
    if (call->data_len != 36) return INVALID_INSTRUCTION_DATA;
    if (call->count < 6) return INVALID_ARGUMENT;
    if (!a[AUTHORITY].is_signer) return MISSING_SIGNATURE;
    u64 error = check_upgrade_authority(call);
    if (error) return error;
    Market asked;
    asked.slash_bps = read_u16(call->data);
    asked.challenger_bps = read_u16(call->data + 2);
    asked.cooldown = (i64)read_u64(call->data + 4);
    asked.window = (i64)read_u64(call->data + 12);
    asked.verdict_time = (i64)read_u64(call->data + 20);
    asked.bond = read_u64(call->data + 28);
    if (out_of_bounds(&asked)) return E_BAD_TERMS;
    if (!is_token_program(a[TREASURY].owner) || a[TREASURY].data_len < 64 ||
        !same_bytes(a[TREASURY].data, a[MINT].key->bytes))
        return E_WRONG_MINT;

    Market *market = (Market *)a[STATE].data;
    if (same_key(a[STATE].owner, call->program)) {
        const Market *known;
        error = load_terms(call, STATE, &known);
        if (error) return error;
    } else {
        u8 bump;
        Slice seeds[3] = {{SEED, sizeof SEED}, {a[MINT].key, 32}, {&bump, 1}};
        error = create_state(call, sizeof(Market), seeds, 2, &bump);
        if (error) return error;
        market->tag = TAG_MARKET;
        market->bump = bump;
        market->version = VERSION;
        copy_key(&market->mint, a[MINT].key);
    }
    market->revision = REVISION;
    market->slash_bps = asked.slash_bps;
    market->challenger_bps = asked.challenger_bps;
    market->cooldown = asked.cooldown;
    market->window = asked.window;
    market->verdict_time = asked.verdict_time;
    market->bond = asked.bond;
    copy_key(&market->treasury, a[TREASURY].key);
    log_event("TERM", a + STATE, call->data, 36);
    return 0;
}
