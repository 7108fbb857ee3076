/* tests/model/test_kv_cache.c - pages come and go: full and window groups, short budgets, what a
 * sequence needs at most. */
#include "model/kv_cache.h"
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>

enum { N_LAYERS = 4, WINDOW = 100 };

static LayerArch layers[N_LAYERS] = {{true, WINDOW}, {true, 0}, {true, WINDOW}, {true, 0}};

static int held(const KvCache *kv, const KvSeq *s)
{
    int n = 0;
    for (int g = 0; g < kv->n_groups; g++)
        n += s->end[g] - s->first[g];
    return n;
}

static int test_windows(const Arch *arch, Backend *b)
{
    int failed = 0, most = 0;
    KvCache kv;
    KvSeq s = {0};
    Err e;
    bool ok;
    size_t block = kv_block_bytes(arch, KV_F32, backend_find("cpu"), b);
    failed += check_int(
        "create", kv_create(&kv, arch, KV_F32, backend_find("cpu"), b, 40 * block, &e), ST_OK);
    failed += check_int("blocks", kv.n_blocks, 40) + check_int("groups", kv.n_groups, 2);
    for (int pos = 0; pos < 1000; pos += 50) {
        failed += check_int("extend", kv_seq_extend(&kv, &s, pos, 50, &ok, &e), ST_OK) +
                  check_true("fits", ok);
        int g = kv.groups[0].window ? 0 : 1,
            lowest = pos - WINDOW + 1 > 0 ? (pos - WINDOW + 1) / KV_PAGE : 0;
        failed += check_int("first page of the window", s.first[g], lowest);
        failed += check_int("last page", s.end[g], (pos + 49) / KV_PAGE + 1);
        failed += check_int("full attention keeps all", s.end[1 - g] - s.first[1 - g],
                            (pos + 49) / KV_PAGE + 1);
        for (int i = 0; i < s.cap; i++)
            failed += check_true("held pages have numbers",
                                 (s.pages[g][i] >= 0) == (i >= s.first[g] && i < s.end[g]));
        most = held(&kv, &s) > most ? held(&kv, &s) : most;
    }
    failed += check_true("never more than was said", most <= kv_blocks_needed(&kv, 1000, 50));
    failed += check_int("free and held are all", kv.n_free + held(&kv, &s), 40);
    kv_seq_free(&kv, &s);
    failed += check_int("all given back", kv.n_free, 40);
    kv_free(&kv);
    return failed;
}

static int test_short(const Arch *arch, Backend *b)
{
    int failed = 0;
    KvCache kv;
    KvSeq one = {0}, two = {0};
    Err e;
    bool ok;
    size_t block = kv_block_bytes(arch, KV_F32, backend_find("cpu"), b);
    failed += check_int(
        "create", kv_create(&kv, arch, KV_F32, backend_find("cpu"), b, 5 * block + block / 2, &e),
        ST_OK);
    failed += check_int("whole blocks", kv.n_blocks, 5);
    failed += check_int("two pages each", kv_seq_extend(&kv, &one, 0, 65, &ok, &e), ST_OK) +
              check_true("fits", ok);
    failed += check_int("one left", kv.n_free, 1);
    failed += check_int("short", kv_seq_extend(&kv, &two, 0, 1, &ok, &e), ST_OK) +
              check_true("does not fit", !ok);
    failed +=
        check_int("nothing taken", kv.n_free, 1) + check_int("nothing held", held(&kv, &two), 0);
    kv_seq_release(&kv, &one);
    failed += check_int("again", kv_seq_extend(&kv, &two, 0, 128, &ok, &e), ST_OK) +
              check_true("fits now", ok);
    failed += check_true("pages differ",
                         two.pages[0][0] != two.pages[0][1] && two.pages[0][0] != two.pages[1][0]);
    kv_seq_free(&kv, &one);
    kv_seq_free(&kv, &two);
    kv_free(&kv);
    return failed;
}

int main(void)
{
    Arch arch = {
        .n_layers = N_LAYERS, .n_heads = 2, .n_kv_heads = 1, .head_dim = 8, .layers = layers};
    BackendConfig config = {.isa = ISA_SCALAR};
    Backend *b = NULL;
    Err e;
    int failed = check_int("backend", backend_find("cpu")->create(&config, &b, &e), ST_OK);
    failed += test_windows(&arch, b) + test_short(&arch, b);
    backend_find("cpu")->destroy(b);
    return test_result(failed);
}
