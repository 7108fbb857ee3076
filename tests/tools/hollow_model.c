/* tests/tools/hollow_model.c - the headers of a published model's size, without its weights: files
 * of hundreds of gigabytes that are holes, for what reads headers only.
 *
 *   hollow_model NAME PARTS DIR
 */
#include "tests/support/made_family.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MLA .kv_lora = 512, .nope = 128, .rope = 64, .v_dim = 128

static const struct {
    const char *name;
    MadeSpec spec;
} models[] = {
    {"granite-3.0-1b",
     {"granitemoe", 1024, 512, 32, 8, 24, 49155, 16, 8, 64, DTYPE_BF16, .tied = true,
      .dense_layer = -1}},
    {"OLMoE-1B-7B",
     {"olmoe", 2048, 1024, 64, 8, 16, 50304, 16, 16, 128, DTYPE_BF16, .dense_layer = -1}},
    {"Qwen1.5-MoE-A2.7B",
     {"qwen2_moe", 2048, 1408, 60, 4, 24, 151936, 16, 16, 128, DTYPE_BF16, .dense_layer = -1,
      .n_shared = 4}},
    {"DeepSeek-V2-Lite",
     {"deepseek_v2", 2048, 1408, 64, 6, 27, 102400, 16, 1, 0, DTYPE_BF16, .dense_layer = 0, MLA,
      .n_shared = 2, .dense_inter = 10944}},
    {"gpt-oss-20b",
     {"gpt_oss", 2880, 2880, 32, 4, 24, 201088, 64, 8, 64, DTYPE_BF16, .dense_layer = -1,
      .mxfp4 = true}},
    {"Qwen3-30B-A3B",
     {"qwen3_moe", 2048, 768, 128, 8, 48, 151936, 32, 4, 128, DTYPE_BF16, .dense_layer = -1}},
    {"Mixtral-8x7B",
     {"mixtral", 4096, 14336, 8, 2, 32, 32000, 32, 8, 128, DTYPE_BF16, .dense_layer = -1}},
    {"GLM-4.5-Air",
     {"glm4_moe", 4096, 1408, 128, 8, 46, 151552, 96, 8, 128, DTYPE_BF16, .dense_layer = 0,
      .n_shared = 1, .dense_inter = 10944}},
    {"MiniMax-M2",
     {"minimax_m2", 3072, 1536, 256, 8, 62, 200064, 48, 8, 128, DTYPE_BF16, .dense_layer = -1}},
    {"DeepSeek-V2",
     {"deepseek_v2", 5120, 1536, 160, 6, 60, 102400, 128, 1, 0, DTYPE_BF16, .dense_layer = 0, MLA,
      .q_lora = 1536, .n_shared = 2, .dense_inter = 12288}},
    {"DeepSeek-V3",
     {"deepseek_v3", 7168, 2048, 256, 8, 61, 129280, 128, 1, 0, DTYPE_BF16, .dense_layer = 2, MLA,
      .q_lora = 1536, .n_shared = 1, .n_group = 8, .topk_group = 4, .dense_inter = 18432}},
    {"Kimi-K2",
     {"kimi_k2", 7168, 2048, 384, 8, 61, 163840, 64, 1, 0, DTYPE_BF16, .dense_layer = 0, MLA,
      .q_lora = 1536, .n_shared = 1, .dense_inter = 18432}},
};

int main(int argc, char **argv)
{
    MadeModel m = {0};
    Err e = {0};
    size_t i = 0, n = sizeof models / sizeof *models;
    long parts = argc == 4 ? strtol(argv[2], NULL, 10) : 0;
    int64_t bytes = 0;
    while (i < n && argc == 4 && strcmp(argv[1], models[i].name) != 0)
        i++;
    if (parts < 1 || i == n) {
        fprintf(stderr, "usage: hollow_model NAME PARTS DIR\n");
        return 2;
    }
    if (mkdir(argv[3], 0777) != 0 && errno != EEXIST) {
        perror(argv[3]);
        return 1;
    }
    Status st = made_create(&models[i].spec, &m, &e);
    for (int t = 0; t < m.n; t++)
        bytes += m.tensors[t].bytes;
    m.hollow = true;
    if (st == ST_OK)
        st = made_write(&m, argv[3], parts > 1 ? bytes / parts : 0, &e);
    made_free(&m);
    if (st != ST_OK)
        fprintf(stderr, "hollow_model: %s\n", e.text);
    return st == ST_OK ? 0 : 1;
}
