/* tests/io/test_tokenizer_broken.c - damaged and hostile tokenizer.json files: a clean error
 * that says what is wrong, or, where nothing is wrong for us, no crash. */
#include "tests/io/tokenizer_cases.h"

/* A small file that loads; a case replaces one member. */
static const char *const base[][2] = {
    {"version", "\"1.0\""},
    {"truncation", "null"},
    {"padding", "null"},
    {"added_tokens",
     "[{\"id\":8,\"content\":\"<s>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
     "\"normalized\":false,\"special\":true}]"},
    {"normalizer", "null"},
    {"pre_tokenizer",
     "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"always\",\"split\":true}"},
    {"post_processor", "null"},
    {"decoder", "{\"type\":\"Fuse\"}"},
    {"model", "{\"type\":\"BPE\",\"vocab\":{\"_\":0,\"a\":1,\"b\":2,\"ab\":3,\"c\":4,\"abc\":5,\"_"
              "a\":6,\"?\":7},"
              "\"merges\":[\"a b\",[\"ab\",\"c\"],\"_ a\"]}"},
};

static void build(StrBuf *out, const char *key, const char *json)
{
    bool there = false;
    strbuf_clear(out);
    for (size_t i = 0; i < sizeof base / sizeof *base; i++) {
        bool replaced = key && strcmp(base[i][0], key) == 0;
        there = there || replaced;
        strbuf_fmt(out, "%s\"%s\":%s", i ? "," : "{", base[i][0], replaced ? json : base[i][1]);
    }
    if (key && !there)
        strbuf_fmt(out, ",\"%s\":%s", key, json);
    strbuf_str(out, "}");
}

#define MODEL(vocab, merges) "{\"type\":\"BPE\",\"vocab\":" vocab ",\"merges\":" merges "}"
#define TOKEN(rest) "[{\"id\":8,\"content\":\"<s>\"" rest "}]"
#define TEMPLATE(single, tokens)                                                                   \
    "{\"type\":\"TemplateProcessing\",\"single\":" single                                          \
    ",\"pair\":[],\"special_tokens\":" tokens "}"
#define A "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
#define S "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}}"

static const struct {
    const char *key, *json, *message;
} refused[] = {
    {"version", "\"2.0\"", "version"},
    {"extra", "1", "\"extra\""},
    {"added_tokens", "{}", "added_tokens is not a list"},
    {"added_tokens", "[1]", "is not an object"},
    {"added_tokens", "[{\"content\":\"x\"}]", "no integer id"},
    {"added_tokens", "[{\"id\":8}]", "\"content\" is missing"},
    {"added_tokens", "[{\"id\":-1,\"content\":\"x\"}]", "is not an id"},
    {"added_tokens", "[{\"id\":1e9,\"content\":\"x\"}]", "no integer id"},
    {"added_tokens", "[{\"id\":99999999999,\"content\":\"x\"}]", "is not an id"},
    {"added_tokens", TOKEN(",\"lstrip\":1"), "not true or false"},
    {"added_tokens", TOKEN(",\"sideways\":true"), "\"sideways\""},
    {"added_tokens", TOKEN(",\"id\":8"), "twice"},
    {"normalizer", "{}", "normalizer: (no type) is not supported"},
    {"normalizer", "[]", "normalizer: (no type)"},
    {"normalizer", "\"NFC\"", "normalizer: (no type)"},
    {"normalizer", "{\"type\":\"NFKC\"}", "NFKC is not supported"},
    {"normalizer", "{\"type\":\"Sequence\"}", "\"normalizers\" is missing"},
    {"normalizer", "{\"type\":\"Prepend\"}", "\"prepend\" is missing"},
    {"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"\"}",
     "\"Regex\""},
    {"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"\"}",
     "empty string"},
    {"pre_tokenizer", "{\"type\":\"Whitespace\"}", "pre_tokenizer: Whitespace is not supported"},
    {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{},\"behavior\":\"Isolated\"}",
     "one of Regex and String"},
    {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Odd\"}",
     "behavior Odd"},
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?<=a)\"},\"behavior\":\"Isolated\"}",
     "pattern, byte"},
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[\"},\"behavior\":\"Isolated\"}",
     "class does not end"},
    {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"ab\"}", "not one character"},
    {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"\"}", "not one character"},
    {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"often\"}",
     "prepend_scheme"},
    {"pre_tokenizer",
     "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"}]}",
     "behind ByteLevel"},
    {"post_processor", "{\"type\":\"BertProcessing\"}", "post_processor: BertProcessing"},
    {"post_processor",
     TEMPLATE("[" S "]", "{\"<s>\":{\"id\":\"<s>\",\"ids\":[8],\"tokens\":[\"<s>\"]}}"),
     "no Sequence A"},
    {"post_processor", TEMPLATE("[" A "," A "]", "{}"), "one Sequence A"},
    {"post_processor", TEMPLATE("[" S "," A "]", "{}"), "special_tokens lacks"},
    {"post_processor", TEMPLATE("[" S "," A "]", "{\"<s>\":{\"ids\":[900]}}"), "no token has"},
    {"post_processor", TEMPLATE("[" S "," A "]", "{\"<s>\":{\"ids\":[-8]}}"), "no token has"},
    {"decoder", "{\"type\":\"WordPiece\"}", "decoder: WordPiece"},
    {"decoder", "{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0}", "must be counts"},
    {"decoder", "{\"type\":\"Strip\",\"content\":\"  \",\"start\":1,\"stop\":0}",
     "not one character"},
    {"model", "null", "model is not an object"},
    {"model", "{\"type\":\"Unigram\"}", "Unigram is not supported"},
    {"model", "{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{},\"merges\":[]}", "dropout"},
    {"model", "{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\",\"vocab\":{},\"merges\":[]}",
     "end_of_word_suffix"},
    {"model", "{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}", "vocab is not an object"},
    {"model", "{\"type\":\"BPE\",\"vocab\":{}}", "merges is not a list"},
    {"model", MODEL("{\"a\":-1}", "[]"), "the id of \"a\""},
    {"model", MODEL("{\"a\":1.5}", "[]"), "the id of \"a\""},
    {"model", MODEL("{\"a\":\"1\"}", "[]"), "the id of \"a\""},
    {"model", MODEL("{\"a\":4294967296}", "[]"), "the id of \"a\""},
    {"model", MODEL("{\"a\":99999999}", "[]"), "the id of \"a\""},
    {"model", MODEL("{\"a\":0,\"b\":0}", "[]"), "id 0 is given to"},
    {"model", MODEL("{\"a\":0}", "[\"a a\"]"), "needs the token \"aa\""},
    {"model", MODEL("{\"a\":0}", "[\"a b\"]"), "needs the token \"b\""},
    {"model", MODEL("{\"a\":0}", "[\"aa\"]"), "entry 0 is not two tokens"},
    {"model", MODEL("{\"a\":0}", "[\"a a a\"]"), "entry 0 is not two tokens"},
    {"model", MODEL("{\"a\":0}", "[[\"a\"]]"), "entry 0 is not two tokens"},
    {"model", MODEL("{\"a\":0}", "[[\"a\",1]]"), "entry 0 is not two tokens"},
    {"model", MODEL("{\"a\":0}", "[7]"), "entry 0 is not two tokens"},
    {"model", MODEL("{\"\xff\":0}", "[]"), "not valid UTF-8"},
    {"model", MODEL("{\"a\":0}", "[") "", "a value is expected here"},
};

/* Odd, but fine: the id of "ab" and of "<s>" after loading; -1: none. */
static const struct {
    const char *name, *key, *json;
    int ab, s;
} odd[] = {
    {"as it is", NULL, "", 3, 8},
    {"no vocabulary", "model", MODEL("{}", "[]"), -1, 0},
    {"a key that comes twice counts last", "model", MODEL("{\"ab\":0,\"a\":1,\"ab\":2}", "[]"), 2,
     2},
    {"a hole in the ids", "model", MODEL("{\"ab\":70000}", "[]"), 70000, 1},
    {"an empty token", "model", MODEL("{\"\":0,\"ab\":1}", "[]"), 1, 2},
    {"a pair that comes twice", "model", MODEL("{\"a\":0,\"b\":1,\"ab\":2}", "[\"a b\",\"a b\"]"),
     2, 3},
    {"an old version line", "model",
     MODEL("{\"a\":0,\"b\":1,\"ab\":2}", "[\"#version: 0.2\",\"a b\"]"), 2, 3},
    {"merges that feed each other", "model",
     MODEL("{\"a\":0,\"aa\":1,\"aaa\":2,\"aaaa\":3}",
           "[\"a a\",\"aa a\",\"a aa\",\"aa aa\",\"a aaa\",\"aaa a\"]"),
     -1, 4},
    {"an added token without content", "added_tokens", "[{\"id\":3,\"content\":\"\"}]", 3, -1},
    {"an added token twice", "added_tokens",
     "[{\"id\":8,\"content\":\"<s>\"},{\"id\":8,\"content\":\"<s>\"}]", 3, 8},
    {"nothing at all", "pre_tokenizer", "{\"type\":\"Sequence\",\"pretokenizers\":[]}", 3, 8},
};

static int check_tables(void)
{
    int failed = 0;
    StrBuf json = {0};
    Tokenizer *t;
    Err e;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        build(&json, refused[i].key, refused[i].json);
        e.text[0] = 0;
        failed +=
            check_int(refused[i].json,
                      tokenizer_parse(json.data, json.len, NULL, 0, "file", &t, &e), ST_INPUT);
        failed += check_has(refused[i].json, e.text, refused[i].message);
        failed += check_has("names the file", e.text, "file: ");
        failed += check_true("no tokenizer", t == NULL);
        tokenizer_free(t);
    }
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        TokenizerCache *c;
        TokenIds ids = {0};
        StrBuf text = {0};
        build(&json, odd[i].key, odd[i].json);
        must(tokenizer_parse(json.data, json.len, NULL, 0, odd[i].name, &t, &e), &e);
        failed += check_int(odd[i].name, tokenizer_token_id(t, "ab", 2), odd[i].ab);
        failed += check_int(odd[i].name, tokenizer_token_id(t, "<s>", 3), odd[i].s);
        must(tokenizer_cache_create(t, &c, &e), &e);
        must(tokenizer_encode(t, c, "ab aaaaaaa<s>\xe4\xb8\xad", 16, true, &ids, &e), &e);
        must(tokenizer_decode(t, ids.ids, ids.n, false, &text, &e), &e);
        tokenids_free(&ids);
        strbuf_free(&text);
        tokenizer_cache_free(c);
        tokenizer_free(t);
    }
    strbuf_free(&json);
    return failed;
}

static const struct {
    const char *config, *message; /* NULL: loads */
    int bos, eos;
    bool ids; /* whether the two come with add_special */
} configs[] = {
    {"{}", NULL, -1, -1, false},
    {"{\"bos_token\":\"a\",\"eos_token\":{\"content\":\"<s>\"}}", NULL, 1, 8, false},
    {"{\"bos_token\":null,\"eos_token\":\"<new>\"}", NULL, -1, 9, false},
    {"{\"bos_token\":\"a\",\"eos_token\":\"<s>\",\"add_bos_token\":true,\"add_eos_token\":true}",
     NULL, 1, 8, true},
    {"{\"added_tokens_decoder\":{\"10\":{\"content\":\"<y>\"},\"9\":{\"content\":\"<x>\","
     "\"special\":true}},"
     "\"bos_token\":\"<x>\",\"eos_token\":\"<y>\"}",
     NULL, 9, 10, false},
    {"{\"additional_special_tokens\":[\"<x>\",\"<y>\"],\"cls_token\":\"<z>\",\"bos_token\":\"ab\"}",
     NULL, 3, -1, false},
    {"{\"additional_special_tokens\":\"<x>\"}", "is not a list", 0, 0, false},
    {"{\"additional_special_tokens\":[1]}", "neither a string nor an object", 0, 0, false},
    {"[]", "is not an object", 0, 0, false},
    {"{", "tokenizer_config.json: byte 1", 0, 0, false},
    {"{\"bos_token\":1}", "neither a string nor an object", 0, 0, false},
    {"{\"bos_token\":{}}", "\"content\" is missing", 0, 0, false},
    {"{\"add_bos_token\":true}", "asks for a BOS", 0, 0, false},
    {"{\"add_eos_token\":1}", "not true or false", 0, 0, false},
    {"{\"added_tokens_decoder\":[]}", "added_tokens_decoder is not an object", 0, 0, false},
    {"{\"added_tokens_decoder\":{\"x\":{\"content\":\"<y>\"}}}", "\"x\" is not an id", 0, 0, false},
    {"{\"added_tokens_decoder\":{\"-1\":{\"content\":\"<y>\"}}}", "\"-1\" is not an id", 0, 0,
     false},
    {"{\"added_tokens_decoder\":{\"1\":[]}}", "\"content\" is missing", 0, 0, false},
};

static int check_configs(void)
{
    int failed = 0;
    StrBuf json = {0};
    build(&json, NULL, NULL);
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        Tokenizer *t;
        TokenizerCache *c;
        TokenIds ids = {0};
        Err e = {.text = ""};
        const char *config = configs[i].config;
        Status st = tokenizer_parse(json.data, json.len, config, strlen(config), "dir", &t, &e);
        failed += check_int(config, st, configs[i].message ? ST_INPUT : ST_OK);
        if (st != ST_OK) {
            failed +=
                check_has(config, e.text, configs[i].message ? configs[i].message : "no error");
            continue;
        }
        failed += check_int(config, tokenizer_bos_id(t), configs[i].bos);
        failed += check_int(config, tokenizer_eos_id(t), configs[i].eos);
        must(tokenizer_cache_create(t, &c, &e), &e);
        must(tokenizer_encode(t, c, "ab", 2, true, &ids, &e), &e);
        failed +=
            check_int(config, ids.ids[0] == configs[i].bos && ids.ids[ids.n - 1] == configs[i].eos,
                      configs[i].ids);
        tokenids_free(&ids);
        tokenizer_cache_free(c);
        tokenizer_free(t);
    }
    strbuf_free(&json);
    return failed;
}

/* Cut short and with bytes changed: whatever comes out, no crash; the sanitizers look on. */
static int check_damage(void)
{
    int failed = 0, n_loaded = 0;
    StrBuf json = {0};
    Tokenizer *t;
    Err e;
    uint64_t state = 3;
    build(&json, NULL, NULL);
    for (size_t n = 0; n < json.len; n++) {
        char *cut = malloc(n + !n);
        if (!cut)
            return 1;
        memcpy(cut, json.data, n);
        failed +=
            check_int("cut short", tokenizer_parse(cut, n, NULL, 0, "file", &t, &e), ST_INPUT);
        free(cut);
    }
    for (int i = 0; i < 20000; i++) {
        char *changed = malloc(json.len);
        if (!changed)
            return 1;
        memcpy(changed, json.data, json.len);
        for (int k = 0; k <= i % 2; k++) {
            state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
            static const char with[] = "\"{}[],:0129abtruefalsnul\\<>_ -.\xff\xc3\x80";
            changed[(size_t)(state >> 33) % json.len] =
                with[(size_t)(state >> 50) % (sizeof with - 1)];
        }
        TokenizerCache *c;
        TokenIds ids = {0};
        if (tokenizer_parse(changed, json.len, NULL, 0, "file", &t, &e) == ST_OK) {
            must(tokenizer_cache_create(t, &c, &e), &e);
            failed += check_int("encodes", tokenizer_encode(t, c, "abc a <s>?", 10, true, &ids, &e),
                                ST_OK);
            tokenizer_cache_free(c);
            n_loaded++;
        }
        tokenids_free(&ids);
        tokenizer_free(t);
        free(changed);
    }
    strbuf_free(&json);
    printf("%d of 20,000 damaged files load all the same\n", n_loaded);
    return failed + check_true("some do", n_loaded > 100);
}

int main(void)
{
    return test_result(check_tables() + check_configs() + check_damage());
}
