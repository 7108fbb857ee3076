/* tests/kernels/test_upload.c - the ring through which weights go to a device, with a device that copies
 * as late as it may: what a piece holds must stay until its event was waited for. */
#include "tests/support/check.h"
#include "tests/support/late_device.h"

#include <stdio.h>
#include <stdlib.h>

static uint8_t value_at(int64_t i)
{
    return (uint8_t)((uint64_t)i * 2654435761U >> 13);
}

typedef struct Rows {
    int64_t row_bytes, base;
} Rows;

static void fill(void *ctx, int64_t row, int thread, uint8_t *out)
{
    const Rows *r = ctx;
    (void)thread;
    for (int64_t i = 0; i < r->row_bytes; i++)
        out[i] = value_at(r->base + row * r->row_bytes + i);
}

static const struct Case {
    const char *name;
    int64_t rows, row_bytes;
} cases[] = {
    {"nothing", 0, 100},
    {"rows of nothing", 100, 0},
    {"one byte", 1, 1},
    {"a short row", 1, 1000},
    {"many short rows", 30000, 11},
    {"rows of a task each", 70, 140000},
    {"more than a piece", 5, 4000001},
    {"a row that is a piece", 2, UPLOAD_ROW_MAX},
    {"more than the ring", 90, 1000003},
};

static int check_cases(Backend *b)
{
    enum { N = sizeof cases / sizeof *cases };
    int64_t total = 0, at = 0;
    int failed = 0;
    Err e = {0};
    for (int i = 0; i < N; i++)
        total += cases[i].rows * cases[i].row_bytes;
    uint8_t *dst = calloc(1, (size_t)(total + total)), *src = malloc((size_t)total);
    if (!dst || !src)
        return check_true("memory", false);
    for (int i = 0; i < N; i++) {
        Rows rows = {.row_bytes = cases[i].row_bytes, .base = at};
        failed += check_int(cases[i].name,
                            cuda_upload_rows(b, dst + at, cases[i].rows, cases[i].row_bytes, fill,
                                             &rows, b->stream, cases[i].name, &e),
                            ST_OK);
        at += cases[i].rows * cases[i].row_bytes;
    }
    /* The source may change as soon as the call is back. */
    for (int64_t i = 0; i < total; i++)
        src[i] = value_at(i + 5);
    failed += check_int("bytes", cuda_upload_bytes(b, dst + total, src, (size_t)total, "bytes", &e),
                        ST_OK);
    for (int64_t i = 0; i < total; i++)
        src[i] = 0;
    late_device_finish();
    for (int64_t i = 0; i < total && failed == 0; i++)
        if (dst[i] != value_at(i) || dst[total + i] != value_at(i + 5)) {
            printf("byte %lld of %lld\n", (long long)i, (long long)total);
            failed += check_int("rows", dst[i], value_at(i));
            failed += check_int("bytes", dst[total + i], value_at(i + 5));
        }
    failed += check_true("the ring went round", late.n_waits > 4);
    failed += check_int(
        "too long",
        cuda_upload_rows(b, dst, 1, UPLOAD_ROW_MAX + 1LL, fill, NULL, b->stream, "layers.3", &e),
        ST_INPUT);
    failed += check_str("too long", e.text, "layers.3: rows of 8388609 bytes are too long");
    late.full = true;
    failed +=
        check_int("a failed copy", cuda_upload_bytes(b, dst, src, 1000, "layers.4", &e), ST_DEVICE);
    failed += check_str("a failed copy", e.text, "layers.4: the queue is full");
    late.full = false;
    free(dst);
    free(src);
    return failed;
}

int main(void)
{
    int failed = 0;
    Err e = {0};
    for (int threads = 1; threads <= 3; threads += 2) {
        late_device_reset();
        Backend b = {.api = &late_device, .stream = &late.streams[0]};
        if (team_create(&b.team, threads, &e) != ST_OK || cuda_upload_create(&b, &e) != ST_OK)
            return check_str("create", e.text, "");
        failed += check_int("pinned bytes", (long long)late.host,
                            (long long)UPLOAD_PIECES * UPLOAD_PIECE_BYTES);
        failed += check_cases(&b);
        cuda_upload_destroy(&b);
        failed += check_int("events left", late.n_events, 0);
        team_destroy(b.team);
    }
    return test_result(failed);
}
