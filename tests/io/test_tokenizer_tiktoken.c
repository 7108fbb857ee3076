/* tests/io/test_tokenizer_tiktoken.c - a small vocabulary in Kimi's format, against the ids that
 * tiktoken gives (tests/data/tokenizers/tiktoken), and damaged files. */
#include "io/cut.h"
#include "io/utf8.h"
#include "tests/io/tokenizer_cases.h"

typedef struct Kimi {
    Tokenizer *t;
    TokenizerCache *cache;
    TokenIds got, want;
    StrBuf text;
    int n_texts, n_long, n_decodes;
} Kimi;

static int64_t number(const JsonValue *v)
{
    int64_t n;
    if (!json_int64(v, &n)) {
        fprintf(stderr, "a number is missing in the test data\n");
        exit(1);
    }
    return n;
}

static int check_encode(Kimi *k, int line, const char *text, size_t len)
{
    Err e;
    int failed = 0;
    for (int special = 0; special < 2; special++) { /* nothing is put around a text */
        k->got.n = 0;
        must(tokenizer_encode(k->t, k->cache, text, len, special, &k->got, &e), &e);
        failed += check_ids("cases.jsonl", line, &k->got, &k->want);
    }
    return failed;
}

static int check_long(Kimi *k, int line, const JsonValue *row)
{
    bool none = false;
    strbuf_clear(&k->text);
    for (const JsonValue *p = json_get(row, "parts")->child; p; p = p->next)
        for (int64_t i = number(p->child->next); i > 0; i--)
            strbuf_add(&k->text, p->child->text, p->child->len);
    k->want.n = 0;
    for (const JsonValue *r = json_get(row, "runs")->child; r; r = r->next)
        for (int64_t i = number(r->child->next); i > 0; i--)
            for (const JsonValue *id = r->child->child; id; id = id->next)
                tokenids_push(&k->want, (int32_t)number(id), &none);
    if (none || k->text.failed)
        exit(1);
    k->n_long++;
    return check_encode(k, line, k->text.data, k->text.len);
}

static int check_decode(Kimi *k, int line, const JsonValue *row)
{
    static const char *const keys[] = {"text", "skipped"};
    Err e;
    int failed = 0;
    ids_from_json(json_get(row, "decode"), &k->want);
    for (int skip = 0; skip < 2; skip++) {
        const JsonValue *want = json_get(row, keys[skip]);
        strbuf_clear(&k->text);
        must(tokenizer_decode(k->t, k->want.ids, k->want.n, skip, &k->text, &e), &e);
        failed += check_text("cases.jsonl", line, &k->text, want->text, want->len);
    }
    k->n_decodes++;
    return failed;
}

/* A character behind the longest run of spaces that stays whole is cut off when it is one more. */
static int check_spaces(const JsonValue *list)
{
    static char text[CUT_RUN + 4];
    static const uint32_t ranges[][2] = {{0, 0x100},       {0x1670, 0x1690}, {0x1800, 0x1810},
                                         {0x1ff0, 0x2070}, {0x2ff0, 0x3010}, {0xfef0, 0xff10}};
    int failed = 0, n = 0;
    memset(text, ' ', CUT_RUN);
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++)
        for (uint32_t code = ranges[r][0]; code < ranges[r][1]; code++) {
            char name[40];
            size_t left = CUT_BLOCK, len = CUT_RUN + utf8_put(text + CUT_RUN, code);
            bool space = false;
            for (const JsonValue *v = list->child; v; v = v->next)
                space = space || number(v) == code;
            n += space;
            snprintf(name, sizeof name, "cut before U+%04X", (unsigned)code);
            failed += check_int(name, (int64_t)cut_next(text, len, &left),
                                (int64_t)(space ? CUT_RUN : len));
        }
    return failed + check_int("all of str.isspace", n, (int64_t)list->len);
}

static int check_cases(Kimi *k, const char *dir)
{
    char path[5000];
    TestLines lines;
    int failed = 0;
    test_path(path, sizeof path, "%s/cases.jsonl", dir);
    if (!test_lines_open(&lines, path))
        return 1;
    while (test_lines_next(&lines)) {
        const JsonValue *row = lines.row, *text = json_get(row, "text");
        if (json_get(row, "isspace")) {
            failed += check_spaces(json_get(row, "isspace"));
        } else if (json_get(row, "parts")) {
            failed += check_long(k, lines.number, row);
        } else if (json_get(row, "decode")) {
            failed += check_decode(k, lines.number, row);
        } else {
            ids_from_json(json_get(row, "ids"), &k->want);
            failed += check_encode(k, lines.number, text->text, text->len);
            k->n_texts++;
        }
    }
    test_lines_close(&lines);
    printf("%d texts, %d long ones, %d decodes: %d failed\n", k->n_texts, k->n_long, k->n_decodes,
           failed);
    return failed + check_true("all kinds of cases are there",
                               k->n_texts > 300 && k->n_long > 30 && k->n_decodes > 100);
}

/* What a token is called, and what its id says. */
static int check_tokens(const Kimi *k)
{
    static const struct {
        const char *name;
        int32_t behind; /* id, counted from the first special one; or */
        int32_t id;     /* -1 */
        bool special;
        const char *bytes;
    } tokens[] = {
        {"!", -1, 0, false, "!"},
        {"\xc4\xa0", -1, 220, false, " "}, /* spelled in the byte alphabet */
        {"[BOS]", 0, -1, true, "[BOS]"},
        {"[EOS]", 1, -1, true, "[EOS]"},
        {"<think>", 12, -1, false, "<think>"},
        {"<|\xe6\x80\x9d\xe8\x80\x83\xc3\xa9|>", 13, -1, false,
         "<|\xe6\x80\x9d\xe8\x80\x83\xc3\xa9|>"}, /* not taken for the byte 0xe9 */
        {"[PAD]", 255, -1, true, "[PAD]"},
    };
    int32_t first = tokenizer_n_ids(k->t) - 256;
    char name[40];
    size_t len;
    int failed = check_int("bos", tokenizer_bos_id(k->t), first);
    failed += check_int("eos", tokenizer_eos_id(k->t), first + 1);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        int32_t id = tokens[i].id < 0 ? first + tokens[i].behind : tokens[i].id;
        size_t n = strlen(tokens[i].bytes);
        failed += check_int(tokens[i].name,
                            tokenizer_token_id(k->t, tokens[i].name, strlen(tokens[i].name)), id);
        failed += check_int(tokens[i].name, tokenizer_is_special(k->t, id), tokens[i].special);
        const char *bytes = tokenizer_token_bytes(k->t, id, &len);
        failed +=
            check_true(tokens[i].name, bytes && len == n && !memcmp(bytes, tokens[i].bytes, n));
        const char *string = tokenizer_token_string(k->t, id, &len);
        failed += check_true(tokens[i].name, string && len == strlen(tokens[i].name) &&
                                                 !memcmp(string, tokens[i].name, len));
    }
    snprintf(name, sizeof name, "<|reserved_token_%d|>", first + 20);
    failed += check_int(name, tokenizer_token_id(k->t, name, strlen(name)), first + 20);
    failed += check_int(name, tokenizer_is_special(k->t, first + 20), false);
    return failed;
}

/* ---- damaged files ---- */

static void add_base64(StrBuf *b, const uint8_t *bytes, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t group = (uint32_t)bytes[i] << 16;
        group |= i + 1 < n ? (uint32_t)bytes[i + 1] << 8 : 0;
        group |= i + 2 < n ? bytes[i + 2] : 0;
        strbuf_fmt(b, "%c%c%c%c", digits[group >> 18], digits[group >> 12 & 63],
                   i + 1 < n ? digits[group >> 6 & 63] : '=', i + 2 < n ? digits[group & 63] : '=');
    }
}

/* 256 lines, a token for every byte, with line replaced by text (NULL: left as it is) and end
 * behind each. */
static void make_ranks(StrBuf *b, int line, const char *text, const char *end)
{
    strbuf_clear(b);
    for (int i = 0; i < 256; i++) {
        uint8_t byte = (uint8_t)i;
        if (i + 1 == line && text) {
            strbuf_fmt(b, "%s%s", text, end);
            continue;
        }
        add_base64(b, &byte, 1);
        strbuf_fmt(b, " %d%s", i, end);
    }
}

#define CLASS "\"tokenizer_class\":\"TikTokenTokenizer\","
#define ADDED "\"added_tokens_decoder\":"

/* Both kinds of files against the message that they must give; NULL: they load. */
static const struct {
    const char *what;
    int line; /* of the ranks that text replaces */
    const char *text, *end, *config, *message;
} damages[] = {
    {"nothing", 0, NULL, "\n", NULL, NULL},
    {"CR LF", 0, NULL, "\r\n", NULL, NULL},
    {"blank lines", 0, NULL, "\n\n", NULL, NULL},
    {"no rank", 7, "Bg==", "\n", NULL, "ranks: line 7: it is not"},
    {"a rank that is a word", 7, "Bg== six", "\n", NULL, "ranks: line 7: the rank \"six\""},
    {"a rank with a sign", 7, "Bg== +6", "\n", NULL, "line 7: the rank \"+6\""},
    {"a rank with a zero", 7, "Bg== 06", "\n", NULL, "line 7: the rank \"06\""},
    {"a rank behind a gap", 7, "Bg== 256", "\n", NULL, "line 7: the rank \"256\""},
    {"an endless rank", 7, "Bg== 18446744073709551622", "\n", NULL,
     "line 7: the rank \"1844674407"},
    {"two spaces", 7, "Bg==  6", "\n", NULL, "line 7: the rank \" 6\""},
    {"no token", 7, " 6", "\n", NULL, "line 7: \"\" is not the base64"},
    {"base64 too short", 7, "Bg= 6", "\n", NULL, "line 7: \"Bg=\" is not the base64"},
    {"base64 with a stray bit", 7, "Bh== 6", "\n", NULL, "line 7: \"Bh==\" is not the base64"},
    {"base64 with inner padding", 7, "Bg==Bg== 6", "\n", NULL, "line 7: \"Bg==Bg==\" is not"},
    {"base64 of another alphabet", 7, "B_-= 6", "\n", NULL, "line 7: \"B_-=\" is not the base64"},
    {"only padding", 7, "==== 6", "\n", NULL, "line 7: \"====\" is not the base64"},
    {"a rank twice", 7, "Bgc= 5", "\n", NULL, "line 7: the rank 5 comes twice"},
    {"a token twice", 7, "BQ== 6", "\n", NULL, "line 7: the token has the rank 5 already"},
    {"a byte without a token", 7, "Bgc= 6", "\n", NULL,
     "ranks: no token stands for the single byte 0x06"},
    {"an empty file", 0, NULL, "", "", "ranks: it has 0 tokens"},
    {"bad JSON", 0, NULL, "\n", "{", "ranks: tokenizer_config.json: "},
    {"a list", 0, NULL, "\n", "[]", "it is not an object"},
    {"no class", 0, NULL, "\n", "{" ADDED "{}}", "the tokenizer class (none) is not supported"},
    {"another class", 0, NULL, "\n", "{\"tokenizer_class\":\"QWenTokenizer\"," ADDED "{}}",
     "the tokenizer class QWenTokenizer is not supported"},
    {"another class in a map", 0, NULL, "\n",
     "{" CLASS "\"auto_map\":{\"AutoTokenizer\":[\"a.MyTikTokenTokenizer\",null]}," ADDED "{}}",
     "the tokenizer class a.MyTikTokenTokenizer is not supported"},
    {"a class in the map only", 0, NULL, "\n",
     "{\"auto_map\":{\"AutoTokenizer\":[\"a.TikTokenTokenizer\",null]}," ADDED "{}}", NULL},
    {"no names", 0, NULL, "\n", "{" CLASS "\"bos_token\":null}",
     "added_tokens_decoder, which names"},
    {"names in a list", 0, NULL, "\n", "{" CLASS ADDED "[]}",
     "added_tokens_decoder is not an object"},
    {"a name for a word", 0, NULL, "\n", "{" CLASS ADDED "{\"x\":{\"content\":\"a\"}}}",
     "added_tokens_decoder: \"x\" is not an id"},
    {"an id of the ranks", 0, NULL, "\n", "{" CLASS ADDED "{\"255\":{\"content\":\"a\"}}}",
     "added_tokens_decoder: \"a\" has id 255, expected one from 256 to 4194303"},
    {"an id beyond all", 0, NULL, "\n", "{" CLASS ADDED "{\"4194304\":{\"content\":\"a\"}}}",
     "\"a\" has id 4194304"},
    {"an id beyond the reserved ones", 0, NULL, "\n",
     "{" CLASS ADDED "{\"999\":{\"content\":\"a\"}}}", NULL},
    {"an id twice", 0, NULL, "\n",
     "{" CLASS ADDED "{\"300\":{\"content\":\"a\"},\"300\":{\"content\":\"b\"}}}",
     "added_tokens_decoder: the id 300 comes twice"},
    {"a name twice", 0, NULL, "\n",
     "{" CLASS ADDED "{\"300\":{\"content\":\"a\"},\"301\":{\"content\":\"a\"}}}",
     "\"a\" is the name of two tokens"},
    {"a reserved name", 0, NULL, "\n",
     "{" CLASS ADDED "{\"300\":{\"content\":\"<|reserved_token_301|>\"}}}",
     "\"<|reserved_token_301|>\" is the name of two tokens"},
    {"an empty name", 0, NULL, "\n", "{" CLASS ADDED "{\"300\":{\"content\":\"\"}}}",
     "token 300 has no usable name"},
    {"a flag", 0, NULL, "\n", "{" CLASS ADDED "{\"300\":{\"content\":\"a\",\"lstrip\":true}}}",
     "\"a\": single_word, lstrip and rstrip are not supported"},
    {"a BOS that is no token", 0, NULL, "\n", "{" CLASS ADDED "{},\"bos_token\":\"<s>\"}",
     "\"bos_token\" is \"<s>\", which is not in added_tokens_decoder"},
    {"a BOS that is a number", 0, NULL, "\n", "{" CLASS ADDED "{},\"bos_token\":1}",
     "\"bos_token\" is not the name of a token"},
    {"a special token that is none", 0, NULL, "\n",
     "{" CLASS ADDED "{},\"additional_special_tokens\":[\"<s>\"]}",
     "\"additional_special_tokens\" is \"<s>\""},
};

static int check_parse(const char *what, const StrBuf *ranks, const char *config,
                       const char *message)
{
    Tokenizer *t;
    Err e = {0};
    Status st =
        tokenizer_parse_tiktoken(ranks->data, ranks->len, config, strlen(config), "ranks", &t, &e);
    int failed = check_int(what, st, message ? ST_INPUT : ST_OK);
    if (message)
        failed += check_has(what, e.text, message) + check_true(what, t == NULL);
    tokenizer_free(t);
    return failed;
}

static int check_damages(void)
{
    StrBuf ranks = {0}, line = {0};
    int failed = 0;
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        make_ranks(&ranks, damages[i].line, damages[i].text, damages[i].end);
        if (!*damages[i].end)
            strbuf_clear(&ranks);
        failed += check_parse(damages[i].what, &ranks,
                              damages[i].config ? damages[i].config : "{" CLASS ADDED "{}}",
                              damages[i].message);
    }
    /* The longest token that is accepted, and one more. */
    static uint8_t bytes[4097];
    for (size_t n = 4096; n <= 4097; n++) {
        make_ranks(&ranks, 0, NULL, "\n");
        strbuf_clear(&line);
        add_base64(&line, bytes, n);
        strbuf_fmt(&line, " 256");
        strbuf_add(&ranks, line.data, line.len); /* without a line end */
        failed += check_parse("a long token", &ranks, "{" CLASS ADDED "{}}",
                              n == 4096 ? NULL : "line 257: the token is longer than 4096 bytes");
    }
    strbuf_free(&ranks);
    strbuf_free(&line);
    return failed;
}

int main(void)
{
    char dir[4096], path[5000];
    const char *source = getenv("SOURCE");
    Kimi k = {0};
    Tokenizer *alone;
    Err e = {0};
    test_path(dir, sizeof dir, "%s/tests/data/tokenizers/tiktoken", source ? source : ".");
    must(tokenizer_load(dir, &k.t, &e), &e);
    must(tokenizer_cache_create(k.t, &k.cache, &e), &e);
    int failed = check_cases(&k, dir) + check_tokens(&k) + check_damages();
    test_path(path, sizeof path, "%s/tiktoken.model", dir);
    failed += check_int("ranks alone", tokenizer_load(path, &alone, &e), ST_INPUT);
    failed += check_has("ranks alone", e.text, "it needs its directory's tokenizer_config.json");
    tokenids_free(&k.got);
    tokenids_free(&k.want);
    strbuf_free(&k.text);
    tokenizer_cache_free(k.cache);
    tokenizer_free(k.t);
    return test_result(failed);
}
