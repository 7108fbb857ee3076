/* tests/io/test_tokenizer_families.c - five published tokenizers against the reference's ids,
 * texts, streams and pieces: everything in ../shared/tokenizers/<family>. Prints how many of each
 * kind were checked. */
#include "io/normalize.h"
#include "io/pretokenize.h"
#include "tests/io/tokenizer_cases.h"

#include <time.h>

typedef struct Case {
    char *text;
    size_t len;
    TokenIds ids; /* with the special tokens */
} Case;

typedef struct Family {
    const char *name;
    char dir[4096];
    Tokenizer *t;
    TokenizerCache *cache;
    TestJson file;
    Case *cases; /* by number */
    size_t n_cases;
    int failed, n_checked[6];
} Family;

enum { MOST_CASES = 1000 };
enum { KIND_CASE, KIND_DECODE, KIND_STREAM, KIND_PRETOK, KIND_LONG, KIND_VARIANT };

static bool open_lines(const Family *f, const char *file, TestLines *lines)
{
    char path[5000];
    test_path(path, sizeof path, "%s/%s", f->dir, file);
    FILE *there = fopen(path, "rb");
    if (!there)
        return false;
    fclose(there);
    return test_lines_open(lines, path);
}

static size_t case_number(const Family *f, const JsonValue *row, const char *key)
{
    int64_t n = -1;
    if (!json_int64(json_get(row, key), &n) || n < 0 || (size_t)n >= MOST_CASES) {
        fprintf(stderr, "%s: no case number\n", f->name);
        exit(1);
    }
    return (size_t)n;
}

static void check_cases(Family *f)
{
    TestLines lines;
    TokenIds got = {0}, want = {0};
    Err e;
    f->cases = calloc(MOST_CASES, sizeof *f->cases);
    if (!f->cases || !open_lines(f, "cases.jsonl", &lines))
        exit(1);
    while (test_lines_next(&lines)) {
        size_t n = case_number(f, lines.row, "n");
        const JsonValue *text = json_get(lines.row, "text"),
                        *special = json_get(lines.row, "ids_special");
        if (!text)
            exit(1);
        Case *c = &f->cases[n];
        c->text = malloc(text->len + 1);
        memcpy(c->text, text->text, text->len + 1);
        c->len = text->len;
        for (int with = 0; with < 2; with++) {
            got.n = 0;
            must(tokenizer_encode(f->t, f->cache, c->text, c->len, with, &got, &e), &e);
            ids_from_json(with && special ? special : json_get(lines.row, "ids"), &want);
            f->failed += check_ids(f->name, (int)n, &got, &want);
        }
        c->ids = want;
        want = (TokenIds){0};
        f->n_checked[KIND_CASE]++;
        f->n_cases = n + 1 > f->n_cases ? n + 1 : f->n_cases;
    }
    test_lines_close(&lines);
    tokenids_free(&got);
}

/* The ids of a row: its own, or those of the case it names. */
static void row_ids(const Family *f, const JsonValue *row, TokenIds *out)
{
    const JsonValue *own = json_get(row, "ids");
    if (own) {
        ids_from_json(own, out);
        return;
    }
    const TokenIds *from = &f->cases[case_number(f, row, "case")].ids;
    bool failed = false;
    out->n = 0;
    for (size_t i = 0; i < from->n; i++)
        tokenids_push(out, from->ids[i], &failed);
}

static void check_decode(Family *f)
{
    TestLines lines;
    TokenIds ids = {0};
    StrBuf got = {0};
    Err e;
    if (!open_lines(f, "decode.jsonl", &lines))
        exit(1);
    while (test_lines_next(&lines)) {
        row_ids(f, lines.row, &ids);
        const JsonValue *kept = json_get(lines.row, "text"),
                        *skipped = json_get(lines.row, "text_skip");
        for (int skip = 0; skip < 2; skip++) {
            const JsonValue *want = skip && skipped ? skipped : kept;
            strbuf_clear(&got);
            must(tokenizer_decode(f->t, ids.ids, ids.n, skip, &got, &e), &e);
            f->failed += check_text(f->name, lines.number, &got, want->text, want->len);
        }
        f->n_checked[KIND_DECODE]++;
    }
    test_lines_close(&lines);
    tokenids_free(&ids);
    strbuf_free(&got);
}

static void check_stream(Family *f)
{
    TestLines lines;
    TokenIds ids = {0};
    Err e;
    if (!open_lines(f, "stream.jsonl", &lines))
        exit(1);
    while (test_lines_next(&lines)) {
        TokenStream *s;
        row_ids(f, lines.row, &ids);
        const JsonValue *chunk = json_get(lines.row, "chunks")->child;
        must(tokenstream_create(f->t, true, &s, &e), &e);
        for (size_t i = 0; i < ids.n; i++, chunk = chunk->next) {
            StrBuf got = {0};
            must(tokenstream_step(s, ids.ids[i], &got, &e), &e);
            bool text = chunk->type == JSON_STRING;
            f->failed += check_text(f->name, lines.number, &got, text ? chunk->text : "",
                                    text ? chunk->len : 0);
            strbuf_free(&got);
        }
        f->failed += check_true("as many chunks as ids", chunk == NULL);
        tokenstream_free(s);
        f->n_checked[KIND_STREAM]++;
    }
    test_lines_close(&lines);
    tokenids_free(&ids);
}

static void check_pretok(Family *f)
{
    TestLines lines;
    Normalizer *normalizer;
    PreTokenizer *pre;
    NormalizeScratch nscratch = {0};
    PreScratch scratch = {0};
    Err e;
    if (!open_lines(f, "pretok.jsonl", &lines))
        return;
    must(normalizer_parse(json_get(f->file.value, "normalizer"), &normalizer, &e), &e);
    must(pretokenizer_parse(json_get(f->file.value, "pre_tokenizer"), &pre, &e), &e);
    while (test_lines_next(&lines)) {
        const Case *c = &f->cases[case_number(f, lines.row, "case")];
        const char *text;
        size_t len, i = 0;
        must(normalizer_run(normalizer, &nscratch, c->text, c->len, &text, &len, &e), &e);
        must(pretokenizer_run(pre, &scratch, text, len, true, &e), &e);
        const JsonValue *pieces = json_get(lines.row, "pieces");
        int wrong = pieces->len != scratch.pieces.n;
        for (const JsonValue *v = pieces->child; v && i < scratch.pieces.n; v = v->next) {
            int64_t want = -1;
            wrong += !json_int64(v, &want) || want != scratch.pieces.v[i++].len;
        }
        f->failed += check_int("wrong pieces", wrong, 0);
        f->n_checked[KIND_PRETOK]++;
    }
    test_lines_close(&lines);
    normalize_scratch_free(&nscratch);
    prescratch_free(&scratch);
    normalizer_free(normalizer);
    pretokenizer_free(pre);
}

static int64_t number(const JsonValue *v)
{
    int64_t n = -1;
    if (!json_int64(v, &n) || n < 0)
        exit(1);
    return n;
}

static void add_all(TokenIds *out, const JsonValue *list)
{
    TokenIds part = {0};
    bool failed = false;
    ids_from_json(list, &part);
    for (size_t i = 0; i < part.n; i++)
        tokenids_push(out, part.ids[i], &failed);
    tokenids_free(&part);
}

static void check_long(Family *f)
{
    TestLines lines;
    TokenIds got = {0}, want = {0};
    StrBuf text = {0};
    Err e;
    if (!open_lines(f, "long.jsonl", &lines))
        exit(1);
    while (test_lines_next(&lines)) {
        strbuf_clear(&text);
        got.n = want.n = 0;
        for (const JsonValue *part = json_get(lines.row, "parts")->child; part; part = part->next)
            for (int64_t n = number(part->child->next); n > 0; n--)
                strbuf_add(&text, part->child->text, part->child->len);
        const JsonValue *rle = json_get(lines.row, "rle");
        bool failed = false;
        for (const JsonValue *v = rle ? rle->child : NULL; v; v = v->next)
            for (int64_t n = number(v->child->next); n > 0; n--)
                tokenids_push(&want, (int32_t)number(v->child), &failed);
        if (!rle) {
            add_all(&want, json_get(lines.row, "head"));
            for (int64_t n = number(json_get(lines.row, "reps")); n > 0; n--)
                add_all(&want, json_get(lines.row, "period"));
            add_all(&want, json_get(lines.row, "tail"));
        }
        clock_t start = clock();
        must(tokenizer_encode(f->t, f->cache, text.data, text.len, false, &got, &e), &e);
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        f->failed += check_ids(f->name, lines.number, &got, &want);
        f->failed += check_int("n", (int64_t)got.n, number(json_get(lines.row, "n")));
        f->failed += check_true("a long text within two seconds", seconds < 2);
        f->n_checked[KIND_LONG]++;
    }
    test_lines_close(&lines);
    tokenids_free(&got);
    tokenids_free(&want);
    strbuf_free(&text);
}

/* Two members of the file replaced by those of the first line; the ids of all other cases stay. */
static void check_variant(Family *f)
{
    TestLines lines;
    Tokenizer *t;
    TokenIds got = {0}, want = {0};
    TestJson file = f->file;
    Err e;
    if (!open_lines(f, "variant-metaspace.jsonl", &lines) || !test_lines_next(&lines))
        return;
    StrBuf json = {0};
    /* The members stand in the file as written; the model is the long tail that stays. */
    const char *start = strstr(file.text.data, "\"normalizer\""),
               *model = strstr(file.text.data, "\"post_processor\"");
    if (!start || !model || start > model)
        exit(1);
    strbuf_add(&json, file.text.data, (size_t)(start - file.text.data));
    strbuf_str(&json, "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Metaspace\","
                      "\"replacement\":\"\xe2\x96\x81\","
                      "\"prepend_scheme\":\"first\",\"split\":false},");
    strbuf_str(&json, model);
    must(tokenizer_parse(json.data, json.len, NULL, 0, "variant", &t, &e), &e);
    TokenizerCache *cache;
    must(tokenizer_cache_create(t, &cache, &e), &e);
    char *seen = calloc(f->n_cases, 1);
    if (!seen)
        exit(1);
    for (bool more = test_lines_next(&lines); more; more = test_lines_next(&lines)) {
        size_t n = case_number(f, lines.row, "case");
        seen[n] = 1;
        ids_from_json(json_get(lines.row, "ids_special"), &want);
        got.n = 0;
        must(tokenizer_encode(t, cache, f->cases[n].text, f->cases[n].len, true, &got, &e), &e);
        f->failed += check_ids("variant", (int)n, &got, &want);
        f->n_checked[KIND_VARIANT]++;
    }
    for (size_t n = 0; n < f->n_cases; n++) {
        if (seen[n] || !f->cases[n].text)
            continue;
        got.n = 0;
        must(tokenizer_encode(t, cache, f->cases[n].text, f->cases[n].len, true, &got, &e), &e);
        f->failed += check_ids("variant, unchanged", (int)n, &got, &f->cases[n].ids);
    }
    free(seen);
    strbuf_free(&json);
    tokenids_free(&got);
    tokenids_free(&want);
    tokenizer_cache_free(cache);
    tokenizer_free(t);
    test_lines_close(&lines);
}

static int check_family(const char *shared, const char *name)
{
    Family f = {.name = name};
    char path[5000];
    Err e;
    test_path(f.dir, sizeof f.dir, "%s/tokenizers/%s", shared, name);
    test_path(path, sizeof path, "%s/tokenizer.json.gz", f.dir);
    if (!test_json_open(&f.file, path))
        return 1;
    must(tokenizer_parse(f.file.text.data, f.file.text.len, NULL, 0, name, &f.t, &e), &e);
    must(tokenizer_cache_create(f.t, &f.cache, &e), &e);
    check_cases(&f);
    check_decode(&f);
    check_stream(&f);
    check_pretok(&f);
    check_long(&f);
    check_variant(&f);
    printf("%-12s cases %d, decode %d, stream %d, pretok %d, long %d, variant %d: %d failed\n",
           name, f.n_checked[KIND_CASE], f.n_checked[KIND_DECODE], f.n_checked[KIND_STREAM],
           f.n_checked[KIND_PRETOK], f.n_checked[KIND_LONG], f.n_checked[KIND_VARIANT], f.failed);
    f.failed += check_int("all 781 cases are there", f.n_checked[KIND_CASE], 781);
    for (size_t i = 0; i < f.n_cases; i++) {
        free(f.cases[i].text);
        tokenids_free(&f.cases[i].ids);
    }
    free(f.cases);
    test_json_close(&f.file);
    tokenizer_cache_free(f.cache);
    tokenizer_free(f.t);
    return f.failed;
}

int main(void)
{
    static const char *const families[] = {"olmo", "mixtral", "deepseek-v3", "qwen3", "gpt-oss"};
    const char *shared = test_shared();
    int failed = 0;
    if (!shared)
        return test_skip("the published tokenizers are in ../shared");
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        failed += check_family(shared, families[i]);
    return test_result(failed);
}
