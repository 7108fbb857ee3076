/* tests/jobs/test_summary.c - the lines that run ends with, and the metrics file. */
#include "jobs/metrics.h"
#include "jobs/summary.h"
#include "tests/support/check.h"
#include "tests/support/temp_dir.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    JobSummary s;
    const char *want;
} cases[] = {
    {"done",
     {"out.jsonl", "out.jsonl.job", 20, 20, 0, 0, 1234, 640, 3.2, 4, false, NULL},
     "out.jsonl: 20 rows\n"
     "tokens: 1.23 k in (386 tok/s), 640 out (200 tok/s); 3.2s computing, 4.0s in all\n"},
    {"failed and resumed",
     {"o", "o.job", 20, 20, 2, 15, 0, 0, 0, 100, false, NULL},
     "o: 20 rows, 2 of them failed, 15 from earlier runs\n"
     "tokens: 0 in (0 tok/s), 0 out (0 tok/s); 0.0s computing, 1m40s in all\n"},
    {"stopped",
     {"o", "o.job", 20, 7, 1, 3, 10, 10, 1, 1, false, "SIGTERM"},
     "stopped by SIGTERM: 7 of 20 rows are finished, 1 of them failed; all is kept in o.job, and "
     "the same command goes on\n"
     "tokens: 10 in (10 tok/s), 10 out (10 tok/s); 1.0s computing, 1.0s in all\n"},
    {"finished before",
     {"o", "o.job", 20, 20, 1, 20, 0, 0, 0, 0, true, NULL},
     "o: finished before, 20 rows, 1 of them failed; nothing to do\n"},
};

static double at(const cJSON *o, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);
    return cJSON_IsNumber(v) ? v->valuedouble : -1;
}

static int test_metrics(void)
{
    static const int64_t load[] = {10, 30, 20, 0, 0, 0, 7, 7, 7};
    RankMetrics ranks[2] = {{.host = "one",
                             .n_threads = 2,
                             .load_s = 2,
                             .run_s = 4,
                             .attention_s = 1.5,
                             .rows = 3,
                             .prompt_tokens = 100,
                             .output_tokens = 8,
                             .loaded_bytes = 3000000000,
                             .dispatch_bytes = 5,
                             .peak_rss_bytes = 77},
                            {.host = "two",
                             .run_s = 5,
                             .attention_s = 0.5,
                             .rows = 4,
                             .prompt_tokens = 50,
                             .output_tokens = 2,
                             .loaded_bytes = 3000000000,
                             .combine_bytes = 6}};
    JobMetrics m = {.version = "1",
                    .backend = "cpu",
                    .isa = "avx2",
                    .model = "m\"",
                    .run = 3,
                    .rows = 10,
                    .rows_done = 9,
                    .rows_failed = 1,
                    .rows_resumed = 2,
                    .steps = 40,
                    .idle_steps = 1,
                    .wall_s = 7.5,
                    .n_ranks = 2,
                    .ranks = ranks,
                    .n_layers = 3,
                    .n_experts = 3,
                    .expert_load = load};
    int failed = 0;
    char text[20000];
    Err e = {.text = ""};
    failed += check_int("write", metrics_write("m.json", &m, &e), ST_OK);
    failed += check_true("read", temp_dir_get("m.json", text, sizeof text) > 0);
    cJSON *o = cJSON_Parse(text);
    failed += check_true("JSON", o != NULL);
    const struct {
        const char *name;
        double want;
    } numbers[] = {{"run", 3},
                   {"rows_done", 9},
                   {"wall_s", 7.5},
                   {"prompt_tokens", 150},
                   {"output_tokens", 10},
                   {"prompt_tok_per_s", 30},
                   {"output_tok_per_s", 2},
                   {"loaded_bytes", 6e9},
                   {"loaded_bytes_per_s", 3e9},
                   {"exchanged_bytes", 11}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        failed += check_near(numbers[i].name, at(o, numbers[i].name), numbers[i].want, 0);
    failed += check_str("model", cJSON_GetStringValue(cJSON_GetObjectItem(o, "model")), "m\"");
    failed += check_true("input", cJSON_IsNull(cJSON_GetObjectItem(o, "input")));
    failed += check_true("stopped", cJSON_IsFalse(cJSON_GetObjectItem(o, "stopped")));
    failed += check_near("slowest", at(cJSON_GetObjectItem(o, "phases"), "run_s"), 5, 0);
    failed += check_near("slowest", at(cJSON_GetObjectItem(o, "parts"), "attention_s"), 1.5, 0);
    const cJSON *layers = cJSON_GetObjectItem(o, "expert_load"),
                *list = cJSON_GetObjectItem(o, "ranks");
    failed += check_int("layers", cJSON_GetArraySize(layers), 3);
    failed +=
        check_near("max over mean", at(cJSON_GetArrayItem(layers, 0), "max_over_mean"), 1.5, 1e-12);
    failed += check_true("no pairs", cJSON_IsNull(cJSON_GetObjectItem(cJSON_GetArrayItem(layers, 1),
                                                                      "max_over_mean")));
    failed += check_near("even", at(cJSON_GetArrayItem(layers, 2), "max_over_mean"), 1, 1e-12);
    failed += check_int("ranks", cJSON_GetArraySize(list), 2);
    failed += check_near("rows of rank 1", at(cJSON_GetArrayItem(list, 1), "rows"), 4, 0);
    failed +=
        check_near("memory of rank 0", at(cJSON_GetArrayItem(list, 0), "peak_rss_bytes"), 77, 0);
    failed += check_str(
        "host", cJSON_GetStringValue(cJSON_GetObjectItem(cJSON_GetArrayItem(list, 1), "host")),
        "two");
    cJSON_Delete(o);

    StrBuf b = {.data = NULL};
    failed += check_int("nothing", metrics_format(&(JobMetrics){.n_ranks = 0}, &b, &e), ST_OK);
    failed += check_has("nothing", b.data, "\"expert_load\":\t[]");
    strbuf_free(&b);
    failed += check_int("no directory", metrics_write("none/m.json", &m, &e), ST_IO);
    failed += check_true("memory", metrics_peak_rss() > 100000);
    return failed;
}

int main(void)
{
    int failed = 0;
    temp_dir_enter();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        StrBuf b = {.data = NULL};
        summary_format(&cases[i].s, &b);
        failed += check_str(cases[i].name, b.data, cases[i].want);
        strbuf_free(&b);
    }
    failed += test_metrics();
    return test_result(failed);
}
