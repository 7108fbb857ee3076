/* jobs/record.c - see record.h. */
#include "jobs/record.h"

#include "io/digest.h"

#include <string.h>

const uint8_t record_magic[4] = {0x8e, 0x4d, 0x42, 0xfa};

enum { FORMAT = 1, CRC_AT = 28 };

static void put(uint8_t *out, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = (uint8_t)(v >> 8 * i);
}

static uint64_t get(const uint8_t *in, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++)
        v |= (uint64_t)in[i] << 8 * i;
    return v;
}

void record_encode(const RecordHeader *h, uint8_t out[RECORD_HEADER_BYTES])
{
    memcpy(out, record_magic, sizeof record_magic);
    out[4] = h->kind;
    out[5] = h->flags;
    put(out + 6, FORMAT, 2);
    put(out + 8, (uint64_t)h->row, 8);
    put(out + 16, h->bytes, 8);
    put(out + 24, h->payload_crc, 4);
    put(out + CRC_AT, crc32_of(0, out, CRC_AT), 4);
}

bool record_decode(const uint8_t in[RECORD_HEADER_BYTES], RecordHeader *out)
{
    if (memcmp(in, record_magic, sizeof record_magic) != 0 ||
        get(in + CRC_AT, 4) != crc32_of(0, in, CRC_AT) || get(in + 6, 2) != FORMAT)
        return false;
    out->kind = in[4];
    out->flags = in[5];
    out->row = (int64_t)get(in + 8, 8);
    out->bytes = get(in + 16, 8);
    out->payload_crc = (uint32_t)get(in + 24, 4);
    return out->kind >= RECORD_RESULT && out->kind <= RECORD_LOGITS;
}
