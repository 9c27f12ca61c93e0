/*
 * netemu: the internet between network namespaces, in user space, where the kernel has no netem.
 *
 * Every site is a TUN device in a namespace of its own. What a site sends goes through its uplink, then through the
 * downlink of the site that has the destination's prefix:
 *
 *     site --TUN--> [uplink: fate, queue, rate, delay] --> [downlink: queue, rate, delay] --TUN--> site
 *
 * Super-packets (GSO) travel whole as far as the rates allow, as they do between a machine and its network card. All
 * figures count bytes as on the line: every segment with its IP header.
 */
#ifndef NETEMU_H
#define NETEMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_SITES 32
#define MAX_FRAME 70000 /* The largest super-packet is 64 KB. */
#define VNET_BYTES 10   /* struct virtio_net_hdr without the mergeable part */

/* One packet, or one super-packet of several segments. */
struct packet {
    struct packet *next;
    uint64_t due_ns;
    int target;            /* index of the receiving site */
    uint32_t segments;     /* 1 for a plain packet */
    uint32_t segment_size; /* payload of every segment but the last */
    uint32_t l4;           /* where the transport header begins in the IP packet; set where segments > 1 */
    uint32_t header;       /* bytes of IP and transport header; set where segments > 1 */
    uint32_t wire;         /* bytes on the line */
    uint32_t length;       /* bytes in frame */
    uint8_t frame[];       /* virtio header, then the IP packet */
};

struct packet *packet_new(const uint8_t *frame, size_t length);
struct packet *packet_piece(const struct packet *whole, uint32_t first, uint32_t count);
struct packet *packet_copy(const struct packet *packet);

struct fifo {
    struct packet *head, *tail;
};

/* One direction of one site's access. The first block is set from outside, in the units of the control channel. */
struct line {
    double rate;        /* bit/s; 0 is unlimited */
    double delay_us;
    double jitter_us;   /* uniform from 0, without overtaking */
    double loss;        /* probability per packet, as are reorder and duplicate */
    double reorder;     /* held back by hold_us while others overtake */
    double hold_us;
    double duplicate;
    double queue;       /* bytes that wait before the next one is dropped */

    uint64_t free_ns;   /* when the line has sent all that was admitted */
    uint64_t random;    /* state of the generator */
    struct fifo punctual, late;
    uint64_t packets, bytes, queue_drops, losses, reordered, duplicates, queue_peak;
};

void line_init(struct line *line, uint64_t seed);
bool line_set(struct line *line, const char *name, double value);
void line_offer(struct line *line, struct packet *whole, uint64_t now_ns);
struct packet *line_take(struct line *line, uint64_t now_ns);
uint64_t line_next(const struct line *line);

struct prefix {
    uint8_t bytes[16];
    int length; /* bits; -1 for none */
};

struct site {
    char name[64];
    int tun;
    int mtu; /* what is larger vanishes on its way down, as in a path-MTU black hole */
    bool cut;
    struct prefix ipv4, ipv6;
    struct line up, down;
    uint64_t oversized;
};

extern struct site sites[MAX_SITES];
extern int site_count;

void site_add(char *description, uint64_t seed);
struct site *site_named(const char *name);
int site_route(const struct packet *packet);

/* Answers one line of the control channel on standard output. */
void control_command(char *line);

#endif
