/* tests/io/test_digest.c - published vectors: FIPS 180-4 "abc", and CRC-32 of "123456789". */
#include "io/digest.h"
#include "tests/support/check.h"

int main(void)
{
    int failed = 0;
    uint8_t d[32];
    char hex[65];
    Err e;
    const char *want = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    failed += check_int("of", sha256_of("abc", 3, d, &e), ST_OK);
    hex_of(d, 32, hex);
    failed += check_str("abc", hex, want);
    Sha256 *s = NULL;
    failed += check_int("create", sha256_create(&s, &e), ST_OK);
    for (int round = 0; round < 2; round++) {
        sha256_add(s, "a", 1, &e);
        sha256_add(s, "bc", 2, &e);
        failed += check_int("end", sha256_end(s, d, &e), ST_OK);
        hex_of(d, 32, hex);
        failed += check_str("in pieces, and again", hex, want);
    }
    sha256_free(s);
    failed += check_int("crc", crc32_of(0, "123456789", 9), 0xcbf43926);
    failed += check_int("crc in pieces", crc32_of(crc32_of(0, "1234", 4), "56789", 5), 0xcbf43926);
    return test_result(failed);
}
