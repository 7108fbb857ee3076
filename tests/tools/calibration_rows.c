/* tests/tools/calibration_rows.c - windows of a text as rows of input_ids, for `quantize --calibrate`.
 *
 *   calibration_rows MODEL TEXT    the 512-token windows 0-3, 36-39, 72-75, 108-111, 144-147 and 180-183,
 *                                  on which the exports behind quant_perplexity.json were calibrated */
#include "io/file.h"
#include "jobs/perplexity.h"

#include <stdio.h>
#include <stdlib.h>

enum { WINDOW = 512, PERIOD = 36, RUN = 4, N_RUNS = 6 };

static void print_window(const int32_t *ids)
{
    printf("{\"input_ids\": [");
    for (int i = 0; i < WINDOW; i++)
        printf(i ? ",%d" : "%d", ids[i]);
    puts("]}");
}

int main(int argc, char **argv)
{
    Tokenizer *tokenizer = NULL;
    TokenizerCache *cache = NULL;
    TokenIds ids = {0};
    char *text = NULL;
    size_t len;
    Err e = {0};
    Status st;
    if (argc != 3) {
        fprintf(stderr, "usage: calibration_rows MODEL TEXT\n");
        return 2;
    }
    TRY_GOTO(tokenizer_load(argv[1], &tokenizer, &e));
    TRY_GOTO(tokenizer_cache_create(tokenizer, &cache, &e));
    TRY_GOTO(file_read(argv[2], 1 << 26, &text, &len, &e));
    TRY_GOTO(perplexity_encode(tokenizer, cache, text, len, &ids, &e));
    if (ids.n < ((N_RUNS - 1) * PERIOD + RUN) * WINDOW) {
        st = err_set(&e, ST_INPUT, "%s: too short", argv[2]);
        goto fail;
    }
    for (int run = 0; run < N_RUNS; run++)
        for (int w = 0; w < RUN; w++)
            print_window(ids.ids + (run * PERIOD + w) * WINDOW);
fail:
    if (st != ST_OK)
        fprintf(stderr, "calibration_rows: %s\n", e.text);
    free(text);
    tokenids_free(&ids);
    tokenizer_cache_free(cache);
    tokenizer_free(tokenizer);
    return st == ST_OK ? 0 : 1;
}
