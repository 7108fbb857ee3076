/* tests/support/wire_golden.h - the recorded answers of a server to /v1/completions requests, and
 * how ours compare.
 *
 * What must agree: status, error.param of a refusal; text, tokens, log-probabilities within a
 * tolerance, text offsets, finish and stop reasons, token ids, prompt log-probabilities and usage
 * of an answer. Ids, times, keys that we do not write and the wording of errors are free. */
#ifndef MB_TESTS_WIRE_GOLDEN_H
#define MB_TESTS_WIRE_GOLDEN_H

#include "io/arena.h"
#include "io/json.h"

#include <stddef.h>

typedef enum GoldenKind {
    GOLDEN_EQUAL,       /* ours must be the same */
    GOLDEN_SHAPE,       /* sampled: as many choices, of that length */
    GOLDEN_UNSUPPORTED, /* answered there, refused here with the key as param */
    GOLDEN_OWN_READING  /* bad-words: the word must not appear, which that server let through */
} GoldenKind;

typedef struct WireGolden {
    const char *custom_id;
    const char *request; /* the batch line, as text */
    size_t request_len;
    int status;
    const JsonValue *body; /* NULL for a stream */
    GoldenKind kind;
    const char *refused_param; /* of GOLDEN_UNSUPPORTED */
} WireGolden;

/* Reads one line of the recording. False: the line is for another endpoint, or not understood
 * (*broken). Everything lives in arena or line. */
bool wire_golden_read(const char *line, size_t len, Arena *arena, WireGolden *out, bool *broken);
/* Holds our status and body against it; prints what differs and returns how often. */
int wire_golden_check(const WireGolden *want, int64_t status, const JsonValue *body,
                      double tolerance);

#endif
