/* io/digest.c - see digest.h. */
#include "io/digest.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <zlib.h>

struct Sha256 {
    EVP_MD_CTX *ctx;
};

static Status failed(Err *e)
{
    return err_set(e, ST_MEMORY, "SHA-256 failed in libcrypto");
}

Status sha256_create(Sha256 **out, Err *e)
{
    Sha256 *s = malloc(sizeof *s);
    if (!s)
        return failed(e);
    s->ctx = EVP_MD_CTX_new();
    if (!s->ctx || EVP_DigestInit_ex(s->ctx, EVP_sha256(), NULL) != 1) {
        sha256_free(s);
        return failed(e);
    }
    *out = s;
    return ST_OK;
}

Status sha256_add(Sha256 *s, const void *bytes, size_t len, Err *e)
{
    return EVP_DigestUpdate(s->ctx, bytes, len) == 1 ? ST_OK : failed(e);
}

Status sha256_end(Sha256 *s, uint8_t out[32], Err *e)
{
    if (EVP_DigestFinal_ex(s->ctx, out, NULL) != 1)
        return failed(e);
    return EVP_DigestInit_ex(s->ctx, EVP_sha256(), NULL) == 1 ? ST_OK : failed(e);
}

void sha256_free(Sha256 *s)
{
    if (!s)
        return;
    EVP_MD_CTX_free(s->ctx);
    free(s);
}

Status sha256_of(const void *bytes, size_t len, uint8_t out[32], Err *e)
{
    return EVP_Digest(bytes, len, out, NULL, EVP_sha256(), NULL) == 1 ? ST_OK : failed(e);
}

void hex_of(const uint8_t *bytes, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * n] = 0;
}

uint32_t crc32_of(uint32_t start, const void *bytes, size_t len)
{
    return (uint32_t)crc32_z(start, bytes, len);
}

uint32_t crc32_join(uint32_t first, uint32_t second, size_t second_len)
{
    return (uint32_t)crc32_combine(first, second, (z_off_t)second_len);
}
