/* tests/tools/golden.c - reference results of a golden checkpoint (golden.safetensors) as rows, and compared with ours.
 *
 *   golden rows GOLDEN                    rows for `score`, one per input_ids.k
 *   golden greedy GOLDEN                  the row for `run` that continues prompt 1
 *   golden logits GOLDEN LOGITS.h5 TENSOR LIMIT   largest difference over the deviation of the reference, per prompt
 *   golden rounded GOLDEN LOGITS.h5 TENSOR GOLDEN.json   relative L2 of each prompt within max(2e-4, 5 x its noise);
 *                                         exits 3 where it is not because a value fell on the other side of a boundary
 *   golden has GOLDEN TENSOR              exits 0 where the reference has TENSOR.0
 *   golden tokens GOLDEN OUT.jsonl        greedy tokens are equal */
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"

#include <hdf5.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const TensorEntry *find(const SafeTensors *s, const char *fmt, int k)
{
    char name[64];
    snprintf(name, sizeof name, fmt, k);
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->entries[i].name, name) == 0)
            return &s->entries[i];
    return NULL;
}

static int32_t id_at(const TensorEntry *t, int64_t i)
{
    int32_t v;
    memcpy(&v, t->data + 4 * i, 4);
    return v;
}

static void print_ids(const TensorEntry *t, int64_t n)
{
    printf("{\"input_ids\":[");
    for (int64_t i = 0; i < n; i++)
        printf(i ? ",%d" : "%d", id_at(t, i));
    printf("]");
}

static int print_rows(const SafeTensors *s)
{
    const TensorEntry *t;
    for (int k = 0; (t = find(s, "input_ids.%d", k)) != NULL; k++) {
        print_ids(t, t->shape[0]);
        printf("}\n");
    }
    return 0;
}

static int print_greedy(const SafeTensors *s)
{
    const TensorEntry *t = find(s, "input_ids.%d", 1), *g = find(s, "greedy.%d", 1);
    if (!t || !g)
        return 1;
    print_ids(t, t->shape[0]);
    printf(",\"max_tokens\":%lld,\"temperature\":0,\"ignore_eos\":true}\n",
           (long long)(g->shape[0] - t->shape[0]));
    return 0;
}

static float *read_logits(hid_t file, int k, int64_t n)
{
    char name[64];
    snprintf(name, sizeof name, "/rows/%d/logits", k);
    hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
    if (set < 0)
        return NULL;
    hid_t space = H5Dget_space(set);
    float *v = H5Sget_simple_extent_npoints(space) == n ? malloc((size_t)n * sizeof *v) : NULL;
    if (v && H5Dread(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, v) < 0) {
        free(v);
        v = NULL;
    }
    H5Sclose(space);
    H5Dclose(set);
    return v;
}

/* How far one prompt's logits are from the reference. */
typedef struct Distance {
    double of_deviation; /* the largest difference over the reference's deviation */
    double relative_l2;
} Distance;

static Distance distance(const TensorEntry *want, const float *got)
{
    int64_t n = want->shape[0] * want->shape[1];
    double sum = 0, squares = 0, most = 0, apart = 0;
    for (int64_t i = 0; i < n; i++) {
        float w;
        memcpy(&w, want->data + 4 * i, 4);
        double d = fabs((double)got[i] - (double)w);
        most = d <= most ? most : d; /* a NaN counts */
        apart += d * d;
        sum += (double)w;
        squares += (double)w * (double)w;
    }
    double mean = sum / (double)n;
    return (Distance){most / sqrt(squares / (double)n - mean * mean), sqrt(apart / squares)};
}

/* Noise or effect of a prompt, as the reference's authors measured it (goldens/README.md). */
static double measured(const JsonValue *golden, const char *tensor, const char *what, int k)
{
    char key[64];
    snprintf(key, sizeof key, "%s_%s", tensor, what);
    const JsonValue *list = json_get(golden, key), *v = list ? list->child : NULL;
    double value = NAN; /* no prompt passes where there is none */
    for (int i = 0; i < k && v; i++)
        v = v->next;
    return v && json_double(v, &value) ? value : NAN;
}

/* A value that lies within rounding noise of the boundary of two codes falls either way, and all
 * that follows differs. Then everything before that position is as it should be, and what
 * follows is still nearer to the reference than to what it would be without rounding. */
static bool is_flip(const TensorEntry *want, const float *got, double relative_l2, double effect,
                    int64_t *position)
{
    int64_t width = want->shape[1];
    for (*position = 0; *position < want->shape[0]; ++*position) {
        TensorEntry row = *want;
        row.shape[0] = 1;
        row.data += 4 * *position * width;
        if (!(distance(&row, got + *position * width).relative_l2 < 1e-4))
            break;
    }
    return *position > 0 && relative_l2 < effect / 2;
}

/* golden NULL: the largest difference is below limit of the deviation. Else: relative L2 within
 * max(limit, 5 times the noise). */
static int compare_logits(const SafeTensors *s, const char *h5, const char *tensor, double limit,
                          const JsonValue *golden)
{
    char pattern[64];
    snprintf(pattern, sizeof pattern, "%s.%%d", tensor);
    hid_t file = H5Fopen(h5, H5F_ACC_RDONLY, H5P_DEFAULT);
    double worst = 0, worst_share = 0;
    int k = 0, wrong = 0, flips = 0;
    const TensorEntry *t;
    if (file < 0)
        return 1;
    for (; (t = find(s, pattern, k)) != NULL; k++) {
        float *got = read_logits(file, k, t->shape[0] * t->shape[1]);
        if (!got) {
            fprintf(stderr, "%s: /rows/%d/logits is missing or has another size\n", h5, k);
            H5Fclose(file);
            return 1;
        }
        Distance d = distance(t, got);
        double value = golden ? d.relative_l2 : d.of_deviation, most = limit;
        if (golden) {
            double noise = 5 * measured(golden, tensor, "noise", k);
            most = noise > limit || isnan(noise) ? noise : limit;
        }
        int64_t at;
        if (golden && !(value < most) &&
            is_flip(t, got, value, measured(golden, tensor, "effect", k), &at)) {
            printf("prompt %d: relative L2 %.3g (limit %.3g), within 1e-4 up to position %lld; ", k,
                   value, most, (long long)at);
            flips++;
            free(got);
            continue;
        }
        wrong += !(value < most);
        worst = value <= worst ? worst : value;
        worst_share = value / most <= worst_share ? worst_share : value / most;
        free(got);
    }
    H5Fclose(file);
    printf("%s: %d prompts, largest %s %.3g (%.2g of its limit)\n", tensor, k,
           golden ? "relative L2" : "difference over deviation", worst, worst_share);
    return k == 0 || wrong ? 1 : flips ? 3 : 0;
}

static int compare_rounded(const SafeTensors *s, const char *h5, const char *tensor,
                           const char *path)
{
    char *text;
    size_t len;
    Arena arena = {0};
    JsonValue *v;
    Err e;
    if (file_read(path, 1 << 20, &text, &len, &e) != ST_OK)
        return 1;
    int code =
        json_parse(text, len, &arena, &v, &e) == ST_OK ? compare_logits(s, h5, tensor, 2e-4, v) : 1;
    arena_free(&arena);
    free(text);
    return code;
}

static int compare_tokens(const SafeTensors *s, const char *path)
{
    const TensorEntry *t = find(s, "input_ids.%d", 1), *g = find(s, "greedy.%d", 1);
    char *text = NULL;
    size_t len = 0;
    Arena arena = {0};
    JsonValue *v;
    Err e;
    if (!t || !g || file_read(path, 1 << 24, &text, &len, &e) != ST_OK ||
        json_parse(text, len, &arena, &v, &e) != ST_OK)
        return 1;
    const JsonValue *body = json_get(json_get(v, "response"), "body");
    const JsonValue *ids = json_get(json_get(body, "choices")->child, "token_ids")->child;
    int wrong = 0;
    int64_t i = t->shape[0];
    for (; i < g->shape[0] && ids; i++, ids = ids->next) {
        int64_t got;
        wrong += !json_int64(ids, &got) || got != id_at(g, i);
    }
    wrong += ids != NULL || i != g->shape[0];
    printf("greedy tokens: %s\n", wrong ? "differ" : "equal");
    arena_free(&arena);
    free(text);
    return wrong != 0;
}

static int has_tensor(const SafeTensors *s, const char *tensor)
{
    char pattern[64];
    snprintf(pattern, sizeof pattern, "%s.%%d", tensor);
    return find(s, pattern, 0) == NULL;
}

int main(int argc, char **argv)
{
    FileMap map;
    SafeTensors s;
    Err e;
    int code = 2;
    if (argc < 3)
        return 2;
    if (file_map(argv[2], &map, &e) != ST_OK ||
        safetensors_parse(map.data, map.len, &s, &e) != ST_OK) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    if (strcmp(argv[1], "rows") == 0)
        code = print_rows(&s);
    else if (strcmp(argv[1], "greedy") == 0)
        code = print_greedy(&s);
    else if (strcmp(argv[1], "logits") == 0 && argc == 6)
        code = compare_logits(&s, argv[3], argv[4], atof(argv[5]), NULL);
    else if (strcmp(argv[1], "rounded") == 0 && argc == 6)
        code = compare_rounded(&s, argv[3], argv[4], argv[5]);
    else if (strcmp(argv[1], "has") == 0 && argc == 4)
        code = has_tensor(&s, argv[3]);
    else if (strcmp(argv[1], "tokens") == 0 && argc == 4)
        code = compare_tokens(&s, argv[3]);
    safetensors_free(&s);
    file_unmap(&map);
    return code;
}
