/* tests/kernels/test_kept.c - banks in a file: there and back, byte for byte, and back into codes
 * from the layout of every instruction set. */
#include "kernels/unpack.h"
#include "tests/support/check.h"
#include "tests/support/kernel_case.h"
#include "tests/support/temp_dir.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MATS = 3, FIRST = 37, SECOND = 16, COLS = 512 };

/* A bank of two parts, unless it is a lookup bank. */
static int keep(const BackendOps *ops, const TestBackend *b, FormatId format, WeightUse use,
                const char *path)
{
    int failed = 0, n_parts = use == WEIGHT_LOOKUP ? 1 : 2;
    Err e;
    char name[100];
    TestTensor t[2 * MATS];
    for (int i = 0; i < MATS * n_parts; i++)
        t[i] = test_tensor(format, i % n_parts ? SECOND : FIRST, COLS, (uint64_t)i + 1);
    Weight *w = test_weight(ops, b->b, use, MATS, n_parts, t);
    KeptBank kept = {ops->weight_layout(b->b), use, n_parts, {weight_part(&t[0].t)}, COLS};
    if (n_parts == 2)
        kept.parts[1] = weight_part(&t[1].t);
    size_t bytes = 0, mat_bytes = ops->weight_mat_bytes(w);
    snprintf(name, sizeof name, "%s, %s, %s", quant_format(format)->name, b->name,
             use == WEIGHT_LOOKUP ? "lookup" : "matmul");
    failed += check_int(name, unpack_mat_bytes(&kept, &bytes, &e), ST_OK);
    failed += check_int(name, (int64_t)bytes, (int64_t)mat_bytes);

    const uint64_t offset[MATS] = {5 + 2 * mat_bytes, 5, 5 + mat_bytes}; /* in any order */
    uint32_t crc[MATS];
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    BankFile f = {fd, path, offset};
    failed += check_int(name, ops->weight_save(b->b, w, &f, crc, &e), ST_OK);
    Weight *again = test_weight(ops, b->b, use, MATS, n_parts, t);
    failed += check_int(name, ops->weight_restore(b->b, again, &f, crc, &e), ST_OK);
    uint8_t *mat = test_alloc(mat_bytes);
    for (int m = 0; m < MATS; m++) {
        failed +=
            check_int("read", pread(fd, mat, mat_bytes, (off_t)offset[m]), (int64_t)mat_bytes);
        for (int p = 0; p < n_parts; p++) {
            const TestTensor *from = &t[m * n_parts + p];
            size_t n = (size_t)(from->t.rows * from->t.row_bytes);
            uint8_t *codes = test_alloc(n);
            memset(codes, 0, n);
            unpack_part(&kept, p, mat, codes, from->t.row_bytes, from->t.unit_stride);
            failed += check_true(name, memcmp(codes, from->data, n) == 0);
            free(codes);
        }
    }
    /* One altered byte, one that is missing. */
    uint8_t byte;
    failed += check_int("read", pread(fd, &byte, 1, (off_t)(offset[1] + mat_bytes / 2)), 1);
    byte ^= 4;
    failed += check_int("write", pwrite(fd, &byte, 1, (off_t)(offset[1] + mat_bytes / 2)), 1);
    failed += check_int(name, ops->weight_restore(b->b, again, &f, crc, &e), ST_INPUT);
    failed += check_has(name, e.text, "have been altered");
    failed += check_int("cut", ftruncate(fd, (off_t)(5 + 3 * mat_bytes - 1)), 0);
    failed += check_int(name, ops->weight_restore(b->b, again, &f, crc, &e), ST_IO);
    failed += check_has(name, e.text, "has become shorter");
    close(fd);
    free(mat);
    ops->weight_destroy(b->b, w);
    ops->weight_destroy(b->b, again);
    for (int i = 0; i < MATS * n_parts; i++)
        test_tensor_free(&t[i]);
    return failed;
}

static int test_refused(void)
{
    int failed = 0;
    Err e;
    size_t bytes;
    KeptBank k = {"abacus-1", WEIGHT_MATMUL, 1, {{FORMAT_BF16, 8, 1, SCALE_NONE, 1}}, 8};
    failed += check_int("layout", unpack_mat_bytes(&k, &bytes, &e), ST_INPUT);
    failed += check_has("layout", e.text, "\"abacus-1\" is unknown");
    k.layout = "cpu-avx2-1";
    k.parts[0].rows = 0;
    failed += check_int("shape", unpack_mat_bytes(&k, &bytes, &e), ST_INPUT);
    return failed;
}

int main(void)
{
    const BackendOps *ops = backend_find("cpu");
    TestBackend backends[MAX_TEST_BACKENDS];
    int n = test_backends(ops, backends), failed = test_refused();
    const char *path = "bank";
    temp_dir_enter();
    for (int i = 0; i < n; i++)
        for (FormatId f = 0; f < N_FORMATS; f++)
            failed += keep(ops, &backends[i], f, WEIGHT_MATMUL, path);
    for (FormatId f = 0; f < N_FORMATS; f++) /* a lookup bank has one matrix in a model */
        failed += keep(ops, &backends[0], f, WEIGHT_LOOKUP, path);
    test_backends_free(ops, backends, n);
    return test_result(failed);
}
