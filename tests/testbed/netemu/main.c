/*
 * netemu SEED SITE...: see netemu.h for what it does, site.c for what a SITE is, control.c for what it answers.
 * It says "ready" once every device is there, and ends when standard input does.
 */
#define _GNU_SOURCE
#include "netemu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define BATCH 256           /* Packets from one site before the others have their turn. */
#define LONGEST_WAIT_NS 1000000000u
#define MAX_COMMAND 4096
#define CONTROL MAX_SITES   /* Marks the control channel among the events. */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Carries what has come to the end of an uplink on to the downlink of its target. */
static void move_up(uint64_t now)
{
    struct packet *packet;
    for (int i = 0; i < site_count; i++)
        while ((packet = line_take(&sites[i].up, now)) != NULL)
            line_offer(&sites[packet->target].down, packet, packet->due_ns);
}

/* Hands over what has arrived. A full device drops, as a network card does. */
static void deliver(uint64_t now)
{
    struct packet *packet;
    for (int i = 0; i < site_count; i++)
        while ((packet = line_take(&sites[i].down, now)) != NULL) {
            if (!sites[i].cut && write(sites[i].tun, packet->frame, packet->length) < 0 && errno != EAGAIN)
                fprintf(stderr, "netemu: %s refuses %u bytes: %s\n", sites[i].name, packet->length, strerror(errno));
            free(packet);
        }
}

static uint64_t next_due(void)
{
    uint64_t next = UINT64_MAX;
    for (int i = 0; i < site_count; i++) {
        uint64_t up = line_next(&sites[i].up), down = line_next(&sites[i].down);
        next = up < next ? up : next;
        next = down < next ? down : next;
    }
    return next;
}

/* The largest packet on the line. */
static int largest(const struct packet *packet)
{
    return packet->segments > 1 ? (int)(packet->segment_size + packet->header) : (int)packet->wire;
}

static void read_site(struct site *site, uint64_t now)
{
    static uint8_t frame[MAX_FRAME];
    for (int count = 0; count < BATCH; count++) {
        ssize_t length = read(site->tun, frame, sizeof frame);
        if (length <= 0)
            return;
        struct packet *packet = packet_new(frame, (size_t)length);
        if (packet == NULL)
            continue;
        packet->target = site_route(packet);
        bool lost = site->cut || packet->target < 0 || sites[packet->target].cut;
        if (!lost && largest(packet) > sites[packet->target].mtu) {
            sites[packet->target].oversized++;
            lost = true;
        }
        if (lost)
            free(packet);
        else
            line_offer(&site->up, packet, now);
    }
}

/* Reads commands; returns false at the end of standard input. */
static bool read_control(void)
{
    static char text[MAX_COMMAND];
    static size_t held;
    ssize_t length = read(STDIN_FILENO, text + held, sizeof text - 1 - held);
    if (length < 0)
        return errno == EAGAIN || errno == EINTR;
    held += (size_t)length;
    text[held] = '\0';
    for (char *end; (end = strchr(text, '\n')) != NULL;) {
        *end = '\0';
        control_command(text);
        held -= (size_t)(end + 1 - text);
        memmove(text, end + 1, held + 1);
    }
    fflush(stdout);
    return length > 0 && held < sizeof text - 1;
}

static void watch(int epoll, int fd, uint32_t which)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = which};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
        perror("netemu: epoll_ctl");
        exit(1);
    }
}

int main(int count, char **arguments)
{
    if (count < 3) {
        fprintf(stderr, "usage: netemu SEED SITE...\n");
        return 2;
    }
    prctl(PR_SET_TIMERSLACK, 1000); /* ns; the usual 50 us would blur every delay. */
    uint64_t seed = strtoull(arguments[1], NULL, 10);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 2; i < count; i++) {
        site_add(arguments[i], seed * MAX_SITES + (uint64_t)i);
        watch(epoll, sites[i - 2].tun, (uint32_t)(i - 2));
    }
    fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
    watch(epoll, STDIN_FILENO, CONTROL);
    puts("ready");
    fflush(stdout);
    for (;;) {
        uint64_t now = now_ns();
        move_up(now);
        deliver(now);
        uint64_t next = next_due(), wait = next <= now ? 0 : next - now;
        if (wait > LONGEST_WAIT_NS)
            wait = LONGEST_WAIT_NS;
        struct timespec timeout = {(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)};
        struct epoll_event events[MAX_SITES + 1];
        int ready = epoll_pwait2(epoll, events, MAX_SITES + 1, &timeout, NULL);
        uint64_t read_at = now_ns();
        for (int i = 0; i < ready; i++) {
            if (events[i].data.u32 != CONTROL)
                read_site(&sites[events[i].data.u32], read_at);
            else if (!read_control())
                return 0;
        }
    }
}
