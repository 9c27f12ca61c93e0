/* Packets as the kernel hands them over through a TUN device, and the cutting of super-packets into smaller ones. */
#include "netemu.h"

#include <arpa/inet.h>
#include <linux/virtio_net.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef VIRTIO_NET_HDR_GSO_UDP_L4
#define VIRTIO_NET_HDR_GSO_UDP_L4 5 /* Linux 6.2 */
#endif

#define IPV4_LENGTH 2
#define IPV4_CHECKSUM 10
#define IPV4_ADDRESSES 12
#define IPV6_LENGTH 4
#define IPV6_HEADER 40
#define IPV6_ADDRESSES 8
#define TCP_FLAGS 13
#define TCP_FIN_PSH 0x09

static struct packet *allocate(size_t length)
{
    struct packet *packet = malloc(sizeof *packet + length);
    if (packet == NULL) {
        fprintf(stderr, "netemu: no memory for a packet of %zu bytes\n", length);
        exit(1);
    }
    memset(packet, 0, sizeof *packet);
    packet->length = (uint32_t)length;
    return packet;
}

static bool is_ipv6(const uint8_t *ip)
{
    return ip[0] >> 4 == 6;
}

static void put16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static uint32_t sum16(const uint8_t *bytes, size_t length)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < length; i += 2)
        sum += (uint32_t)(bytes[i] << 8 | bytes[i + 1]);
    return sum;
}

static uint16_t fold(uint32_t sum)
{
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

/* Returns NULL for what is not a whole IP packet. */
struct packet *packet_new(const uint8_t *frame, size_t length)
{
    const uint8_t *ip = frame + VNET_BYTES;
    if (length < VNET_BYTES + 20 || (is_ipv6(ip) ? length < VNET_BYTES + IPV6_HEADER : ip[0] >> 4 != 4))
        return NULL;
    struct packet *packet = allocate(length);
    memcpy(packet->frame, frame, length);
    uint32_t ip_length = (uint32_t)length - VNET_BYTES;
    packet->segments = 1;
    packet->wire = ip_length;

    struct virtio_net_hdr header;
    memcpy(&header, frame, VNET_BYTES);
    if (header.gso_type == VIRTIO_NET_HDR_GSO_NONE || header.gso_size == 0)
        return packet;
    packet->l4 = is_ipv6(ip) ? IPV6_HEADER : (ip[0] & 15u) * 4u;
    bool udp = header.gso_type == VIRTIO_NET_HDR_GSO_UDP_L4;
    packet->header = packet->l4 + (udp ? 8u : (ip[packet->l4 + 12] >> 4) * 4u);
    uint32_t payload = ip_length - packet->header;
    packet->segment_size = header.gso_size;
    packet->segments = (payload + header.gso_size - 1u) / header.gso_size;
    packet->wire = payload + packet->segments * packet->header;
    return packet;
}

struct packet *packet_copy(const struct packet *packet)
{
    struct packet *copy = allocate(packet->length);
    memcpy(copy, packet, sizeof *packet + packet->length);
    copy->next = NULL;
    return copy;
}

static void mend_ip(uint8_t *ip, uint32_t l4, uint32_t ip_length)
{
    if (is_ipv6(ip)) {
        put16(ip + IPV6_LENGTH, ip_length - IPV6_HEADER);
        return;
    }
    put16(ip + IPV4_LENGTH, ip_length);
    put16(ip + IPV4_CHECKSUM, 0);
    put16(ip + IPV4_CHECKSUM, (uint16_t)~fold(sum16(ip, l4)));
}

/* The part of the checksum that the kernel wants filled in: the pseudo header (RFC 768, RFC 8200 section 8.1). */
static uint16_t pseudo_sum(const uint8_t *ip, uint32_t protocol, uint32_t l4_length)
{
    uint32_t sum = is_ipv6(ip) ? sum16(ip + IPV6_ADDRESSES, 32) : sum16(ip + IPV4_ADDRESSES, 8);
    return fold(sum + protocol + l4_length);
}

/* Makes a packet of `count` segments of a super-packet, from the segment `first` on. */
struct packet *packet_piece(const struct packet *whole, uint32_t first, uint32_t count)
{
    uint32_t payload = whole->length - VNET_BYTES - whole->header;
    uint32_t begin = first * whole->segment_size;
    uint32_t end = first + count == whole->segments ? payload : begin + count * whole->segment_size;
    uint32_t ip_length = whole->header + end - begin;
    struct packet *piece = allocate(VNET_BYTES + ip_length);
    piece->target = whole->target;
    piece->segments = count;
    piece->segment_size = whole->segment_size;
    piece->l4 = whole->l4;
    piece->header = whole->header;
    piece->wire = end - begin + count * whole->header;
    memcpy(piece->frame, whole->frame, VNET_BYTES + whole->header);
    uint8_t *ip = piece->frame + VNET_BYTES, *l4 = ip + whole->l4;
    memcpy(ip + whole->header, whole->frame + VNET_BYTES + whole->header + begin, end - begin);

    struct virtio_net_hdr header;
    memcpy(&header, whole->frame, VNET_BYTES);
    bool udp = header.gso_type == VIRTIO_NET_HDR_GSO_UDP_L4;
    uint32_t l4_length = ip_length - whole->l4;
    mend_ip(ip, whole->l4, ip_length);
    if (udp) {
        put16(l4 + 4, l4_length);
    } else {
        uint32_t sequence;
        memcpy(&sequence, l4 + 4, sizeof sequence);
        sequence = htonl(ntohl(sequence) + begin);
        memcpy(l4 + 4, &sequence, sizeof sequence);
        if (end != payload)
            l4[TCP_FLAGS] &= (uint8_t)~TCP_FIN_PSH;
    }
    header.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
    header.csum_start = (uint16_t)whole->l4;
    header.csum_offset = udp ? 6 : 16;
    put16(l4 + header.csum_offset, pseudo_sum(ip, udp ? IPPROTO_UDP : IPPROTO_TCP, l4_length));
    header.hdr_len = (uint16_t)whole->header;
    if (count == 1) {
        header.gso_type = VIRTIO_NET_HDR_GSO_NONE;
        header.gso_size = 0;
    }
    memcpy(piece->frame, &header, VNET_BYTES);
    return piece;
}
