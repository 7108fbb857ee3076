/* tests/kernels/test_spans.c - bytes on their way to a device that copies as late as it may: what was
 * announced and what was not, in order and out of it, of files and of memory; bytes that are no numbers,
 * and files that end too early. */
#include "tests/support/check.h"
#include "tests/support/late_device.h"
#include "tests/support/temp_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES = 70 << 20 };

typedef struct Part {
    size_t at, bytes;
    bool memory;
} Part;

enum { MAX_SPANS = 6 };

static const struct Case {
    const char *name;
    int n_spans;
    Part span[MAX_SPANS];
    int n_said, said[MAX_SPANS]; /* which are announced, in that order */
    int n_sent, sent[MAX_SPANS];
} cases[] = {
    {"nothing", 1, {{5, 0, false}}, 1, {0}, 1, {0}},
    {"not announced", 2, {{1, 1, false}, {7, 200001, false}}, 0, {0}, 2, {0, 1}},
    {"in order",
     4,
     {{11, 8294400, false},
      {9000001, 518400, false},
      {20000000, 3, false},
      {30000000, 65537, false}},
     4,
     {0, 1, 2, 3},
     4,
     {0, 1, 2, 3}},
    {"one is left out",
     3,
     {{3, 100000, false}, {400000, 100000, false}, {600000, 100000, false}},
     3,
     {0, 1, 2},
     2,
     {0, 2}},
    {"one is not there yet, and goes beyond a window",
     3,
     {{3, 20000000, false}, {20000003, 20000001, false}, {40000009, 20000000, false}},
     3,
     {0, 1, 2},
     2,
     {0, 2}},
    {"larger than two windows", 1, {{1, FILE_BYTES - 1, false}}, 1, {0}, 1, {0}},
    {"the same, not announced", 1, {{1, FILE_BYTES - 1, false}}, 0, {0}, 1, {0}},
    {"again", 2, {{9, 70000, false}, {1, 3, false}}, 2, {0, 1}, 4, {0, 0, 1, 0}},
    {"backwards", 2, {{9, 70000, false}, {1, 3, false}}, 2, {0, 1}, 2, {1, 0}},
    {"memory between",
     3,
     {{2, 100000, false}, {500000, 300000, true}, {400000, 100000, false}},
     2,
     {0, 2},
     3,
     {0, 1, 2}},
};

static uint8_t *src; /* [FILE_BYTES] what the file holds, too */

static UploadSpan span_of(const Part *p, const FileMap *map, uint8_t *dst)
{
    return (UploadSpan){.dst = dst,
                        .src = (p->memory ? src : map->data) + p->at,
                        .file = p->memory ? NULL : map,
                        .bytes = p->bytes};
}

/* Bytes lie in a window as far into a page as in the file. */
static int check_places(const Backend *b, const char *name)
{
    int wrong = 0;
    for (int i = 0; i < 2; i++) {
        const SpanWindow *w = &b->spans.window[i];
        for (int k = 0; k < w->n_cuts; k++) {
            const SpanCut *c = &w->cut[k];
            wrong += (size_t)(c->out - w->memory) % 4096 != ((uintptr_t)c->span.src + c->at) % 4096;
            wrong += c->out + c->bytes > w->memory + SPAN_WINDOW_BYTES;
        }
    }
    return check_int(name, wrong, 0);
}

static int check_case(Backend *b, const struct Case *c, const FileMap *map)
{
    int failed = 0;
    size_t at = 0, total = 1;
    Err e = {0};
    for (int i = 0; i < c->n_sent; i++)
        total += c->span[c->sent[i]].bytes;
    uint8_t *dst = calloc(1, total);
    if (!dst)
        return check_true("memory", false);
    cuda_spans_forget(b);
    for (int i = 0; i < c->n_said; i++) {
        UploadSpan span = span_of(&c->span[c->said[i]], map, NULL);
        failed += check_int(c->name, cuda_spans_announce(b, &span, &e), ST_OK);
    }
    for (int i = 0; i < c->n_sent; i++) {
        UploadSpan span = span_of(&c->span[c->sent[i]], map, dst + at);
        failed += check_int(c->name, cuda_spans_send(b, &span, 1, b->stream, "span", &e), ST_OK);
        at += span.bytes;
    }
    late_device_finish();
    at = 0;
    for (int i = 0; i < c->n_sent; i++) {
        const Part *p = &c->span[c->sent[i]];
        failed += check_int(c->name, memcmp(dst + at, src + p->at, p->bytes), 0);
        at += p->bytes;
    }
    failed += check_int(c->name, dst[at], 0);
    failed += check_places(b, c->name);
    free(dst);
    return failed;
}

/* Many short spans, more than a window has cuts. */
static int check_many(Backend *b, const FileMap *map)
{
    enum { N = 3 * SPAN_MAX_CUTS + 1, BYTES = 100 };
    static uint8_t dst[N * BYTES];
    int failed = 0;
    Err e = {0};
    cuda_spans_forget(b);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < N; i++) {
            UploadSpan span = {dst + i * BYTES, map->data + i * 1000, map, BYTES, NULL, SCALE_NONE};
            failed += check_int("many",
                                pass == 0 ? cuda_spans_announce(b, &span, &e)
                                          : cuda_spans_send(b, &span, 1, NULL, "many", &e),
                                ST_OK);
        }
    late_device_finish();
    for (int i = 0; i < N && failed == 0; i++)
        failed += check_int("many", memcmp(dst + i * BYTES, src + i * 1000, BYTES), 0);
    return failed;
}

/* What fails is told when it is sent, not what was announced with it; then it may be tried again. */
static int check_failures(Backend *b, const FileMap *map)
{
    static const struct {
        const char *name;
        Part part;
        FormatId format; /* whose codes they are */
        ScaleType scales;
        Status want;
        const char *text;
    } spans[] = {
        {"good codes", {64, 128, false}, FORMAT_BF16, SCALE_NONE, ST_OK, ""},
        {"codes", {1024, 128, false}, FORMAT_BF16, SCALE_NONE, ST_INPUT, "not a finite number"},
        {"scales", {2048, 70000, false}, FORMAT_MXFP4, SCALE_E8M0, ST_INPUT, "not a finite number"},
        {"bytes that nobody looks at", {2048, 70000, false}, FORMAT_MXFP4, SCALE_NONE, ST_OK, ""},
        {"the end",
         {FILE_BYTES / 2 - 63, 64, false},
         FORMAT_MXFP4,
         SCALE_NONE,
         ST_IO,
         "has become shorter: byte 36700160 is gone"},
    };
    enum { N = sizeof spans / sizeof *spans };
    static uint8_t dst[70000];
    int failed = 0;
    Err e = {0};
    cuda_spans_forget(b);
    for (int i = 0; i < 2 * N; i++) {
        UploadSpan span = span_of(&spans[i % N].part, map, dst);
        span.finite = finite_test(spans[i % N].format);
        span.scales = spans[i % N].scales;
        if (i < N) {
            failed += check_int(spans[i].name, cuda_spans_announce(b, &span, &e), ST_OK);
            continue;
        }
        failed += check_int(spans[i % N].name, cuda_spans_send(b, &span, 1, NULL, "span", &e),
                            spans[i % N].want);
        if (spans[i % N].want != ST_OK)
            failed += check_has(spans[i % N].name, e.text, spans[i % N].text);
    }
    late_device_finish();
    late.full = true;
    UploadSpan span = span_of(&spans[0].part, map, dst);
    failed +=
        check_int("a failed copy", cuda_spans_send(b, &span, 1, NULL, "layers.4", &e), ST_DEVICE);
    failed += check_str("a failed copy", e.text, "layers.4: the queue is full");
    late.full = false;
    return failed;
}

int main(void)
{
    int failed = 0;
    Err e = {0};
    FileMap map;
    temp_dir_enter();
    src = malloc(FILE_BYTES);
    if (!src)
        return check_true("memory", false);
    for (uint32_t i = 0; i < FILE_BYTES; i++)
        src[i] = (uint8_t)(i * 2654435761U >> 25); /* below 0x80: all finite but 0x7f, as codes */
    memset(src + 64, 0, 128);
    memset(src + 1024, 0, 128);
    src[1024 + 63] = 0x7f; /* bf16 infinity */
    src[1024 + 62] = 0x80;
    src[2048 + 66000] = 0xff;
    for (int threads = 1; threads <= 3; threads += 2) {
        temp_dir_put("x", src, FILE_BYTES);
        if (check_int("open", file_map_open("x", &map, &e), ST_OK))
            return check_str("open", e.text, "");
        late_device_reset();
        Backend b = {.api = &late_device, .stream = &late.streams[0]};
        if (team_create(&b.team, threads, &e) != ST_OK || cuda_spans_create(&b, &e) != ST_OK)
            return check_str("create", e.text, "");
        failed += check_int("pinned bytes", (int64_t)late.host, 2LL * SPAN_WINDOW_BYTES);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            failed += check_case(&b, &cases[i], &map);
        failed += check_many(&b, &map);
        failed += check_int("cut", truncate("x", FILE_BYTES / 2), 0);
        failed += check_failures(&b, &map);
        cuda_spans_destroy(&b);
        failed += check_int("events left", late.n_events, 0);
        team_destroy(b.team);
        file_unmap(&map);
    }
    free(src);
    return test_result(failed);
}
