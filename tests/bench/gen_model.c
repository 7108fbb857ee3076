/* tests/bench/gen_model.c - writes a random checkpoint of a given shape, for speed measurements
 * where no real model of that size is at hand. No tokenizer: rows are token ids. The same flags
 * give the same bytes anywhere.
 *
 *   gen_model --preset gpt_oss-2g -o DIR
 *   gen_model --family qwen3_moe --hidden 512 --inter 256 --experts 32 --top-k 4 --layers 8 --vocab
 * 8192 --heads 8
 *             --kv-heads 2 --head-dim 64 --format bf16 --seed 1 -o DIR
 */
#include "tests/support/made_family.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct Options {
    MadeSpec spec;
    const char *out;
    int part_mib;
} Options;

static const MadeSpec presets[] = {
    /* About 2.3 GB: the shape of gpt-oss-20b with 4 of its 24 layers and a sixth of its vocabulary.
     */
    {"gpt_oss", 2880, 2880, 32, 4, 4, 32768, 64, 8, 64, DTYPE_BF16, .mxfp4 = true,
     .dense_layer = -1},
    /* About 0.6 GB: the shape of Qwen3-30B-A3B with 2 of its 48 layers and a quarter of its
       experts. */
    {"qwen3_moe", 2048, 768, 32, 8, 2, 32768, 32, 4, 128, DTYPE_BF16, .dense_layer = -1},
    /* About 1.7 GB: DeepSeek-V3's attention (a quarter of its heads) and router, at a third of its
       width, with 3 of its 61 layers and a quarter of its experts. */
    {"deepseek_v3",
     2304,
     704,
     64,
     8,
     3,
     32768,
     32,
     1,
     0,
     DTYPE_BF16,
     .dense_layer = 0,
     .q_lora = 768,
     .kv_lora = 512,
     .nope = 128,
     .rope = 64,
     .v_dim = 128,
     .n_shared = 1,
     .n_group = 8,
     .topk_group = 4},
};
static const char *const preset_names[] = {"gpt_oss-2g", "qwen3_moe-1g", "deepseek_v3-1g"};

static int usage(const char *what)
{
    fprintf(stderr,
            "gen_model: %s\nusage: gen_model [--preset "
            "gpt_oss-2g|qwen3_moe-1g|deepseek_v3-1g] [--family NAME] [--hidden N]\n"
            "  [--inter N] [--experts N] [--top-k N] [--layers N] [--vocab N] [--heads N] "
            "[--kv-heads N] "
            "[--head-dim N]\n  [--format bf16|f16|f32|mxfp4] [--seed N] [--part-mib N] -o DIR\n",
            what);
    return 64;
}

static bool parse_int(const char *text, int *out)
{
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (errno != 0 || *end || end == text || v < 0 || v > INT_MAX)
        return false;
    *out = (int)v;
    return true;
}

static bool parse_format(const char *text, MadeSpec *s)
{
    s->mxfp4 = strcmp(text, "mxfp4") == 0;
    s->dtype = strcmp(text, "f32") == 0   ? DTYPE_F32
               : strcmp(text, "f16") == 0 ? DTYPE_F16
                                          : DTYPE_BF16;
    return s->mxfp4 || s->dtype != DTYPE_BF16 || strcmp(text, "bf16") == 0;
}

static bool parse_preset(const char *text, MadeSpec *s)
{
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (strcmp(text, preset_names[i]) == 0) {
            *s = presets[i];
            return true;
        }
    return false;
}

static bool parse_one(int flag, const char *text, Options *o, int **ints)
{
    int seed;
    switch (flag) {
    case 'o':
        o->out = text;
        return true;
    case 'p':
        return parse_preset(text, &o->spec);
    case 'f':
        o->spec.family = text;
        return made_family(text) && !made_family(text)->latent && !made_family(text)->no_experts;
    case 'F':
        return parse_format(text, &o->spec);
    case 's':
        if (!parse_int(text, &seed))
            return false;
        o->spec.seed = (uint64_t)seed;
        return true;
    default:
        return parse_int(text, ints[flag - 256]);
    }
}

static const char *check(const Options *o)
{
    const MadeSpec *s = &o->spec;
    const int sizes[] = {s->hidden, s->inter,    s->experts,
                         s->top_k,  s->layers,   s->vocab,
                         s->heads,  s->kv_heads, s->kv_lora ? 1 : s->head_dim};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] < 1)
            return "a size is missing or zero";
    if (!o->out)
        return "-o DIR is missing";
    if (s->mxfp4 &&
        (strcmp(s->family, "gpt_oss") != 0 || s->hidden % 32 != 0 || s->inter % 32 != 0))
        return "mxfp4 is for gpt_oss with hidden and inter in multiples of 32";
    if (s->heads % s->kv_heads != 0 || s->top_k > s->experts)
        return "heads must be a multiple of kv-heads, and top-k at most experts";
    return NULL;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"hidden", "inter", "experts",  "top-k",    "layers",
                                        "vocab",  "heads", "kv-heads", "head-dim", "part-mib"};
    enum { N_INTS = sizeof names / sizeof *names };
    Options o = {.spec = {.family = "qwen3_moe", .dtype = DTYPE_BF16, .dense_layer = -1},
                 .part_mib = 1024};
    int *ints[N_INTS] = {&o.spec.hidden,   &o.spec.inter, &o.spec.experts, &o.spec.top_k,
                         &o.spec.layers,   &o.spec.vocab, &o.spec.heads,   &o.spec.kv_heads,
                         &o.spec.head_dim, &o.part_mib};
    struct option flags[N_INTS + 5] = {{"preset", required_argument, NULL, 'p'},
                                       {"family", required_argument, NULL, 'f'},
                                       {"format", required_argument, NULL, 'F'},
                                       {"seed", required_argument, NULL, 's'}};
    for (int i = 0; i < N_INTS; i++)
        flags[4 + i] = (struct option){names[i], required_argument, NULL, 256 + i};
    int flag;
    while ((flag = getopt_long(argc, argv, "o:", flags, NULL)) != -1)
        if (flag == '?' || !parse_one(flag, optarg, &o, ints))
            return usage(flag == '?' ? "unknown flag" : optarg);
    const char *wrong = optind < argc ? argv[optind] : check(&o);
    if (wrong)
        return usage(wrong);

    MadeModel m;
    Err e;
    int64_t bytes = 0;
    if (mkdir(o.out, 0777) != 0 && errno != EEXIST) {
        perror(o.out);
        return 1;
    }
    Status st = made_create(&o.spec, &m, &e);
    if (st == ST_OK)
        st = made_write(&m, o.out, (int64_t)o.part_mib << 20, &e);
    if (st != ST_OK) {
        fprintf(stderr, "gen_model: %s\n", e.text);
        return 1;
    }
    for (int i = 0; i < m.n; i++)
        bytes += m.tensors[i].bytes;
    printf("%s: %s, %d tensors, %.2f GB\n", o.out, o.spec.family, m.n, (double)bytes / 1e9);
    made_free(&m);
    return 0;
}
