/* jobs/record.h - the bytes in front of every record of a journal segment.
 *
 *    0  magic    4  8e 4d 42 fa: no UTF-8 text starts so, hence no result line holds it
 *    4  kind     1  RECORD_RESULT, RECORD_PARTIAL, RECORD_LOGITS
 *    5  flags    1  RECORD_FAILED
 *    6  format   2  1
 *    8  row      8  number of the non-blank input line, from 0
 *   16  bytes    8  of the payload, which follows at 32
 *   24  payload  4  CRC-32 of the payload
 *   28  header   4  CRC-32 of bytes 0 .. 27
 *
 * Numbers are little-endian. The header has a CRC of its own so that its length can be believed
 * before the payload is read, and so that a reader can find the next record behind a damaged one.
 */
#ifndef MB_JOBS_RECORD_H
#define MB_JOBS_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RECORD_RESULT = 1,  /* the row's output line */
    RECORD_PARTIAL = 2, /* the state of an unfinished row */
    RECORD_LOGITS = 3   /* the row's logits, for score --logits; written before its result */
};
enum { RECORD_FAILED = 1 };
enum { RECORD_HEADER_BYTES = 32 };

extern const uint8_t record_magic[4];

typedef struct RecordHeader {
    uint8_t kind, flags;
    int64_t row;
    uint64_t bytes;
    uint32_t payload_crc;
} RecordHeader;

void record_encode(const RecordHeader *h, uint8_t out[RECORD_HEADER_BYTES]);
/* False unless magic, format, kind and header CRC are right. */
bool record_decode(const uint8_t in[RECORD_HEADER_BYTES], RecordHeader *out);

#endif
