/* tests/io/test_tokenizer_synthetic.c - tiny complete tokenizers that isolate one rule each. A few
 * live in tests/data/tokenizers, all of them in ../shared/tokenizers/synthetic. */
#include "tests/io/tokenizer_cases.h"

#include <dirent.h>

/* The bytes of a member of a JSON text, from its opening to its closing brace. */
static void member_text(const StrBuf *text, const char *key, const char **start, size_t *len)
{
    const char *at = strstr(text->data, key);
    int depth = 0;
    bool quoted = false;
    if (!at)
        exit(1);
    *start = at = strchr(at, '{');
    do {
        if (*at == '\\' && quoted)
            at++;
        else if (*at == '"')
            quoted = !quoted;
        else if (!quoted)
            depth += *at == '{' ? 1 : *at == '}' ? -1 : 0;
        at++;
    } while (depth);
    *len = (size_t)(at - *start);
}

static int check_file(const char *path, int *n_cases)
{
    TestJson file;
    Tokenizer *t;
    TokenizerCache *cache;
    TokenIds got = {0}, want = {0}, special = {0};
    StrBuf text = {0};
    Err e;
    int failed = 0, number = 0;
    const char *json;
    size_t len;
    if (!test_json_open(&file, path))
        return 1;
    member_text(&file.text, "\"tokenizer\"", &json, &len);
    must(tokenizer_parse(json, len, NULL, 0, path, &t, &e), &e);
    must(tokenizer_cache_create(t, &cache, &e), &e);
    for (const JsonValue *c = json_get(file.value, "cases")->child; c; c = c->next, number++) {
        const JsonValue *in = json_get(c, "text"), *with = json_get(c, "ids_special");
        const JsonValue *kept = json_get(c, "decode"), *skipped = json_get(c, "decode_skip");
        ids_from_json(json_get(c, "ids"), &want);
        ids_from_json(with ? with : json_get(c, "ids"), &special);
        for (int round = 0; round < 2; round++) { /* the second time from the cache */
            got.n = 0;
            must(tokenizer_encode(t, cache, in->text, in->len, false, &got, &e), &e);
            failed += check_ids(path, number, &got, &want);
            got.n = 0;
            must(tokenizer_encode(t, cache, in->text, in->len, true, &got, &e), &e);
            failed += check_ids(path, number, &got, &special);
        }
        for (int skip = 0; kept && skip < 2; skip++) {
            const JsonValue *out = skip && skipped ? skipped : kept;
            strbuf_clear(&text);
            must(tokenizer_decode(t, special.ids, special.n, skip, &text, &e), &e);
            failed += check_text(path, number, &text, out->text, out->len);
        }
    }
    *n_cases += number;
    tokenids_free(&got);
    tokenids_free(&want);
    tokenids_free(&special);
    strbuf_free(&text);
    tokenizer_cache_free(cache);
    tokenizer_free(t);
    test_json_close(&file);
    return failed;
}

static int check_dir(const char *dir, int least)
{
    int failed = 0, n_files = 0, n_cases = 0;
    DIR *d = opendir(dir);
    if (!d) {
        perror(dir);
        return 1;
    }
    for (struct dirent *entry; (entry = readdir(d));) {
        char path[5000];
        size_t len = strlen(entry->d_name);
        if (len < 5 || strcmp(entry->d_name + len - 5, ".json") != 0)
            continue;
        test_path(path, sizeof path, "%s/%s", dir, entry->d_name);
        failed += check_file(path, &n_cases);
        n_files++;
    }
    closedir(d);
    printf("%d synthetic tokenizers, %d cases: %d failed\n", n_files, n_cases, failed);
    return failed + check_true("all files are there", n_files >= least);
}

int main(void)
{
    char dir[4096];
    const char *source = getenv("SOURCE"), *shared = test_shared();
    test_path(dir, sizeof dir, "%s/tests/data/tokenizers", source ? source : ".");
    int failed = check_dir(dir, 6);
    if (shared) {
        test_path(dir, sizeof dir, "%s/tokenizers/synthetic", shared);
        failed += check_dir(dir, 45);
    }
    return test_result(failed);
}
