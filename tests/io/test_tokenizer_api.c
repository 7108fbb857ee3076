/* tests/io/test_tokenizer_api.c - the bundled model's tokenizer, and what callers rely on beside
 * ids: bytes of tokens, streams against whole decodes, errors, the same ids from cold and warm
 * caches and from many threads. */
#include "io/team.h"
#include "io/utf8.h"
#include "tests/io/tokenizer_cases.h"
#include "tests/support/temp_dir.h"

#include <time.h>

static uint32_t random_below(uint64_t *state, uint32_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)((*state >> 33) % n);
}

static const struct {
    const char *text;
    size_t n;
    int32_t ids[8];
} greetings[] = {
    {"", 0, {0}},
    {"Hello world", 4, {42, 500, 81, 992}},
    {"Hello<|endoftext|>", 4, {42, 500, 81, 0}},
    {"a\xe2\x80\xa8", 4, {67, 161, 225, 104}},
};

static int check_storyteller(const Tokenizer *t, TokenizerCache *c)
{
    int failed = 0;
    Err e;
    size_t len;
    TokenIds ids = {0};
    for (size_t i = 0; i < sizeof greetings / sizeof *greetings; i++) {
        TokenIds want = {.ids = (int32_t *)greetings[i].ids, .n = greetings[i].n};
        ids.n = 0;
        must(tokenizer_encode(t, c, greetings[i].text, strlen(greetings[i].text), true, &ids, &e),
             &e);
        failed += check_ids(greetings[i].text, (int)i, &ids, &want);
    }
    /* Ids are appended, and a failure leaves them as they were. */
    size_t before = ids.n;
    failed +=
        check_int("bad UTF-8", tokenizer_encode(t, c, "ok \xe2\x82", 5, true, &ids, &e), ST_INPUT);
    failed += check_has("bad UTF-8", e.text, "not valid UTF-8 at byte 3");
    failed += check_int("nothing is appended", (int64_t)ids.n, (int64_t)before);
    must(tokenizer_encode(t, c, "Hello", 5, false, &ids, &e), &e);
    failed += check_int("appended", (int64_t)ids.n, (int64_t)before + 3);
    tokenids_free(&ids);

    failed += check_int("ids", tokenizer_n_ids(t), 4096);
    failed += check_int("eos", tokenizer_eos_id(t), 0);
    failed += check_int("bos", tokenizer_bos_id(t), -1);
    failed += check_int("by name", tokenizer_token_id(t, "<|im_end|>", 10), 2);
    failed += check_int("by vocabulary string", tokenizer_token_id(t, "\xc4\xa0world", 7), 992);
    failed += check_int("no such token", tokenizer_token_id(t, " world", 6), -1);
    failed += check_true("special", tokenizer_is_special(t, 0) && !tokenizer_is_special(t, 992));
    failed += check_true("not a token",
                         !tokenizer_is_special(t, -1) && !tokenizer_is_special(t, 1 << 30));
    failed += check_str("string", tokenizer_token_string(t, 992, &len), "\xc4\xa0world");
    const char *bytes = tokenizer_token_bytes(t, 992, &len);
    failed += check_true("bytes", len == 6 && memcmp(bytes, " world", 6) == 0);
    bytes = tokenizer_token_bytes(t, 161, &len);
    failed += check_true("half a character", len == 1 && bytes[0] == '\xe2');
    failed += check_true("no bytes", !tokenizer_token_bytes(t, 5000, &len) && len == 0);
    failed += check_true("no string", !tokenizer_token_string(t, -5, &len) && len == 0);
    return failed;
}

/* Random ids: the tokens' bytes, repaired, are the decoded text; a stream gives its beginning,
 * chunk by chunk, and all of it but what is broken at the end. */
static int check_streams(const Tokenizer *t, bool bytes_join, const char *name)
{
    int failed = 0;
    uint64_t state = 5;
    Err e;
    for (int round = 0; round < 300; round++) {
        StrBuf streamed = {0}, whole = {0}, raw = {0}, repaired = {0};
        int32_t ids[60];
        size_t n = random_below(&state, 60), len;
        TokenStream *s;
        must(tokenstream_create(t, false, &s, &e), &e);
        for (size_t i = 0; i < n; i++) {
            bool byte = random_below(&state, 3) == 0; /* single bytes, so that characters break */
            ids[i] = (int32_t)random_below(&state, byte ? 260 : (uint32_t)tokenizer_n_ids(t) + 5);
            must(tokenstream_step(s, ids[i], &streamed, &e), &e);
            const char *bytes = tokenizer_token_bytes(t, ids[i], &len);
            strbuf_add(&raw, bytes ? bytes : "", len);
        }
        must(tokenizer_decode(t, ids, n, false, &whole, &e), &e);
        failed += check_int(name, (int64_t)utf8_first_bad(whole.data ? whole.data : "", whole.len),
                            (int64_t)whole.len);
        utf8_add_repaired(&repaired, raw.data ? raw.data : "", raw.len);
        if (bytes_join) {
            failed += check_text("bytes of tokens", round, &repaired, whole.data ? whole.data : "",
                                 whole.len);
            failed += check_true(
                "a stream gives the beginning",
                streamed.len <= whole.len &&
                    (!streamed.len || memcmp(streamed.data, whole.data, streamed.len) == 0));
            for (size_t i = streamed.len; i < whole.len;
                 i += 3) /* what is held back is broken characters only */
                failed +=
                    check_true("held back", whole.len - i >= 3 &&
                                                memcmp(whole.data + i, "\xef\xbf\xbd", 3) == 0);
        }
        tokenstream_free(s);
        strbuf_free(&streamed);
        strbuf_free(&whole);
        strbuf_free(&raw);
        strbuf_free(&repaired);
    }
    return failed;
}

/* 30,000 ids that never complete a character: held back all along, at the cost of each id alone. */
static int check_long_hold(const Tokenizer *t)
{
    TokenStream *s;
    StrBuf out = {0};
    Err e;
    int32_t half = tokenizer_token_id(t, "\xc3\xa2", 2);
    clock_t start = clock();
    must(tokenstream_create(t, false, &s, &e), &e);
    for (int i = 0; i < 30000; i++)
        must(tokenstream_step(s, half, &out, &e), &e);
    int failed = check_int("nothing yet", (int64_t)out.len, 0);
    must(tokenstream_step(s, 42, &out, &e), &e);
    failed += check_int("all of it", (int64_t)out.len, 3 * 30000 + 1);
    failed += check_true("within a second", clock() - start < CLOCKS_PER_SEC);
    tokenstream_free(s);
    strbuf_free(&out);
    return failed;
}

typedef struct Threads {
    const Tokenizer *t;
    const StrBuf *text;
    TokenizerCache *caches[5];
    TokenIds out[40];
} Threads;

/* Part task of the text, twice, the second time from a warm cache. */
static void encode_part(void *ctx, int task, int thread)
{
    Threads *k = ctx;
    Err e;
    size_t start = (size_t)task * 500;
    for (int round = 0; round < 2; round++) {
        k->out[task].n = 0;
        must(tokenizer_encode(k->t, k->caches[thread], k->text->data + start, 500, true,
                              &k->out[task], &e),
             &e);
    }
}

static int check_threads(const Tokenizer *t)
{
    static const char *const words[] = {"Once ",        "upon", " a time", "\n", "3.14",
                                        "<|im_start|>", "...",  "  ",      "Zq"};
    StrBuf text = {0};
    uint64_t state = 9;
    Threads k = {.t = t, .text = &text};
    Team *team;
    Err e;
    int failed = 0;
    while (text.len < 40 * 500)
        strbuf_str(&text, words[random_below(&state, 9)]);
    must(team_create(&team, 5, &e), &e);
    for (int i = 0; i < 5; i++)
        must(tokenizer_cache_create(t, &k.caches[i], &e), &e);
    team_run(team, 40, encode_part, &k);
    for (int i = 0; i < 40; i++) {
        TokenizerCache *cold;
        TokenIds want = {0};
        must(tokenizer_cache_create(t, &cold, &e), &e);
        must(tokenizer_encode(t, cold, text.data + 500 * i, 500, true, &want, &e), &e);
        failed += check_ids("from five threads", i, &k.out[i], &want);
        tokenizer_cache_free(cold);
        tokenids_free(&want);
        tokenids_free(&k.out[i]);
    }
    for (int i = 0; i < 5; i++)
        tokenizer_cache_free(k.caches[i]);
    team_destroy(team);
    strbuf_free(&text);
    return failed;
}

#define MODEL "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"merges\":[],\"vocab\":{"
#define DECODER                                                                                    \
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"         \
    "\"String\":\"\xe2\x96\x81\"},"                                                                \
    "\"content\":\" "                                                                              \
    "\"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \","   \
    "\"start\":1,\"stop\":0}]},"

/* What one id stands for, for each kind of decoder. */
static const struct {
    const char *name, *file;
    int32_t id;
    const char *want;
} token_bytes[] = {
    {"a marker",
     "{" DECODER MODEL "\"\xe2\x96\x81"
     "a\":0}}}",
     0, " a"},
    {"a byte", "{" DECODER MODEL "\"<0xC3>\":0}}}", 0, "\xc3"},
    {"no byte", "{" DECODER MODEL "\"<0xC3>>\":0}}}", 0, "<0xC3>>"},
    {"Metaspace",
     "{\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"_\"}," MODEL "\"_a_\":0}}}", 0, " a "},
    {"byte level", "{\"decoder\":{\"type\":\"ByteLevel\"}," MODEL "\"\xc4\xa0\xc3\xa9\":0}}}", 0,
     " \xe9"},
    {"beyond the alphabet",
     "{\"decoder\":{\"type\":\"ByteLevel\"}," MODEL "\"\xc4\xa0\xe4\xb8\xad\":0}}}", 0,
     "\xc4\xa0\xe4\xb8\xad"},
    {"no decoder", "{" MODEL "\"a\":0}}}", 0, " a"},
};

static int check_token_bytes(void)
{
    int failed = 0;
    Tokenizer *t;
    Err e;
    for (size_t i = 0; i < sizeof token_bytes / sizeof *token_bytes; i++) {
        size_t len;
        must(tokenizer_parse(token_bytes[i].file, strlen(token_bytes[i].file), NULL, 0,
                             token_bytes[i].name, &t, &e),
             &e);
        const char *got = tokenizer_token_bytes(t, token_bytes[i].id, &len);
        failed += check_true(token_bytes[i].name, got && len == strlen(token_bytes[i].want) &&
                                                      memcmp(got, token_bytes[i].want, len) == 0);
        tokenizer_free(t);
    }
    /* clean_up_tokenization_spaces counts for whole decodes only. */
    static const char file[] = "{" MODEL "\"we\":0,\"'re\":1,\"here\":2,\".\":3}}}";
    static const char config[] = "{\"clean_up_tokenization_spaces\":true}";
    static const int32_t ids[] = {0, 1, 2, 3};
    StrBuf text = {0};
    strbuf_str(&text, "a . ");
    must(tokenizer_parse(file, strlen(file), config, strlen(config), "clean up", &t, &e), &e);
    must(tokenizer_decode(t, ids, 4, false, &text, &e), &e);
    failed += check_str("clean up", text.data, "a . we're here.");
    strbuf_free(&text);
    tokenizer_free(t);
    return failed;
}

static int check_load(const char *source)
{
    int failed = 0;
    char path[4096];
    Tokenizer *t;
    Err e;
    char dir[TEMP_DIR_MAX];
    failed += check_true("a directory of our own", temp_dir_create(dir));
    must(tokenizer_load(dir, &t, &e), &e);
    failed += check_true("a directory without a tokenizer", t == NULL);
    test_path(path, sizeof path, "%s/absent", dir);
    failed += check_int("no such path", tokenizer_load(path, &t, &e), ST_IO);
    failed += check_has("no such path", e.text, path);
    temp_dir_remove(dir);
    test_path(path, sizeof path, "%s/tests/data/storyteller/config.json", source);
    failed += check_int("not a tokenizer", tokenizer_load(path, &t, &e), ST_INPUT);
    failed += check_has("not a tokenizer", e.text, path);
    return failed;
}

int main(void)
{
    const char *source = getenv("SOURCE");
    char path[4096];
    Tokenizer *t, *fallback;
    TokenizerCache *c;
    Err e;
    source = source ? source : ".";
    test_path(path, sizeof path, "%s/tests/data/storyteller", source);
    must(tokenizer_load(path, &t, &e), &e);
    must(tokenizer_cache_create(t, &c, &e), &e);
    int failed =
        check_storyteller(t, c) + check_streams(t, true, "storyteller") + check_long_hold(t);
    failed += check_threads(t) + check_token_bytes() + check_load(source);
    TestJson file;
    test_path(path, sizeof path, "%s/tests/data/tokenizers/sp-prepend.json", source);
    if (!test_json_open(&file, path))
        return 1;
    const char *json = strstr(file.text.data, "{\"version\""),
               *end = strstr(file.text.data, ",\"cases\"");
    must(tokenizer_parse(json, (size_t)(end - json), NULL, 0, "byte fallback", &fallback, &e), &e);
    failed += check_streams(fallback, false, "byte fallback");
    test_json_close(&file);
    tokenizer_free(fallback);
    tokenizer_cache_free(c);
    tokenizer_free(t);
    return test_result(failed);
}
