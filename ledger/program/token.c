/* Everything that the market asks of the SPL Token program. */
#include "market.h"

/* TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA */
static const Pubkey TOKEN_PROGRAM = {{6, 221, 246, 225, 215, 101, 161, 147, 217, 203, 225, 70, 206, 235, 121, 172,
                                      28, 180, 133, 237, 95, 91, 55, 145, 58, 140, 245, 133, 126, 255, 0, 169}};

/* Layout of a token account and of a mint. */
enum { TOKEN_ACCOUNT_LEN = 165, AT_MINT = 0, AT_OWNER = 32, AT_AMOUNT = 64, AT_DELEGATE = 72, AT_STATE = 108,
       AT_CLOSE_AUTHORITY = 129, MINT_LEN = 82, AT_DECIMALS = 44 };
enum { TRANSFER_CHECKED = 12, CLOSE_ACCOUNT = 9, STATE_INITIALIZED = 1 };

int is_token_program(const Pubkey *key) { return same_key(key, &TOKEN_PROGRAM); }

int is_token_account(const Account *account) {
    return same_key(account->owner, &TOKEN_PROGRAM) && account->data_len == TOKEN_ACCOUNT_LEN &&
           account->data[AT_STATE] == STATE_INITIALIZED;
}

/* Whether a payment would arrive: not at an account that its owner closed, that was frozen, or that is for another token. */
int can_receive(const Call *call, const Account *account) {
    return is_token_account(account) && same_bytes(account->data + AT_MINT, call->accounts[MINT].key->bytes);
}

/* A vault must be ruled by its state account alone: no delegate and no close authority left behind by
 * whoever created it. */
u64 check_fresh_vault(const Account *vault, const Account *mint, const Account *owner) {
    if (!same_key(mint->owner, &TOKEN_PROGRAM) || mint->data_len != MINT_LEN) return E_WRONG_MINT;
    if (!is_token_account(vault) || !same_bytes(vault->data + AT_OWNER, owner->key->bytes)) return E_WRONG_VAULT;
    if (!same_bytes(vault->data + AT_MINT, mint->key->bytes)) return E_WRONG_MINT;
    if (read_u32(vault->data + AT_DELEGATE) || read_u32(vault->data + AT_CLOSE_AUTHORITY)) return E_WRONG_VAULT;
    return 0;
}

/* The vault, mint and token program among the common five accounts. */
u64 check_money(const Call *call, const Pubkey *vault, const Pubkey *mint) {
    const Account *a = call->accounts;
    if (!same_key(a[VAULT].key, vault)) return E_WRONG_VAULT;
    if (!same_key(a[MINT].key, mint)) return E_WRONG_MINT;
    return is_token_program(a[TOKEN].key) ? 0 : E_WRONG_PROGRAM;
}

u64 vault_balance(const Account *vault) { return read_u64(vault->data + AT_AMOUNT); }

int token_account_belongs_to(const Account *account, const Pubkey *owner) {
    return is_token_account(account) && same_bytes(account->data + AT_OWNER, owner->bytes);
}

/* Moves tokens between two of the call's accounts. With seeds the state account's signature authorises it,
 * without them that of the call's authority. */
u64 transfer_tokens(const Call *call, u64 from, u64 to, u64 amount, const SignerSeeds *owner_seeds) {
    const Account *a = call->accounts;
    u8 data[10];
    data[0] = TRANSFER_CHECKED;
    __builtin_memcpy(data + 1, &amount, 8);
    data[9] = a[MINT].data[AT_DECIMALS];
    const Account *owner = a + (owner_seeds ? STATE : AUTHORITY);
    AccountMeta metas[4] = {{a[from].key, 1, 0}, {a[MINT].key, 0, 0}, {a[to].key, 1, 0}, {owner->key, 0, 1}};
    /* The runtime looks through what it is given for each payment: only the four that matter. */
    Account passed[4] = {a[from], a[MINT], a[to], *owner};
    Instruction instruction = {&TOKEN_PROGRAM, metas, 4, data, sizeof data};
    return sol_invoke_signed_c(&instruction, passed, 4, owner_seeds, owner_seeds ? 1 : 0);
}

/* Closes the (empty) vault; its lamports go to one of the call's accounts. */
u64 close_vault(const Call *call, u64 to, const SignerSeeds *owner_seeds) {
    const Account *a = call->accounts;
    u8 data[1] = {CLOSE_ACCOUNT};
    AccountMeta metas[3] = {{a[VAULT].key, 1, 0}, {a[to].key, 1, 0}, {a[STATE].key, 0, 1}};
    Instruction instruction = {&TOKEN_PROGRAM, metas, 3, data, sizeof data};
    return sol_invoke_signed_c(&instruction, a, call->count, owner_seeds, 1);
}
