/* Sites: a TUN device inside a namespace, and the prefixes that are routed to it. */
#define _GNU_SOURCE
#include "netemu.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#ifndef TUN_F_USO4
#define TUN_F_USO4 0x20 /* Linux 6.2 */
#define TUN_F_USO6 0x40
#endif

struct site sites[MAX_SITES];
int site_count;

static void fail(const char *what, const char *which)
{
    fprintf(stderr, "netemu: %s %s: %s\n", what, which, strerror(errno));
    exit(1);
}

/* Opens a new TUN device in a namespace; older kernels that cannot carry UDP super-packets carry those of TCP. */
static int open_tun(const char *namespace, const char *device)
{
    char path[128];
    snprintf(path, sizeof path, "/run/netns/%s", namespace);
    int here = open("/proc/self/ns/net", O_RDONLY), there = open(path, O_RDONLY);
    if (there < 0 || setns(there, CLONE_NEWNET) < 0)
        fail("cannot enter", path);
    int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    if (tun < 0)
        fail("cannot open", "/dev/net/tun");
    struct ifreq request;
    memset(&request, 0, sizeof request);
    request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
    snprintf(request.ifr_name, IFNAMSIZ, "%s", device);
    if (ioctl(tun, TUNSETIFF, &request) < 0)
        fail("cannot make the device", device);
    int header = VNET_BYTES;
    unsigned tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
    if (ioctl(tun, TUNSETVNETHDRSZ, &header) < 0)
        fail("cannot set the header size of", device);
    if (ioctl(tun, TUNSETOFFLOAD, tcp | TUN_F_USO4 | TUN_F_USO6) < 0 && ioctl(tun, TUNSETOFFLOAD, tcp) < 0)
        fail("cannot set offloads of", device);
    if (setns(here, CLONE_NEWNET) < 0)
        fail("cannot return from", path);
    close(here);
    close(there);
    return tun;
}

static struct prefix parse_prefix(int family, const char *text)
{
    struct prefix prefix = {.length = -1};
    char address[64];
    int length;
    if (strcmp(text, "-") == 0)
        return prefix;
    if (sscanf(text, "%63[^/]/%d", address, &length) != 2 || inet_pton(family, address, prefix.bytes) != 1) {
        fprintf(stderr, "netemu: %s is no prefix: expected ADDRESS/BITS or -\n", text);
        exit(2);
    }
    prefix.length = length;
    return prefix;
}

/* Adds the site NAME,NAMESPACE,DEVICE,MTU,PREFIX4,PREFIX6; a missing prefix is a dash. */
void site_add(char *description, uint64_t seed)
{
    char *fields[6] = {0}, *rest = description;
    int count = 0;
    for (char *field; count < 6 && (field = strsep(&rest, ",")) != NULL;)
        fields[count++] = field;
    if (count < 6 || rest != NULL || site_count == MAX_SITES) {
        fprintf(stderr, "netemu: a site is NAME,NAMESPACE,DEVICE,MTU,PREFIX4,PREFIX6, and there are at most %d\n", MAX_SITES);
        exit(2);
    }
    struct site *site = &sites[site_count++];
    snprintf(site->name, sizeof site->name, "%s", fields[0]);
    site->mtu = atoi(fields[3]);
    site->ipv4 = parse_prefix(AF_INET, fields[4]);
    site->ipv6 = parse_prefix(AF_INET6, fields[5]);
    line_init(&site->up, 2 * seed);
    line_init(&site->down, 2 * seed + 1);
    site->tun = open_tun(fields[1], fields[2]);
}

struct site *site_named(const char *name)
{
    for (int i = 0; i < site_count; i++)
        if (strcmp(sites[i].name, name) == 0)
            return &sites[i];
    return NULL;
}

static bool covers(const struct prefix *prefix, const uint8_t *address)
{
    if (prefix->length < 0)
        return false;
    int whole = prefix->length / 8, bits = prefix->length % 8;
    if (memcmp(prefix->bytes, address, (size_t)whole) != 0)
        return false;
    return bits == 0 || (prefix->bytes[whole] ^ address[whole]) >> (8 - bits) == 0;
}

/* The site whose longest prefix covers the packet's destination; -1 for an address that nobody has. */
int site_route(const struct packet *packet)
{
    const uint8_t *ip = packet->frame + VNET_BYTES;
    bool ipv6 = ip[0] >> 4 == 6;
    int best = -1, longest = -1;
    for (int i = 0; i < site_count; i++) {
        const struct prefix *prefix = ipv6 ? &sites[i].ipv6 : &sites[i].ipv4;
        if (prefix->length > longest && covers(prefix, ip + (ipv6 ? 24 : 16))) {
            longest = prefix->length;
            best = i;
        }
    }
    return best;
}
