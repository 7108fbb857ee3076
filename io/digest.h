/* io/digest.h - SHA-256 (FIPS 180-4, by OpenSSL) and CRC-32 (by zlib). */
#ifndef MB_IO_DIGEST_H
#define MB_IO_DIGEST_H

#include "io/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct Sha256 Sha256;
Status sha256_create(Sha256 **out, Err *e);
Status sha256_add(Sha256 *s, const void *bytes, size_t len, Err *e);
/* Ends it; s may only be freed or added to from the start again. */
Status sha256_end(Sha256 *s, uint8_t out[32], Err *e);
void sha256_free(Sha256 *s);

/* Of one buffer. */
Status sha256_of(const void *bytes, size_t len, uint8_t out[32], Err *e);
void hex_of(const uint8_t *bytes, size_t n, char *out); /* out: 2n + 1 bytes */
/* start 0, or the result so far */
uint32_t crc32_of(uint32_t start, const void *bytes, size_t len);
/* Of two buffers one after the other, from the CRC of each and the length of the second. */
uint32_t crc32_join(uint32_t first, uint32_t second, size_t second_len);

#endif
