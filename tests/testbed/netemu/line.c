/* One direction of an access: what befalls a packet, the drop-tail queue, the rate, and the way. */
#include "netemu.h"

#include <stdlib.h>
#include <string.h>

/* The longest time that one piece of a super-packet occupies the line: the grain at which rates and delays hold. */
#define PIECE_NS 300000.0

#define NEVER UINT64_MAX

enum fate { NORMAL, LOST, LATE, TWICE };

void line_init(struct line *line, uint64_t seed)
{
    memset(line, 0, sizeof *line);
    line->queue = 1 << 20;
    line->random = seed * 0x9E3779B97F4A7C15u + 0xD1B54A32D192ED03u; /* Any state but 0; seeds count from 0. */
}

/* Sets one property; returns false for an unknown name. */
bool line_set(struct line *line, const char *name, double value)
{
    const struct { const char *name; double *value; } properties[] = {
        {"rate", &line->rate},     {"delay_us", &line->delay_us}, {"jitter_us", &line->jitter_us},
        {"loss", &line->loss},     {"reorder", &line->reorder},   {"hold_us", &line->hold_us},
        {"queue", &line->queue},   {"duplicate", &line->duplicate},
    };
    for (size_t i = 0; i < sizeof properties / sizeof *properties; i++)
        if (strcmp(properties[i].name, name) == 0) {
            *properties[i].value = value;
            return true;
        }
    return false;
}

/* Uniform in [0, 1): xorshift64 (Marsaglia 2003). */
static double draw(struct line *line)
{
    line->random ^= line->random << 13;
    line->random ^= line->random >> 7;
    line->random ^= line->random << 17;
    return (double)(line->random >> 11) / 9007199254740992.0;
}

static enum fate draw_fate(struct line *line)
{
    if (line->loss > 0 && draw(line) < line->loss)
        return LOST;
    if (line->reorder > 0 && draw(line) < line->reorder)
        return LATE;
    if (line->duplicate > 0 && draw(line) < line->duplicate)
        return TWICE;
    return NORMAL;
}

/* Appends; what is due before its predecessor waits for it. */
static void fifo_push(struct fifo *fifo, struct packet *packet)
{
    packet->next = NULL;
    if (fifo->head == NULL) {
        fifo->head = packet;
    } else {
        if (packet->due_ns < fifo->tail->due_ns)
            packet->due_ns = fifo->tail->due_ns;
        fifo->tail->next = packet;
    }
    fifo->tail = packet;
}

static struct packet *fifo_pop(struct fifo *fifo)
{
    struct packet *packet = fifo->head;
    fifo->head = packet->next;
    return packet;
}

/* Puts one piece on the line, or drops it where the queue is full. */
static void admit(struct line *line, struct packet *piece, enum fate fate, uint64_t now_ns)
{
    uint64_t sent = now_ns;
    if (line->rate > 0) {
        double ns_per_byte = 8e9 / line->rate;
        uint64_t start = line->free_ns > now_ns ? line->free_ns : now_ns;
        uint64_t waiting = (uint64_t)((double)(start - now_ns) / ns_per_byte);
        if (waiting > line->queue_peak)
            line->queue_peak = waiting;
        if ((double)waiting > line->queue) {
            line->queue_drops += piece->segments;
            free(piece);
            return;
        }
        sent = start + (uint64_t)(piece->wire * ns_per_byte);
        line->free_ns = sent;
    }
    line->packets += piece->segments;
    line->bytes += piece->wire;
    piece->due_ns = sent + (uint64_t)(line->delay_us * 1e3);
    if (line->jitter_us > 0)
        piece->due_ns += (uint64_t)(draw(line) * line->jitter_us * 1e3);
    if (fate == TWICE) {
        line->duplicates++;
        fifo_push(&line->punctual, packet_copy(piece));
    }
    if (fate == LATE) {
        line->reordered++;
        piece->due_ns += (uint64_t)(line->hold_us * 1e3);
    }
    fifo_push(fate == LATE ? &line->late : &line->punctual, piece);
}

static struct packet *piece_of(struct packet *whole, uint32_t first, uint32_t count)
{
    return count == whole->segments ? packet_copy(whole) : packet_piece(whole, first, count);
}

static uint32_t segments_per_piece(const struct line *line, const struct packet *whole)
{
    if (whole->segments == 1 || line->rate <= 0)
        return whole->segments;
    double fit = PIECE_NS * line->rate / 8e9 / (whole->segment_size + whole->header);
    return fit < 1 ? 1 : fit > whole->segments ? whole->segments : (uint32_t)fit;
}

/*
 * Sends a packet down the line; it belongs to the line from now on. Every segment has its own fate; neighbours with
 * the usual one stay together as long as a piece takes no longer than PIECE_NS.
 */
void line_offer(struct line *line, struct packet *whole, uint64_t now_ns)
{
    uint32_t most = segments_per_piece(line, whole), first = 0;
    for (uint32_t i = 0; i < whole->segments; i++) {
        enum fate fate = draw_fate(line);
        if (i > first && (fate != NORMAL || i - first == most)) {
            admit(line, piece_of(whole, first, i - first), NORMAL, now_ns);
            first = i;
        }
        if (fate == NORMAL)
            continue;
        if (fate == LOST)
            line->losses++;
        else
            admit(line, piece_of(whole, i, 1), fate, now_ns);
        first = i + 1;
    }
    if (first < whole->segments)
        admit(line, piece_of(whole, first, whole->segments - first), NORMAL, now_ns);
    free(whole);
}

/* When the next packet is due; NEVER on an empty line. */
uint64_t line_next(const struct line *line)
{
    uint64_t next = line->punctual.head ? line->punctual.head->due_ns : NEVER;
    if (line->late.head && line->late.head->due_ns < next)
        next = line->late.head->due_ns;
    return next;
}

/* Takes the next packet that is due; NULL where there is none. */
struct packet *line_take(struct line *line, uint64_t now_ns)
{
    if (line_next(line) > now_ns)
        return NULL;
    bool late = line->late.head && line->late.head->due_ns == line_next(line);
    return fifo_pop(late ? &line->late : &line->punctual);
}
