/* tests/tools/compare_goldens.c - recorded answers of a server beside an output file of moebatch run.
 *
 *   compare_goldens rows RECORDING          prints the /v1/completions requests as input rows
 *   compare_goldens check RECORDING OUTPUT  compares the output lines with the recorded answers, in order */
#include "tests/support/check.h"
#include "tests/support/wire_golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double tolerance =
    1e-3; /* of log-probabilities: the recording is another program's float32 */

/* The next line without its end, or NULL. */
static char *next_line(FILE *f, char **line, size_t *cap)
{
    ssize_t n = getline(line, cap, f);
    if (n < 0)
        return NULL;
    (*line)[strcspn(*line, "\n")] = 0;
    return *line;
}

static int check_line(const WireGolden *want, const char *line, Arena *arena)
{
    JsonValue *v;
    Err e;
    int64_t status = 0;
    if (!line || json_parse(line, strlen(line), arena, &v, &e) != ST_OK)
        return check_true("an output line that is JSON", false);
    const JsonValue *response = json_get(v, "response"), *error = json_get(v, "error");
    int failed = check_true("custom_id", json_is_string(json_get(v, "custom_id"), want->custom_id));
    failed += check_true("error is null", error && error->type == JSON_NULL);
    failed += check_true("status_code", json_int64(json_get(response, "status_code"), &status));
    failed += wire_golden_check(want, status, json_get(response, "body"), tolerance);
    if (failed)
        fprintf(stderr, "%s: %.2000s\n", want->custom_id, line);
    return failed;
}

int main(int argc, char **argv)
{
    bool check = argc == 4 && strcmp(argv[1], "check") == 0;
    char *line = NULL, *ours = NULL;
    size_t cap = 0, ours_cap = 0;
    int failed = 0, n = 0, n_same = 0;
    if (!check && (argc != 3 || strcmp(argv[1], "rows") != 0)) {
        fprintf(stderr, "Usage: compare_goldens rows RECORDING | check RECORDING OUTPUT\n");
        return 2;
    }
    FILE *recording = fopen(argv[2], "r"), *output = check ? fopen(argv[3], "r") : NULL;
    failed += check_true("open the files", recording && (output || !check));
    while (!failed && next_line(recording, &line, &cap)) {
        Arena arena = {0};
        WireGolden g;
        bool broken;
        if (wire_golden_read(line, strlen(line), &arena, &g, &broken)) {
            n++;
            if (check)
                n_same += check_line(&g, next_line(output, &ours, &ours_cap), &arena) == 0;
            else
                printf("%.*s\n", (int)g.request_len, g.request);
        }
        failed += check_true("a line of the recording", !broken);
        arena_free(&arena);
    }
    if (check && !failed) {
        failed +=
            check_true("no further output lines", next_line(output, &ours, &ours_cap) == NULL);
        printf("%d of %d answers agree\n", n_same, n);
    }
    if (recording)
        fclose(recording);
    if (output)
        fclose(output);
    free(line);
    free(ours);
    return test_result(failed + (check ? n - n_same : 0));
}
