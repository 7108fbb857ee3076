/* jobs/row_params.h - the body keys of a completions request: their types, ranges, neutral values
 * and refusals.
 *
 * Inside the room, for row_parse.c. A refusal is recorded in the row and
 * travels as ST_INPUT, so that TRY works; row_parse turns it into ST_OK with row->error set. */
#ifndef MB_JOBS_ROW_PARAMS_H
#define MB_JOBS_ROW_PARAMS_H

#include "io/json.h"
#include "jobs/row.h"

/* What a body says beside SamplingParams; used up while the row is parsed. */
typedef struct PromptParams {
    bool add_special;
    int64_t truncate;    /* 0: not; -1: to what the model takes; else tokens to keep */
    bool truncate_right; /* keep the first tokens instead of the last */
} PromptParams;

/* Records status 400 and returns ST_INPUT. code and param must outlive the row or be in its arena.
 */
Status row_refuse(Row *r, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Refuses a value of the wrong type, with "body.KEY" as param. */
Status row_refuse_type(Row *r, const char *key, const char *want);

/* Fills r->params (from the defaults, then the body) and *prompt. Lists live in the row's arena. */
Status row_params_parse(const RowContext *context, TokenizerCache *cache, const JsonValue *body,
                        Row *r, PromptParams *prompt, Err *e);
/* An integer, also when it is written as 5.0. */
bool row_json_int(const JsonValue *v, int64_t *out);

#endif
