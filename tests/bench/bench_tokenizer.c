/* tests/bench/bench_tokenizer.c - load time, and encode and decode speed on one core, of the
 * published tokenizers in SHARED/tokenizers, beside the reference's.
 *
 *   SHARED=../shared bench_tokenizer [--mb N] [--text FILE]
 *
 * The text is N MB (default 8) of the English, code and CJK texts of cases.jsonl in changing order,
 * or of FILE. "fresh" encodes it in parts of 64 KB with a new cache each, the lower bound for short
 * prompts. The reference's own encode ran at 1.3 to 2.8 MB/s on one core on such text. */
#include "io/tokenizer.h"
#include "tests/support/check.h"
#include "tests/support/files.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Processor time of this thread: what a core does, whoever else is on the machine. */
static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void build_text(const char *shared, size_t bytes, StrBuf *out)
{
    static const char *const wanted[] = {"english",     "code",   "cjk", "scripts",
                                         "contraction", "digits", "case"};
    char path[4096];
    TestLines lines;
    StrBuf all = {0};
    size_t start[1000], n = 0;
    test_path(path, sizeof path, "%s/tokenizers/gpt-oss/cases.jsonl", shared);
    must(test_lines_open(&lines, path), path);
    while (test_lines_next(&lines)) {
        const JsonValue *text = json_get(lines.row, "text");
        for (size_t k = 0; k < sizeof wanted / sizeof *wanted && n < 999; k++) {
            if (!json_is_string(json_get(lines.row, "cat"), wanted[k]))
                continue;
            start[n++] = all.len;
            strbuf_add(&all, text->text, text->len);
            strbuf_str(&all, "\n");
        }
    }
    start[n] = all.len;
    test_lines_close(&lines);
    must(n > 0, "no texts");
    uint64_t random = 1;
    while (out->len < bytes && !out->failed) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        size_t i = (size_t)(random >> 33) % n;
        strbuf_add(out, all.data + start[i], start[i + 1] - start[i]);
    }
    strbuf_free(&all);
}

/* Where a part of about want bytes ends without cutting a character. */
static size_t part_end(const StrBuf *text, size_t at, size_t want)
{
    size_t end = text->len - at < want ? text->len : at + want;
    while (end < text->len && (text->data[end] & 0xc0) == 0x80)
        end++;
    return end;
}

static double encode_all(const Tokenizer *t, TokenizerCache *kept, const StrBuf *text,
                         TokenIds *ids)
{
    Err e;
    double start = cpu_s();
    ids->n = 0;
    for (size_t at = 0; at < text->len;) {
        TokenizerCache *c = kept;
        if (!kept)
            must(tokenizer_cache_create(t, &c, &e) == ST_OK, "no cache");
        size_t end = part_end(text, at, 64 << 10);
        must(tokenizer_encode(t, c, text->data + at, end - at, false, ids, &e) == ST_OK,
             "encode fails");
        if (!kept)
            tokenizer_cache_free(c);
        at = end;
    }
    return cpu_s() - start;
}

static void run_family(const char *shared, const char *name, const StrBuf *text)
{
    char path[4096];
    StrBuf json = {0}, back = {0};
    Tokenizer *t;
    TokenizerCache *c;
    TokenIds ids = {0};
    Err e;
    test_path(path, sizeof path, "%s/tokenizers/%s/tokenizer.json.gz", shared, name);
    must(test_read(path, &json), path);
    double start = cpu_s();
    must(tokenizer_parse(json.data, json.len, NULL, 0, name, &t, &e) == ST_OK,
         "the tokenizer does not load");
    double load_s = cpu_s() - start;
    must(tokenizer_cache_create(t, &c, &e) == ST_OK, "no cache");
    encode_all(t, c, text, &ids);
    double best = 1e9, fresh = 1e9, decode = 1e9;
    for (int i = 0; i < 5; i++) {
        double s = encode_all(t, c, text, &ids);
        best = s < best ? s : best;
        s = encode_all(t, NULL, text, &ids);
        fresh = s < fresh ? s : fresh;
        strbuf_clear(&back);
        start = cpu_s();
        must(tokenizer_decode(t, ids.ids, ids.n, false, &back, &e) == ST_OK, "decode fails");
        s = cpu_s() - start;
        decode = s < decode ? s : decode;
    }
    double mb = (double)text->len / 1e6;
    printf("%-12s %8.0f %10.1f %10.1f %10.1f %12.2f %9.1f\n", name, load_s * 1e3, mb / best,
           mb / fresh, mb / decode, (double)text->len / (double)ids.n, mb / best / 2.8);
    tokenids_free(&ids);
    tokenizer_cache_free(c);
    tokenizer_free(t);
    strbuf_free(&json);
    strbuf_free(&back);
}

int main(int argc, char **argv)
{
    static const char *const families[] = {"gpt-oss", "qwen3", "deepseek-v3", "mixtral", "olmo"};
    const char *shared = test_shared(), *file = NULL;
    double mb = 8;
    StrBuf text = {0};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--mb") == 0)
            mb = atof(argv[i + 1]);
        else if (strcmp(argv[i], "--text") == 0)
            file = argv[i + 1];
    }
    if (!shared)
        return test_skip("the published tokenizers are in SHARED");
    if (file)
        must(test_read(file, &text) && text.len > 0, file);
    else
        build_text(shared, (size_t)(mb * 1e6), &text);
    must(!text.failed, "no memory");
    printf("%.1f MB of text, one core, best of 5; the reference: 1.3 to 2.8 MB/s\n",
           (double)text.len / 1e6);
    printf("%-12s %8s %10s %10s %10s %12s %9s\n", "family", "load ms", "MB/s", "fresh", "decode",
           "bytes/token", "x 2.8");
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        run_family(shared, families[i], &text);
    strbuf_free(&text);
    return 0;
}
