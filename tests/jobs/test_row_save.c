/* tests/jobs/test_row_save.c - rows saved in the middle and taken up again, from good bytes and from
 * others. */
#include "tests/support/check.h"
#include "tests/support/row_case.h"

#include <stdlib.h>
#include <string.h>

#define B(c) (TINY_BYTE + (c))

static RowCase rows;

static const char *const saved_lines[] = {
    "{\"prompt\":\"ab\",\"max_tokens\":5,\"stop\":\"xy\",\"logprobs\":2}",
    "{\"prompt\":[\"ab\",\"a c\"],\"n\":2,\"max_tokens\":4,\"prompt_logprobs\":1}",
    "{\"prompt\":\"ab c\",\"echo\":true,\"max_tokens\":0,\"logprobs\":1}",
    "{\"input_ids\":[5],\"max_tokens\":3,\"min_tokens\":1,\"stop_token_ids\":[7]}",
};

/* Some tokens for every choice, as many as its number and round allow. */
static void feed_all(Row *r, int upto)
{
    static const int32_t ids[] = {B('x'), B(0xc3), B(0xa9), B('x'), B('y'), B('z')};
    Err e;
    for (int i = 0; i < r->n_choices; i++) {
        Choice *c = &r->choices[i];
        while (c->finish == FINISH_NONE && c->out.n < (size_t)(upto < 6 ? upto : 6)) {
            TokenLogprobs lp = row_case_logprobs(ids[c->out.n]);
            if (r->params.max_tokens == 0) {
                c->finish = FINISH_LENGTH;
                r->n_finished++;
            } else if (choice_accept(&rows.context, r, c, ids[c->out.n],
                                     r->params.logprobs >= 0 ? &lp : NULL, &e) != ST_OK)
                abort();
        }
    }
    for (int p = 0; p < r->n_prompts && upto > 0; p++)
        for (size_t k = 1; r->prompts[p].logprobs && k < r->prompts[p].ids.n; k++)
            r->prompts[p].logprobs[k] = row_case_logprobs((int32_t)k);
}

/* Saved after any number of tokens and taken up again, a row ends as it would have. */
static int test_save(void)
{
    StrBuf whole = {0}, resumed = {0}, bytes = {0};
    Arena arena = {0};
    Err e = {0};
    int failed = 0;
    row_case_use(&rows, BYTES);
    for (size_t i = 0; i < sizeof saved_lines / sizeof *saved_lines; i++) {
        Row *r = row_case_parse(&rows, saved_lines[i]);
        feed_all(r, 6);
        row_case_render(&rows, r, &arena, &whole);
        row_free(r);
        for (int upto = 0; upto <= 6; upto++) {
            Row *part = row_case_parse(&rows, saved_lines[i]),
                *rest = row_case_parse(&rows, saved_lines[i]);
            feed_all(part, upto);
            strbuf_clear(&bytes);
            failed += check_int("save", row_save(part, &bytes, &e), ST_OK);
            failed += check_int("restore",
                                row_restore(&rows.context, rest, bytes.data, bytes.len, &e), ST_OK);
            failed += check_int("finished", rest->n_finished, part->n_finished);
            if (upto == 6) { /* nothing is fed again */
                row_case_render(&rows, rest, &arena, &resumed);
                failed += check_str(saved_lines[i], resumed.data, whole.data);
            }
            feed_all(rest, 6);
            row_case_render(&rows, rest, &arena, &resumed);
            failed += check_str(saved_lines[i], resumed.data, whole.data);
            row_free(part);
            row_free(rest);
        }
    }
    arena_free(&arena);
    strbuf_free(&whole);
    strbuf_free(&resumed);
    strbuf_free(&bytes);
    return failed;
}

/* Bytes that were cut, lengthened, changed or belong to another line never do more than be refused.
 */
static int test_hostile_save(void)
{
    StrBuf bytes = {0};
    Err e = {0};
    int failed = 0;
    row_case_use(&rows, BYTES);
    for (size_t i = 0; i < sizeof saved_lines / sizeof *saved_lines; i++) {
        Row *r = row_case_parse(&rows, saved_lines[i]);
        feed_all(r, 2);
        strbuf_clear(&bytes);
        failed += check_int("save", row_save(r, &bytes, &e), ST_OK);
        row_free(r);
        for (size_t n = 0; n < bytes.len; n++) {
            char *cut = malloc(n + 1); /* its own size, so that a read behind it is seen */
            if (!cut)
                abort();
            memcpy(cut, bytes.data, n);
            r = row_case_parse(&rows, saved_lines[i]);
            failed += check_int("cut", row_restore(&rows.context, r, cut, n, &e), ST_INPUT);
            row_free(r);
            free(cut);
        }
        strbuf_add(&bytes, "", 1);
        r = row_case_parse(&rows, saved_lines[i]);
        failed += check_int("one byte more",
                            row_restore(&rows.context, r, bytes.data, bytes.len, &e), ST_INPUT);
        row_free(r);
        bytes.len--;
        r = row_case_parse(&rows, saved_lines[(i + 1) % 4]);
        failed += check_int("another line",
                            row_restore(&rows.context, r, bytes.data, bytes.len, &e), ST_INPUT);
        row_free(r);
        for (size_t n = 0; n < bytes.len; n++) {
            bytes.data[n] = (char)(bytes.data[n] ^ 0xff);
            r = row_case_parse(&rows, saved_lines[i]);
            Status st = row_restore(&rows.context, r, bytes.data, bytes.len, &e);
            failed +=
                check_true("changed", n < 36 ? st == ST_INPUT : st == ST_INPUT || st == ST_OK);
            row_free(r);
            bytes.data[n] = (char)(bytes.data[n] ^ 0xff);
        }
    }
    strbuf_free(&bytes);
    return failed;
}

int main(void)
{
    Err e = {0};
    if (row_case_open(&rows, &e) != ST_OK)
        return check_str("tokenizers", e.text, "");
    int failed = test_save();
    failed += test_hostile_save();
    row_case_close(&rows);
    return test_result(failed);
}
