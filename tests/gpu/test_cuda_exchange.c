/* tests/gpu/test_cuda_exchange.c - packing, grouping and returning rows on the device: the same bytes
 * as one row after the other gives, for random choices of any shape, and in every run. */
#include "kernels/backend.h"
#include "tests/support/check.h"
#include "tests/support/cuda_case.h"
#include "tests/support/exchange_ref.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int experts, top_k, ranks, rank, tokens;
    size_t row_bytes;
    int dropped;      /* of 100 choices */
    int message_rows; /* 0: as listed */
} cases[] = {
    {"alone, one token", 128, 8, 1, 0, 1, 64, 0, 0},
    {"alone, a few", 32, 4, 1, 0, 50, 64, 10, 0},
    {"alone, a few more", 128, 8, 1, 0, 90, 64, 10, 0},
    {"alone, no tokens", 32, 4, 1, 0, 0, 64, 0, 0},
    {"alone, a small block full", 128, 8, 1, 0, 128, 64, 0, 0},
    {"alone, more than a small block", 128, 8, 1, 0, 129, 64, 5, 0},
    {"alone, a part of a large block", 128, 8, 1, 0, 300, 64, 5, 0},
    {"alone, a block full", 128, 8, 1, 0, 512, 64, 0, 0},
    {"alone, more than a block", 128, 8, 1, 0, 513, 64, 5, 0},
    {"alone, many", 128, 8, 1, 0, 5000, 16, 0, 0},
    {"alone, one expert", 1, 1, 1, 0, 777, 16, 0, 0},
    {"alone, all experts", 1024, 32, 1, 0, 300, 16, 50, 0},
    {"alone, as many experts as a large block has room for", 370, 8, 1, 0, 200, 16, 10, 0},
    {"alone, more experts than a large block has room for", 1024, 32, 1, 0, 60, 16, 10, 0},
    {"two ranks", 8, 2, 2, 0, 33, 48, 0, 0},
    {"two ranks, fixed", 8, 2, 2, 1, 33, 48, 20, 33},
    {"one token", 32, 4, 2, 1, 1, 5760, 0, 0},
    {"one token, fixed", 32, 4, 2, 0, 1, 5760, 0, 1},
    {"odd shapes", 37, 3, 3, 1, 100, 20, 30, 0},
    {"odd shapes, fixed", 37, 3, 3, 2, 100, 20, 30, 100},
    {"no tokens", 16, 4, 4, 2, 0, 32, 0, 0},
    {"no tokens, fixed", 16, 4, 4, 2, 0, 32, 0, 300},
    {"fewer tokens than fixed", 16, 4, 4, 1, 3, 32, 10, 300},
    {"all dropped", 16, 4, 4, 2, 40, 32, 100, 40},
    {"as many as one launch packs", 64, 8, 4, 1, 256, 36, 10, 0},
    {"as many as one launch packs, fixed", 64, 8, 4, 3, 256, 32, 10, 256},
    {"a token more", 64, 8, 4, 1, 257, 36, 10, 0},
    {"a token more, fixed", 64, 8, 4, 2, 257, 32, 10, 257},
    {"more than a block", 64, 8, 4, 3, 1025, 32, 10, 0},
    {"more than a block, fixed", 64, 8, 4, 0, 2100, 32, 10, 2100},
    {"many ranks", 256, 8, 32, 17, 200, 32, 0, 0},
    {"more ranks than experts", 3, 2, 5, 4, 60, 32, 0, 60},
    {"the most", 1024, 32, 128, 127, 70, 16, 30, 0},
    {"the most, fixed", 1024, 32, 128, 0, 70, 16, 30, 72},
    {"the most, many of them", 1024, 32, 128, 64, 300, 16, 30, 0},
    {"wide rows", 128, 4, 8, 5, 64, 5760, 0, 64},
    {"wider rows", 128, 4, 8, 5, 20, 20484, 0, 20},
};

static uint64_t state = 88172645463325252u;

static uint32_t draw(uint32_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 33) % below;
}

/* An array in both memories, the same bytes at first. */
typedef struct Twin {
    void *host, *dev;
    size_t bytes;
} Twin;

typedef struct Twins {
    const BackendOps *ops;
    Backend *b;
    Twin at[64];
    int n;
} Twins;

static void must(Status st, const Err *e)
{
    if (st != ST_OK) {
        printf("%s\n", e->text);
        exit(1);
    }
}

static int twin(Twins *t, size_t bytes)
{
    Twin *w = &t->at[t->n];
    Err e = {0};
    w->bytes = (bytes + 15) / 16 * 16 + 16; /* what lies behind must not change either */
    w->host = malloc(w->bytes);
    if (!w->host)
        exit(1);
    for (size_t i = 0; i < w->bytes; i++)
        ((uint8_t *)w->host)[i] = (uint8_t)draw(256);
    must(t->ops->alloc(t->b, w->bytes, "a test's array", &w->dev, &e), &e);
    must(t->ops->upload(t->b, w->dev, w->host, w->bytes, &e), &e);
    return t->n++;
}

static void refresh(Twins *t, int i)
{
    Err e = {0};
    must(t->ops->upload(t->b, t->at[i].dev, t->at[i].host, t->at[i].bytes, &e), &e);
}

static int same(const Twins *t, const char *name, const char *what, int i)
{
    const Twin *w = &t->at[i];
    Err e = {0};
    uint8_t *got = malloc(w->bytes);
    if (!got)
        exit(1);
    must(t->ops->download(t->b, got, w->dev, w->bytes, &e), &e);
    size_t wrong = 0;
    while (wrong < w->bytes && got[wrong] == ((const uint8_t *)w->host)[wrong])
        wrong++;
    if (wrong < w->bytes)
        printf("%s: %s differs at byte %zu of %zu: int %d, expected %d\n", name, what, wrong,
               w->bytes, ((const int32_t *)(const void *)got)[wrong / 4],
               ((const int32_t *)w->host)[wrong / 4]);
    free(got);
    return wrong < w->bytes;
}

static void release(Twins *t)
{
    for (int i = 0; i < t->n; i++) {
        free(t->at[i].host);
        t->ops->release(t->b, t->at[i].dev);
    }
    t->n = 0;
}

/* top_k different experts, some of them dropped. */
static void choose(int32_t *out, int experts, int top_k, int dropped)
{
    int32_t at = (int32_t)draw((uint32_t)experts);
    for (int s = 0; s < top_k; s++) {
        at = (at + 1 + (int32_t)draw((uint32_t)(experts / top_k))) % experts;
        if (experts == 1 || top_k == experts)
            at = s;
        out[s] = (int)draw(100) < dropped ? -1 : at;
    }
}

/* What the ranks' tokens are, as far as this rank meets them. */
typedef struct Scene {
    size_t i;
    int expert, owner, local, here, slot, place, row_of, first, group_counts;
    int mail[EXCHANGE_MAX_RANKS], n[EXCHANGE_MAX_RANKS], at[EXCHANGE_MAX_RANKS];
} Scene;

static int n_local_of(size_t i, int rank)
{
    return cases[i].experts / cases[i].ranks + (rank < cases[i].experts % cases[i].ranks);
}

static int check_window(Twins *t, const Scene *sc)
{
    size_t i = sc->i, ranks = (size_t)cases[i].ranks, tokens = (size_t)cases[i].tokens;
    size_t blocks = tokens / EXCHANGE_BLOCK_TOKENS + 1, ints = sizeof(int32_t);
    size_t k = (size_t)cases[i].top_k, fixed = (size_t)cases[i].message_rows;
    size_t most = fixed > tokens ? fixed : tokens, room = most + 3;
    size_t stride = (exchange_message_bytes(room, cases[i].row_bytes, cases[i].top_k) + 15) & ~15ul;
    int counts = twin(t, blocks * 2 * ranks * ints), totals = twin(t, 2 * ranks * ints);
    int token = twin(t, ranks * room * ints), pair = twin(t, ranks * room * ints);
    int rows = twin(t, (tokens + 1) * cases[i].row_bytes), messages = twin(t, ranks * stride);
    int mark = twin(t, ints);
    memset(t->at[totals].host, 0, t->at[totals].bytes);
    refresh(t, totals);
    WindowSpec w[2];
    for (int side = 0; side < 2; side++) {
#define AT(a) (side ? t->at[a].dev : t->at[a].host)
        w[side] = (WindowSpec){.expert = AT(sc->expert),
                               .owner = AT(sc->owner),
                               .local = AT(sc->local),
                               .n = cases[i].tokens,
                               .top_k = (int)k,
                               .n_ranks = (int)ranks,
                               .rank = cases[i].rank,
                               .counts = AT(counts),
                               .totals = AT(totals),
                               .token = AT(token),
                               .pair = AT(pair),
                               .room = (int)room,
                               .slot = AT(sc->slot),
                               .result_row = 1000,
                               .result_stride = (int)(fixed * k),
                               .rows = AT(rows),
                               .row_bytes = cases[i].row_bytes,
                               .messages = AT(messages),
                               .message_stride = stride,
                               .message_rows = (int)fixed,
                               .most_rows = (int)most,
                               .mark = AT(mark),
                               .value = 12345};
    }
    Err e = {0};
    const ExchangeOps *x = t->ops->exchange;
    exchange_ref_count(&w[0]);
    must(x->count(t->b, &w[1], &e), &e);
    int failed = same(t, cases[i].name, "counts", counts);
    failed += same(t, cases[i].name, "totals", totals);
    if (tokens <= EXCHANGE_BLOCK_TOKENS) { /* pack finds them itself */
        memset(t->at[totals].host, 0xff, 2 * ranks * ints);
        refresh(t, totals);
    }
    exchange_ref_pack(&w[0]);
    must(x->pack(t->b, &w[1], &e), &e);
    failed += same(t, cases[i].name, "slots", sc->slot);
    failed += same(t, cases[i].name, "the mark", mark);
    return failed + same(t, cases[i].name, "messages", messages);
}

static void queue_group(Twins *t, const Scene *sc)
{
    size_t i = sc->i;
    GroupSpec g[2];
    for (int side = 0; side < 2; side++) {
        g[side] = (GroupSpec){.first = AT(sc->first),
                              .row_of = AT(sc->row_of),
                              .counts = AT(sc->group_counts),
                              .local = cases[i].ranks > 1 ? AT(sc->here) : NULL,
                              .own = cases[i].rank,
                              .n_local = n_local_of(i, cases[i].rank),
                              .top_k = cases[i].top_k,
                              .n_lists = cases[i].ranks};
        int32_t *place = AT(sc->place);
        for (int r = 0; r < cases[i].ranks; r++) {
            bool own = r == cases[i].rank;
            g[side].list[r] =
                (ChoiceRows){.choice = own ? AT(sc->expert) : AT(sc->mail[r]),
                             .place = own ? AT(sc->slot) : place,
                             .n = sc->n[r],
                             .stride = own ? cases[i].top_k : exchange_mail_ints(cases[i].top_k),
                             .row = own ? 0 : 100000 + 1000 * r,
                             .at = sc->at[r]};
            place += own ? 0 : sc->n[r] * cases[i].top_k;
        }
    }
    Err e = {0};
    exchange_ref_group(&g[0]);
    must(t->ops->exchange->group(t->b, &g[1], &e), &e);
}

static int check_group(const Twins *t, const Scene *sc)
{
    size_t i = sc->i;
    return same(t, cases[i].name, "first", sc->first) +
           same(t, cases[i].name, "row_of", sc->row_of) +
           same(t, cases[i].name, "places", sc->place) +
           same(t, cases[i].name, "slots of a group", sc->slot);
}

/* Right behind group, whose places it reads. */
static int check_results(Twins *t, const Scene *sc)
{
    size_t i = sc->i, pairs = 1, bytes = cases[i].row_bytes;
    int n_lists = 0;
    for (int r = 0; r < cases[i].ranks; r++)
        pairs += (size_t)sc->n[r] * (size_t)cases[i].top_k;
    int rows = twin(t, pairs * bytes), to = twin(t, pairs * bytes), mark = twin(t, sizeof(int32_t));
    ResultSpec r[2];
    for (int side = 0; side < 2; side++) {
        r[side] = (ResultSpec){.rows = AT(rows),
                               .row_bytes = bytes,
                               .top_k = cases[i].top_k,
                               .mark = AT(mark),
                               .value = 77};
        int32_t *place = AT(sc->place);
        char *out = AT(to);
        n_lists = 0;
        for (int s = 0; s < cases[i].ranks; s++) {
            if (s == cases[i].rank)
                continue;
            r[side].list[n_lists++] = (ResultList){AT(sc->mail[s]), place, out, sc->n[s]};
            place += sc->n[s] * cases[i].top_k;
            out += (size_t)sc->n[s] * (size_t)cases[i].top_k * bytes;
            r[side].most_rows = sc->n[s] > r[side].most_rows ? sc->n[s] : r[side].most_rows;
        }
        r[side].n_lists = n_lists;
    }
    Err e = {0};
    queue_group(t, sc);
    exchange_ref_results(&r[0]);
    must(t->ops->exchange->results(t->b, &r[1], &e), &e);
    return same(t, cases[i].name, "results", to) + same(t, cases[i].name, "the mark", mark);
}
#undef AT

static int run_case(const BackendOps *ops, Backend *b, size_t i)
{
    Twins t = {.ops = ops, .b = b};
    Scene sc = {.i = i};
    int ranks = cases[i].ranks, k = cases[i].top_k, all = 0;
    size_t ints = sizeof(int32_t), experts = (size_t)cases[i].experts;
    int n_local = n_local_of(i, cases[i].rank), expert = 0;
    sc.expert = twin(&t, ((size_t)cases[i].tokens * (size_t)k + 1) * ints);
    sc.slot = twin(&t, ((size_t)cases[i].tokens * (size_t)k + 1) * ints);
    sc.owner = twin(&t, experts * ints);
    sc.local = twin(&t, experts * ints);
    sc.here = twin(&t, experts * ints);
    for (int r = 0; r < ranks; r++)
        for (int l = 0; l < n_local_of(i, r); l++, expert++) {
            ((int32_t *)t.at[sc.owner].host)[expert] = r;
            ((int32_t *)t.at[sc.local].host)[expert] = l;
            ((int32_t *)t.at[sc.here].host)[expert] = r == cases[i].rank ? l : -1;
        }
    for (int n = 0; n < cases[i].tokens; n++)
        choose((int32_t *)t.at[sc.expert].host + n * k, cases[i].experts, k, cases[i].dropped);
    /* Mail of the other ranks, as pack would write it. */
    int mail_all = 0;
    for (int r = 0; r < ranks; r++) {
        bool own = r == cases[i].rank;
        sc.n[r] = own                         ? cases[i].tokens
                  : cases[i].message_rows > 0 ? cases[i].message_rows
                  : cases[i].tokens == 0      ? 0
                                              : (int)draw((uint32_t)cases[i].tokens);
        sc.at[r] = all;
        all += sc.n[r];
        mail_all += own ? 0 : sc.n[r];
    }
    int mail = twin(&t, ((size_t)mail_all + 1) * (size_t)exchange_mail_ints(k) * ints), row = 0;
    for (int r = 0; r < ranks; r++) {
        int32_t pair = 0;
        for (int n = 0; n < sc.n[r] && r != cases[i].rank; n++, row++) {
            int32_t *to = (int32_t *)t.at[mail].host + row * exchange_mail_ints(k);
            to[k] = pair;
            for (int s = 0; s < k; s++) {
                to[s] = n_local == 0 || draw(3) == 0 ? -1 : (int32_t)draw((uint32_t)n_local);
                pair += to[s] >= 0;
            }
        }
    }
    for (int r = 0, from = 0; r < ranks; r++) { /* each list's mail as an array of its own */
        if (r == cases[i].rank)
            continue;
        size_t bytes = (size_t)sc.n[r] * (size_t)exchange_mail_ints(k) * ints;
        if (r > 20) { /* the rest share one */
            sc.mail[r] = sc.mail[r - 1];
            sc.n[r] = 0;
            continue;
        }
        sc.mail[r] = twin(&t, bytes);
        memcpy(t.at[sc.mail[r]].host,
               (const int32_t *)t.at[mail].host + from * exchange_mail_ints(k), bytes);
        refresh(&t, sc.mail[r]);
        from += sc.n[r];
    }
    all = 0;
    for (int r = 0; r < ranks; r++) {
        sc.at[r] = all;
        all += sc.n[r];
    }
    sc.place = twin(&t, ((size_t)all * (size_t)k + 1) * ints);
    sc.row_of = twin(&t, ((size_t)all * (size_t)k + 1) * ints);
    sc.first = twin(&t, ((size_t)n_local + 1) * ints);
    sc.group_counts = twin(&t, EXCHANGE_GROUP_BLOCKS * ((size_t)n_local + 1) * ints);
    int arrays[] = {sc.expert, sc.owner, sc.local, sc.here};
    for (size_t a = 0; a < sizeof arrays / sizeof *arrays; a++)
        refresh(&t, arrays[a]);
    int failed = ranks > 1 ? check_window(&t, &sc) : 0;
    if (ranks > 1)
        failed += check_results(&t, &sc);
    else
        queue_group(&t, &sc);
    failed += check_group(&t, &sc);
    release(&t);
    return failed;
}

int main(void)
{
    CudaCase c;
    int skip = cuda_case_open(&c);
    if (skip)
        return skip;
    int failed = 0;
    for (int run = 0; run < 3; run++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            failed += run_case(c.cuda, c.dev, i) != 0;
    cuda_case_close(&c);
    return test_result(failed);
}
