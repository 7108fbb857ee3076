/* tests/quant/test_grids.c - ggml's codebooks and signs against the hashes and invariants of
 * formats.md 2.14, and IQ2 blocks against its worked vectors. */
#include "io/digest.h"
#include "quant/ggml_grids.h"
#include "quant/tensor.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <string.h>

static int check_sha(const char *name, const void *bytes, size_t len, const char *want)
{
    Err e;
    uint8_t digest[32];
    char hex[65];
    if (sha256_of(bytes, len, digest, &e) != ST_OK)
        return check_str(name, e.text, "no error");
    hex_of(digest, 32, hex);
    return check_str(name, hex, want);
}

static void put_le(uint8_t *p, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

static const struct {
    const char *name;
    const uint16_t *codes;
    int n;
    const char *compact_sha, *sha;
    int histogram[3]; /* of 8, 25, 43 */
    int sum;
    uint64_t first[3], last;
} tables[] = {
    {"iq2_xxs",
     iq2_xxs_codes,
     256,
     "915952ebc4af8ddba8113583ca1316fc818843f7b825bbf1a25ae1c39bf0e16d",
     "05826b5d3e472a3a78f196be62ac78acf81df0f909626e12ab9fa2a5d490dd54",
     {1127, 556, 365},
     38611,
     {0x0808080808080808, 0x080808080808082b, 0x0808080808081919},
     0x2b2b2b1908081908},
    {"iq2_xs",
     iq2_xs_codes,
     512,
     "f66435966ca8d64e9e4a6e3c91e64afcf9015e700ec85962f527283ebae207b9",
     "06e47aaca60b4dc1d9b5a3f34540437058a6b142b4d7a59d5ded769b4d1bf1de",
     {2114, 1142, 840},
     81582,
     {0x0808080808080808, 0x080808080808082b, 0x0808080808081919},
     0x2b2b2b2b2b2b2b2b},
};

static int test_tables(void)
{
    int failed = 0;
    for (size_t c = 0; c < sizeof tables / sizeof *tables; c++) {
        static uint8_t compact[2 * 512], full[8 * 512];
        int n = tables[c].n, histogram[3] = {0}, sum = 0, unsorted = 0, odd = 0;
        uint64_t before = 0;
        for (int i = 0; i < n; i++) {
            uint64_t levels = iq2_levels(tables[c].codes[i]);
            put_le(compact + 2 * i, tables[c].codes[i], 2);
            put_le(full + 8 * i, levels, 8);
            int middle = 0;
            for (int j = 0; j < 8; j++) {
                int v = full[8 * i + j];
                sum += v;
                middle += v == 25;
                histogram[0] += v == 8;
                histogram[1] += v == 25;
                histogram[2] += v == 43;
            }
            odd += middle % 2;
            unsorted += i > 0 && levels <= before; /* equal ones, too */
            before = levels;
            if (i < 3)
                failed += check_int(tables[c].name, (int64_t)levels, (int64_t)tables[c].first[i]);
        }
        failed += check_int("last", (int64_t)before, (int64_t)tables[c].last);
        failed += check_sha(tables[c].name, compact, 2 * (size_t)n, tables[c].compact_sha);
        failed += check_sha(tables[c].name, full, 8 * (size_t)n, tables[c].sha);
        for (int v = 0; v < 3; v++)
            failed += check_int("histogram", histogram[v], tables[c].histogram[v]);
        failed += check_int("sum", sum, tables[c].sum);
        failed += check_int("entries out of order", unsorted, 0);
        failed += check_int("entries with an odd number of 25s", odd, 0);
    }
    int shared = 0;
    for (int i = 0; i < 256; i++)
        for (int j = 0; j < 512; j++)
            shared += iq2_xxs_codes[i] == iq2_xs_codes[j];
    return failed + check_int("entries in both", shared, 162);
}

static int test_signs(void)
{
    int failed = 0, odd = 0, moved = 0;
    uint8_t signs[128];
    for (unsigned i = 0; i < 128; i++) {
        signs[i] = iq2_signs(i);
        int minuses = 0;
        for (int j = 0; j < 8; j++)
            minuses += signs[i] >> j & 1;
        odd += minuses % 2;
        moved += (signs[i] & 127U) != i;
    }
    failed += check_int("odd numbers of minuses", odd, 0);
    failed += check_int("seven signs are the index", moved, 0);
    return failed + check_sha("signs", signs, sizeof signs,
                              "a76742a603f8beca5212ecce0f1f02f11a4887fd2f7c8b15aca0ea3eb3380c31");
}

static QuantTensor blocks(FormatId id, const uint8_t *data, int64_t rows, int64_t n_blocks)
{
    const QuantFormat *f = quant_format(id);
    return (QuantTensor){.format = f,
                         .rows = rows,
                         .cols = n_blocks * f->unit,
                         .data = data,
                         .row_bytes = n_blocks * f->unit_bytes,
                         .unit_stride = f->unit_bytes,
                         .group = 1,
                         .scale_rows = 1};
}

/* formats.md 2.14's vectors, at every place of a block that they can stand at. */
static int test_iq2_xs(void)
{
    static const struct {
        const char *name;
        uint16_t d;
        unsigned scale;
        uint8_t code[2];
        float want[8];
    } cases[] = {
        {"d 1, scale 15, entry 511, signs 64",
         0x3c00,
         15,
         {0xff, 0x81},
         {166.625f, 166.625f, 166.625f, 166.625f, 166.625f, 166.625f, -166.625f, -166.625f}},
        {"d .125, scale 2, entry 5, signs 1",
         0x3000,
         2,
         {0x05, 0x02},
         {-1.953125f, .625f, 1.953125f, .625f, .625f, .625f, .625f, -.625f}},
    };
    int failed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int at = 0; at < 2 * 32; at++) { /* two blocks in a row, of the second row */
            uint8_t data[2][2][74];
            memset(data, 0, sizeof data);
            uint8_t *block = data[1][at / 32];
            put_le(block, cases[c].d, 2);
            memcpy(block + 2 + 2 * (at % 32), cases[c].code, 2);
            block[66 + at % 32 / 4] = (uint8_t)(cases[c].scale << (at % 4 / 2 * 4));
            QuantTensor t = blocks(FORMAT_IQ2_XS, data[0][0], 2, 2);
            float out[8];
            t.format->decode(&t, 1, 8 * at, 8, out);
            for (int j = 0; j < 8; j++)
                failed += check_near(cases[c].name, out[j], cases[c].want[j], 0);
            t.format->decode(&t, 1, 8 * at + 3, 2, out); /* not whole groups of eight */
            failed += check_near("from the fourth on", out[0], cases[c].want[3], 0);
            failed += check_near("the fifth", out[1], cases[c].want[4], 0);
        }
    return failed;
}

static int test_iq2_xxs(void)
{
    static const uint8_t record[8] = {0x01, 0x02, 0x00, 0xff, 0x03, 0xc0, 0x1f, 0x58};
    static const float want[32] = {
        -29.5625f, -5.5f,    5.5f,  5.5f,  5.5f,     5.5f,     5.5f,      5.5f, /* d .5, scale 5 */
        17.1875f,  17.1875f, 5.5f,  5.5f,  5.5f,     5.5f,     5.5f,      5.5f,
        -5.5f,     -5.5f,    -5.5f, -5.5f, -5.5f,    -5.5f,    -5.5f,     -5.5f,
        5.5f,      17.1875f, 5.5f,  5.5f,  17.1875f, 29.5625f, -29.5625f, -29.5625f};
    int failed = 0;
    for (int at = 0; at < 8; at++) {
        uint8_t data[3][66];
        memset(data, 0x5a, sizeof data);
        put_le(data[2], 0x3800, 2);
        memcpy(data[2] + 2 + 8 * at, record, 8);
        QuantTensor t = blocks(FORMAT_IQ2_XXS, data[0], 1, 3);
        float out[32];
        t.format->decode(&t, 0, 512 + 32 * at, 32, out);
        for (int j = 0; j < 32; j++)
            failed += check_near("iq2_xxs", out[j], want[j], 0);
        t.format->decode(&t, 0, 512 + 32 * at + 7, 10, out);
        for (int j = 0; j < 10; j++)
            failed += check_near("iq2_xxs from the eighth on", out[j], want[7 + j], 0);
    }
    return failed;
}

int main(void)
{
    return test_result(test_tables() + test_signs() + test_iq2_xs() + test_iq2_xxs());
}
