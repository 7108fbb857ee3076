/* io/unicode.c - see unicode.h. */
#include "io/unicode.h"

#include "io/unicode_tables.h"
#include "io/utf8.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

uint8_t unicode_class[UNICODE_END];

/* Hangul syllables are composed by arithmetic: S = base + (L * 21 + V) * 28 + T. */
enum {
    HANGUL_S = 0xac00,
    HANGUL_L = 0x1100,
    HANGUL_V = 0x1161,
    HANGUL_T = 0x11a7, /* one before the first trailing consonant */
    N_L = 19,
    N_V = 21,
    N_T = 28,
    N_S = N_L * N_V * N_T
};

enum { PAIR_SLOTS = 2048, DECOMP_SLOTS = 4096, MAX_DECOMP = 4 };

typedef struct Pair {
    uint32_t first, second, composed; /* first 0: free slot */
} Pair;

typedef struct Decomp {
    uint32_t code; /* 0: free slot */
    uint32_t n;
    uint32_t parts[MAX_DECOMP];
} Decomp;

static Pair pairs[PAIR_SLOTS];
static Decomp decomps[DECOMP_SLOTS];
/* A set bit: not certainly unchanged by NFC wherever it stands, so the text around it must be
 * looked at. */
static uint8_t unsettled[UNICODE_END / 8];

static uint32_t mix(uint32_t a, uint32_t b)
{
    uint64_t h = ((uint64_t)a << 32 | b) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(h >> 40);
}

static Pair *find_pair(uint32_t first, uint32_t second)
{
    uint32_t i = mix(first, second) % PAIR_SLOTS;
    while (pairs[i].first && (pairs[i].first != first || pairs[i].second != second))
        i = (i + 1) % PAIR_SLOTS;
    return &pairs[i];
}

static Decomp *find_decomp(uint32_t code)
{
    uint32_t i = mix(code, 0) % DECOMP_SLOTS;
    while (decomps[i].code && decomps[i].code != code)
        i = (i + 1) % DECOMP_SLOTS;
    return &decomps[i];
}

static int combining_class(uint32_t code)
{
    size_t lo = 0, hi = n_unicode_ccc_runs;
    while (hi - lo > 1) {
        size_t mid = (lo + hi) / 2;
        if (unicode_ccc_runs[mid] >> 8 <= code)
            lo = mid;
        else
            hi = mid;
    }
    return (int)(unicode_ccc_runs[lo] & 0xff);
}

static bool is_unsettled(uint32_t code)
{
    return unsettled[code >> 3] >> (code & 7) & 1;
}

static void mark_unsettled(uint32_t code)
{
    unsettled[code >> 3] |= (uint8_t)(1 << (code & 7));
}

static void init_normal_form(void)
{
    for (size_t i = 0; i < n_unicode_decompositions;) {
        uint32_t head = unicode_decompositions[i++];
        Decomp *d = find_decomp(head >> 3);
        d->code = head >> 3;
        d->n = head & 7;
        assert(d->n <= MAX_DECOMP);
        memcpy(d->parts, unicode_decompositions + i, d->n * sizeof *d->parts);
        i += d->n;
        mark_unsettled(d->code);
    }
    for (size_t i = 0; i < n_unicode_pairs; i += 3) {
        const uint32_t *triple = unicode_pairs + i;
        *find_pair(triple[0], triple[1]) = (Pair){triple[0], triple[1], triple[2]};
        *find_decomp(triple[2]) =
            (Decomp){.code = triple[2], .n = 2, .parts = {triple[0], triple[1]}};
        mark_unsettled(triple[1]);
    }
    for (size_t i = 0; i < n_unicode_ccc_runs; i++) {
        uint32_t end = i + 1 < n_unicode_ccc_runs ? unicode_ccc_runs[i + 1] >> 8 : UNICODE_END;
        for (uint32_t code = unicode_ccc_runs[i] >> 8; (unicode_ccc_runs[i] & 0xff) && code < end;
             code++)
            mark_unsettled(code);
    }
    for (uint32_t i = 0; i < N_V; i++)
        mark_unsettled(HANGUL_V + i);
    for (uint32_t i = 1; i < N_T; i++)
        mark_unsettled(HANGUL_T + i);
}

static void init_tables(void)
{
    for (size_t i = 0; i < n_unicode_class_runs; i++) {
        uint32_t start = unicode_class_runs[i] >> 8;
        uint32_t end = i + 1 < n_unicode_class_runs ? unicode_class_runs[i + 1] >> 8 : UNICODE_END;
        memset(unicode_class + start, (int)(unicode_class_runs[i] & 0xff), end - start);
    }
    init_normal_form();
}

void unicode_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_tables);
}

/* Everything below U+0300 that has no singleton decomposition is settled, so bytes below 0xCC can
 * be skipped without decoding; there is no unsettled character below U+0300. */
static size_t settled_run(const unsigned char *s, size_t len)
{
    size_t i = 0;
    while (i < len) {
        if (s[i] < 0xcc) {
            i++;
            continue;
        }
        if (is_unsettled(utf8_code(s + i)))
            return i;
        i += utf8_len(s[i]);
    }
    return len;
}

bool unicode_nfc_quick(const char *text, size_t len)
{
    return settled_run((const unsigned char *)text, len) == len;
}

typedef struct Codes {
    uint32_t *code; /* with the combining class in the top byte once sorted */
    size_t n, cap;
} Codes;

static bool push_code(Codes *c, uint32_t code)
{
    if (c->n == c->cap) {
        size_t cap = c->cap ? c->cap * 2 : 64;
        uint32_t *p = realloc(c->code, cap * sizeof *p);
        if (!p)
            return false;
        c->code = p;
        c->cap = cap;
    }
    c->code[c->n++] = code;
    return true;
}

static bool push_decomposed(Codes *c, uint32_t code)
{
    if (code >= HANGUL_S && code < HANGUL_S + N_S) {
        uint32_t s = code - HANGUL_S;
        return push_code(c, HANGUL_L + s / (N_V * N_T)) &&
               push_code(c, HANGUL_V + s % (N_V * N_T) / N_T) &&
               (s % N_T == 0 || push_code(c, HANGUL_T + s % N_T));
    }
    const Decomp *d = find_decomp(code);
    if (!d->code)
        return push_code(c, code);
    for (uint32_t i = 0; i < d->n;
         i++) /* a pair's side may decompose again; three levels at most */
        if (!push_decomposed(c, d->parts[i]))
            return false;
    return true;
}

/* Stable by class, in two passes over the run, since hostile text has runs of 100,000 marks. */
static bool sort_marks(uint32_t *run, size_t n)
{
    size_t first[257] = {0};
    uint32_t *sorted = malloc(n * sizeof *sorted);
    if (!sorted)
        return false;
    for (size_t i = 0; i < n; i++)
        first[(run[i] >> 24) + 1]++;
    for (int k = 1; k < 257; k++)
        first[k] += first[k - 1];
    for (size_t i = 0; i < n; i++)
        sorted[first[run[i] >> 24]++] = run[i];
    memcpy(run, sorted, n * sizeof *run);
    free(sorted);
    return true;
}

static bool reorder(Codes *c)
{
    for (size_t i = 0; i < c->n; i++)
        c->code[i] |= (uint32_t)combining_class(c->code[i]) << 24;
    for (size_t i = 0; i < c->n;) {
        size_t start = i;
        bool in_order = true;
        for (; i < c->n && c->code[i] >> 24; i++)
            in_order = in_order && (i == start || c->code[i - 1] >> 24 <= c->code[i] >> 24);
        if (!in_order && !sort_marks(c->code + start, i - start))
            return false;
        i += i == start;
    }
    return true;
}

static uint32_t compose_pair(uint32_t a, uint32_t b)
{
    if (a >= HANGUL_L && a < HANGUL_L + N_L && b >= HANGUL_V && b < HANGUL_V + N_V)
        return HANGUL_S + ((a - HANGUL_L) * N_V + (b - HANGUL_V)) * N_T;
    if (a >= HANGUL_S && a < HANGUL_S + N_S && (a - HANGUL_S) % N_T == 0 && b > HANGUL_T &&
        b < HANGUL_T + N_T)
        return a + (b - HANGUL_T);
    return find_pair(a, b)->composed;
}

/* Composes in place; afterwards the top bytes are gone. */
static void compose(Codes *c)
{
    size_t out = 0, starter = SIZE_MAX;
    uint32_t last_class = 0;
    for (size_t i = 0; i < c->n; i++) {
        uint32_t code = c->code[i] & 0xffffff, class = c->code[i] >> 24;
        bool blocked = starter == SIZE_MAX || (out - 1 > starter && last_class >= class);
        uint32_t composed = blocked ? 0 : compose_pair(c->code[starter], code);
        if (composed) {
            c->code[starter] = composed;
            continue;
        }
        if (class == 0)
            starter = out;
        last_class = class;
        c->code[out++] = code;
    }
    c->n = out;
}

static bool normalize_part(Codes *c, StrBuf *out, const unsigned char *s, size_t len)
{
    c->n = 0;
    for (size_t i = 0; i < len; i += utf8_len(s[i]))
        if (!push_decomposed(c, utf8_code(s + i)))
            return false;
    if (!reorder(c))
        return false;
    compose(c);
    for (size_t i = 0; i < c->n; i++) {
        char bytes[4];
        strbuf_add(out, bytes, utf8_put(bytes, c->code[i]));
    }
    return true;
}

/* Text may be cut before every settled character: it starts no composition with what is before it,
 * and nothing is reordered across it. So only stretches from the settled character before an
 * unsettled one up to the next settled one are worked on. */
void unicode_nfc(StrBuf *out, const char *text, size_t len)
{
    const unsigned char *s = (const unsigned char *)text;
    Codes codes = {0};
    size_t done = 0;
    for (size_t i = 0; i < len;) {
        i += settled_run(s + i, len - i);
        if (i == len)
            break;
        size_t start = i;
        while (start > done && (s[--start] & 0xc0) == 0x80) {
        }
        while (i < len && s[i] >= 0xcc && is_unsettled(utf8_code(s + i)))
            i += utf8_len(s[i]);
        strbuf_add(out, text + done, start - done);
        if (!normalize_part(&codes, out, s + start, i - start))
            out->failed = true;
        done = i;
    }
    strbuf_add(out, text + done, len - done);
    free(codes.code);
}
