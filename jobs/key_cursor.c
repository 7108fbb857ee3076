/* jobs/key_cursor.c - see key_cursor.h. Strings are skipped by memchr, so a long prompt costs
 * little more than reading it. */
#include "jobs/key_cursor.h"

#include <string.h>

static void skip_space(KeyCursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\r' || *c->at == '\n'))
        c->at++;
}

static bool broken(KeyCursor *c)
{
    c->broken = true;
    c->depth = 0;
    return false;
}

/* c->at is behind the opening quote and ends behind the closing one. *end: where the text ends. */
static bool skip_string(KeyCursor *c, const char **end)
{
    const char *start = c->at;
    for (;;) {
        const char *quote = memchr(c->at, '"', (size_t)(c->end - c->at));
        if (!quote)
            return false;
        const char *slash = quote;
        while (slash > start && slash[-1] == '\\')
            slash--;
        c->at = quote + 1;
        if ((quote - slash) % 2 == 0) {
            *end = quote;
            return true;
        }
    }
}

/* c->at is behind an opening bracket; ends behind the one that closes it. */
static bool skip_container(KeyCursor *c)
{
    int open = 1;
    while (c->at < c->end) {
        char ch = *c->at++;
        const char *end;
        if (ch == '"') {
            if (!skip_string(c, &end))
                return false;
        } else if (ch == '{' || ch == '[') {
            open++;
        } else if ((ch == '}' || ch == ']') && --open == 0) {
            return true;
        }
    }
    return false;
}

static bool skip_value(KeyCursor *c)
{
    const char *end;
    if (c->at == c->end)
        return false;
    if (*c->at == '"') {
        c->at++;
        return skip_string(c, &end);
    }
    if (*c->at == '{' || *c->at == '[') {
        c->at++;
        return skip_container(c);
    }
    const char *start = c->at;
    while (c->at < c->end && !strchr(",]} \t\r\n", *c->at))
        c->at++;
    return c->at > start;
}

void key_cursor_start(KeyCursor *c, const char *line, size_t len)
{
    *c = (KeyCursor){.at = line, .end = line + len, .depth = 1};
    skip_space(c);
    if (c->at == c->end || *c->at != '{')
        broken(c);
    else
        c->at++;
}

/* Closing brackets and commas between two members. True when a member name comes next. */
static bool to_next_member(KeyCursor *c)
{
    for (;;) {
        skip_space(c);
        if (c->at == c->end)
            return broken(c);
        if (*c->at == '"')
            return true;
        if (*c->at != '}' || c->expected)
            return broken(c);
        c->at++;
        skip_space(c);
        if (--c->depth == 0) {
            c->broken = c->at != c->end;
            return false;
        }
        if (c->at < c->end && *c->at == ',') {
            c->at++;
            c->expected = true;
        } else if (c->at == c->end || *c->at != '}') {
            return broken(c);
        }
    }
}

bool key_cursor_next(KeyCursor *c, KeyView *out)
{
    const char *end;
    if (c->depth == 0 || !to_next_member(c))
        return false;
    c->expected = false;
    *out = (KeyView){.key = ++c->at, .depth = c->depth};
    if (!skip_string(c, &end))
        return broken(c);
    out->key_len = (size_t)(end - out->key);
    out->escaped = memchr(out->key, '\\', out->key_len) != NULL;
    skip_space(c);
    if (c->at == c->end || *c->at != ':')
        return broken(c);
    c->at++;
    skip_space(c);
    out->value = c->at;
    if (c->depth == 1 && c->at < c->end && *c->at == '{' && key_view_is(out, "body")) {
        c->at++;
        c->depth = 2;
        return true;
    }
    if (!skip_value(c))
        return broken(c);
    out->value_len = (size_t)(c->at - out->value);
    skip_space(c);
    if (c->at < c->end && *c->at == ',') {
        c->at++;
        c->expected = true;
    } else if (c->at == c->end || *c->at != '}') {
        return broken(c);
    }
    return true;
}

bool key_view_is(const KeyView *v, const char *want)
{
    return !v->escaped && v->key_len == strlen(want) && memcmp(v->key, want, v->key_len) == 0;
}
