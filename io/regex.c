/* io/regex.c - runs a compiled pattern: backtracking with a stack of its own, and a budget of
 * steps. */
#include "io/regex_internal.h"

#include "io/utf8.h"

#include <stdlib.h>

/* Something to go back to. A greedy loop over single characters is one entry that gives them back
 * one by one; a lazy one takes one more. */
typedef struct RegexTry {
    uint32_t pc;
    enum { TRY_HERE, TRY_GIVE_BACK, TRY_ONE_MORE } kind;
    size_t at;
    size_t bound; /* TRY_GIVE_BACK: do not go below; TRY_ONE_MORE: how many more may be taken */
} RegexTry;

typedef struct Run {
    const Regex *r;
    RegexStack *stack;
    const uint8_t *text;
    size_t len;
    size_t *steps;
    Err *e;
} Run;

/* A match is a position; these are not. */
#define NO_MATCH SIZE_MAX
#define FAILED (SIZE_MAX - 1)

static bool push(Run *run, RegexTry t)
{
    RegexStack *s = run->stack;
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 64;
        RegexTry *p = realloc(s->tries, cap * sizeof *p);
        if (!p) {
            err_set(run->e, ST_MEMORY, "no memory to match a pattern");
            return false;
        }
        s->tries = p;
        s->cap = cap;
    }
    s->tries[s->n++] = t;
    return true;
}

static bool spend(Run *run, size_t steps)
{
    if (*run->steps < steps) {
        *run->steps = 0;
        err_set(run->e, ST_INPUT, "the pre-tokenizer's pattern takes too many steps on this text");
        return false;
    }
    *run->steps -= steps;
    return true;
}

/* Bytes that a single-character instruction takes at at, or 0. */
static size_t take_one(const Run *run, const RegexCode *c, size_t at)
{
    if (at >= run->len)
        return 0;
    uint32_t code = utf8_code(run->text + at);
    bool ok = c->op == RX_CHAR ? code == c->x : regex_in_set(run->r->sets[c->x], code);
    return ok ? utf8_len(run->text[at]) : 0;
}

static bool word_at(const Run *run, size_t at)
{
    return at < run->len && unicode_class[utf8_code(run->text + at)] & UC_WORD;
}

static size_t char_before(const Run *run, size_t at)
{
    do
        at--;
    while ((run->text[at] & 0xc0) == 0x80);
    return at;
}

static bool anchor_holds(const Run *run, uint32_t anchor, size_t at)
{
    const uint8_t *s = run->text;
    bool edge;
    switch ((RegexAnchor)anchor) {
    case RX_LINE_START:
        return at == 0 || (s[at - 1] == '\n' && at < run->len);
    case RX_LINE_END:
        return at == run->len || s[at] == '\n';
    case RX_TEXT_START:
        return at == 0;
    case RX_TEXT_END:
        return at == run->len;
    case RX_TEXT_END_NEWLINE:
        return at == run->len || (at + 1 == run->len && s[at] == '\n');
    case RX_WORD_EDGE:
    case RX_NO_WORD_EDGE:
        edge = (at > 0 && word_at(run, char_before(run, at))) != word_at(run, at);
        return edge == (anchor == RX_WORD_EDGE);
    }
    return false;
}

/* RX_LOOP at pc. Returns where to go on behind it, NO_MATCH or FAILED. */
static size_t run_loop(Run *run, uint32_t pc, size_t at)
{
    const RegexCode *loop = &run->r->code[pc], *one = loop + 1;
    size_t n = 0, most = loop->mode == RX_LAZY ? (size_t)loop->min : (size_t)loop->max, floor = at;
    if (loop->max == RX_NO_LIMIT && loop->mode != RX_LAZY)
        most = SIZE_MAX;
    while (n < most) {
        size_t bytes = take_one(run, one, at);
        if (!bytes)
            break;
        at += bytes;
        if (++n == (size_t)loop->min)
            floor = at;
    }
    if (!spend(run, n))
        return FAILED;
    if (n < (size_t)loop->min)
        return NO_MATCH;
    if (loop->mode == RX_GREEDY && at > floor &&
        !push(run, (RegexTry){pc + 2, TRY_GIVE_BACK, at, floor}))
        return FAILED;
    size_t more = loop->max == RX_NO_LIMIT ? SIZE_MAX : (size_t)(loop->max - loop->min);
    if (loop->mode == RX_LAZY && more && !push(run, (RegexTry){pc, TRY_ONE_MORE, at, more}))
        return FAILED;
    return at;
}

/* Takes the newest entry above base; false when there is none left. *at is FAILED after an error.
 */
static bool backtrack(Run *run, size_t base, uint32_t *pc, size_t *at)
{
    RegexStack *s = run->stack;
    while (s->n > base) {
        RegexTry t = s->tries[--s->n];
        *pc = t.pc;
        *at = t.at;
        if (t.kind == TRY_GIVE_BACK) {
            *at = char_before(run, t.at);
            if (*at > t.bound)
                s->tries[s->n++] = (RegexTry){t.pc, TRY_GIVE_BACK, *at, t.bound};
        } else if (t.kind == TRY_ONE_MORE) {
            size_t bytes = take_one(run, &run->r->code[t.pc + 1], t.at);
            if (!bytes)
                continue;
            *at += bytes;
            if (t.bound > 1)
                s->tries[s->n++] = (RegexTry){t.pc, TRY_ONE_MORE, *at,
                                              t.bound == SIZE_MAX ? SIZE_MAX : t.bound - 1};
            *pc = t.pc + 2;
        }
        return true;
    }
    return false;
}

/* From pc at position at to the RX_MATCH of this level. Recursion is only as deep as look-ahead and
 * atomic groups nest in the pattern. */
static size_t run_from(Run *run, uint32_t pc, size_t at)
{
    size_t base = run->stack->n;
    for (;;) {
        const RegexCode *c = &run->r->code[pc];
        size_t next = NO_MATCH, bytes;
        uint32_t next_pc = pc + 1;
        if (!spend(run, 1))
            return FAILED;
        switch (c->op) {
        case RX_CHAR:
        case RX_SET:
            bytes = take_one(run, c, at);
            next = bytes ? at + bytes : NO_MATCH;
            break;
        case RX_LOOP:
            next = run_loop(run, pc, at);
            next_pc = pc + 2;
            break;
        case RX_SPLIT:
            if (!push(run, (RegexTry){c->y, TRY_HERE, at, 0}))
                return FAILED;
            next = at;
            next_pc = c->x;
            break;
        case RX_JUMP:
            next = at;
            next_pc = c->x;
            break;
        case RX_LOOK:
            next = run_from(run, pc + 1, at);
            if (next != FAILED)
                next = (next == NO_MATCH) == (c->y != 0) ? at : NO_MATCH;
            next_pc = c->x;
            break;
        case RX_ATOMIC:
            next = run_from(run, pc + 1, at);
            next_pc = c->x;
            break;
        case RX_ASSERT:
            next = anchor_holds(run, c->x, at) ? at : NO_MATCH;
            break;
        case RX_MATCH:
            run->stack->n = base;
            return at;
        }
        if (next == FAILED)
            return FAILED;
        if (next != NO_MATCH) {
            at = next;
            pc = next_pc;
        } else if (!backtrack(run, base, &pc, &at)) {
            return NO_MATCH;
        }
    }
}

Status regex_find(const Regex *r, RegexStack *stack, const char *text, size_t len, size_t from,
                  size_t *steps, bool *found, size_t *start, size_t *end, Err *e)
{
    Err local;
    Run run = {r, stack, (const uint8_t *)text, len, steps, e ? e : &local};
    *found = false;
    for (size_t at = from; at <= len; at += at < len ? utf8_len(run.text[at]) : 1) {
        stack->n = 0;
        size_t got = run_from(&run, 0, at);
        if (got == FAILED)
            return run.e->code;
        if (got != NO_MATCH) {
            *found = true;
            *start = at;
            *end = got;
            return ST_OK;
        }
    }
    return ST_OK;
}

void regex_stack_free(RegexStack *stack)
{
    free(stack->tries);
    *stack = (RegexStack){0};
}
