/* Merkle trees over SHA-256: leaves, inner nodes and roots under prefixes 0, 1 and 2, the shape of RFC 6962 (an odd
 * node moves up unpaired). A list that grows is kept as its peaks: the roots of its complete subtrees. */
#include "market.h"

static const u8 LEAF[1] = {0}, NODE[1] = {1}, ROOT[1] = {2};

void hash_leaf(const void *content, u64 len, Pubkey *digest) {
    Slice parts[2] = {{LEAF, 1}, {content, len}};
    sol_sha256(parts, 2, digest->bytes);
}

static NOINLINE void hash_node(const void *left, const void *right, Pubkey *digest) {
    Slice parts[3] = {{NODE, 1}, {left, 32}, {right, 32}};
    sol_sha256(parts, 3, digest->bytes);
}

/* The root binds the length too, as eight bytes with the highest first. */
static NOINLINE void hash_root(u64 count, const Pubkey *top, Pubkey *root) {
    u64 swapped = __builtin_bswap64(count);
    Slice parts[3] = {{ROOT, 1}, {&swapped, 8}, {top, count ? 32 : 0}};
    sol_sha256(parts, 3, root->bytes);
}

/* Adds a leaf behind all others; no earlier one can change, since only the peaks are touched. */
u64 append_leaf(Escrow *escrow, const u8 *content) {
    u64 count = escrow->count, level = 0;
    if (count >= MAX_TABLE) return E_PAYEES_FULL;
    Pubkey digest, left;
    hash_leaf(content, 32, &digest);
    for (; count >> level & 1; level++) {
        left = escrow->frontier[level];
        hash_node(&left, &digest, &digest);
    }
    copy_key(&escrow->frontier[level], &digest);
    escrow->count = (u32)(count + 1);
    return 0;
}

void list_root(const Escrow *escrow, Pubkey *root) {
    u64 count = escrow->count, found = 0;
    Pubkey top;
    for (u64 level = 0; level < FRONTIER; level++) {
        if (!(count >> level & 1)) continue;
        if (found) hash_node(&escrow->frontier[level], &top, &top);
        else copy_key(&top, &escrow->frontier[level]);
        found = 1;
    }
    hash_root(count, &top, root);
}

/* Whether the leaf's digest leads to the root. proof: index u32, count u32, sibling digests upwards. */
u64 check_proof(const Pubkey *root, Pubkey *digest, const u8 *proof, u64 len) {
    if (len < 8 || (len - 8) % 32) return INVALID_INSTRUCTION_DATA;
    u64 index = read_u32(proof), width = read_u32(proof + 4), count = width;
    const u8 *path = proof + 8, *end = proof + len;
    if (index >= count) return E_BAD_PROOF;
    for (; width > 1; index >>= 1, width = (width + 1) >> 1) {
        if ((index ^ 1) >= width) continue;
        if (path == end) return E_BAD_PROOF;
        if (index & 1) hash_node(path, digest, digest);
        else hash_node(digest, path, digest);
        path += 32;
    }
    Pubkey reached;
    hash_root(count, digest, &reached);
    return path == end && same_bytes(reached.bytes, root->bytes) ? 0 : E_BAD_PROOF;
}
