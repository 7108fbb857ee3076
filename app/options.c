/* app/options.c - see options.h. */
#include "app/options.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Status bad_value(const Option *o, const char *text, Err *e)
{
    static const char *const what[] = {
        "text", "text", "an integer", "an integer", "a number", "a size such as 512M", "nothing"};
    if (o->least != 0 || o->most != 0)
        return err_set(e, ST_USAGE, "%s %s: expected %s from %.15g to %.15g", o->name, text,
                       what[o->kind], o->least, o->most);
    return err_set(e, ST_USAGE, "%s %s: expected %s", o->name, text, what[o->kind]);
}

static bool in_range(const Option *o, double v)
{
    return (o->least == 0 && o->most == 0) || (v >= o->least && v <= o->most);
}

static bool parse_size(const char *text, size_t *out)
{
    static const char suffixes[] = "KMGT";
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (end == text || errno || !(v >= 0))
        return false;
    const char *s = *end ? strchr(suffixes, *end >= 'a' ? *end - 'a' + 'A' : *end) : NULL;
    if (s) {
        v = ldexp(v, 10 * (int)(s - suffixes + 1));
        end++;
        if (strcmp(end, "B") == 0 || strcmp(end, "iB") == 0)
            end += strlen(end);
    }
    if (*end || v >= 9.0e18)
        return false;
    *out = (size_t)v;
    return true;
}

static Status set_number(const Option *o, const char *text, Err *e)
{
    char *end;
    errno = 0;
    if (o->kind == OPTION_NUMBER) {
        double v = strtod(text, &end);
        if (end == text || *end || errno || !isfinite(v) || !in_range(o, v))
            return bad_value(o, text, e);
        *(double *)o->value = v;
        return ST_OK;
    }
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno || !in_range(o, (double)v))
        return bad_value(o, text, e);
    if (o->kind == OPTION_INT64)
        *(int64_t *)o->value = v;
    else if (v < INT_MIN || v > INT_MAX)
        return bad_value(o, text, e);
    else
        *(int *)o->value = (int)v;
    return ST_OK;
}

static Status set_value(const Option *o, const char *text, Err *e)
{
    switch (o->kind) {
    case OPTION_TEXT:
        *(const char **)o->value = text;
        return ST_OK;
    case OPTION_LIST: {
        OptionList *l = o->value;
        if (l->n == OPTION_LIST_MAX)
            return err_set(e, ST_USAGE, "%s: given more than %d times", o->name, OPTION_LIST_MAX);
        l->at[l->n++] = text;
        return ST_OK;
    }
    case OPTION_SIZE:
        return parse_size(text, o->value) && in_range(o, (double)*(size_t *)o->value)
                   ? ST_OK
                   : bad_value(o, text, e);
    case OPTION_FLAG:
        *(bool *)o->value = true;
        return ST_OK;
    case OPTION_INT:
    case OPTION_INT64:
    case OPTION_NUMBER:
        return set_number(o, text, e);
    }
    return ST_OK;
}

static const Option *find(const Option *options, size_t n, const char *arg, size_t len)
{
    for (size_t i = 0; i < n; i++) {
        const Option *o = &options[i];
        if ((strlen(o->name) == len && memcmp(o->name, arg, len) == 0) ||
            (o->brief && strcmp(o->brief, arg) == 0))
            return o;
    }
    return NULL;
}

Status options_parse(const Option *options, size_t n, int argc, char **argv,
                     const char **positional, int max_positional, int *n_positional, bool *help,
                     Err *e)
{
    int found = 0;
    *help = false;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            *help = true;
            return ST_OK;
        }
        if (arg[0] != '-' || arg[1] == 0) {
            if (found == max_positional)
                return err_set(e, ST_USAGE, "unexpected argument \"%s\"", arg);
            positional[found++] = arg;
            continue;
        }
        const char *equals = strchr(arg, '=');
        const Option *o = find(options, n, arg, equals ? (size_t)(equals - arg) : strlen(arg));
        if (!o)
            return err_set(e, ST_USAGE, "unknown option \"%s\"", arg);
        if (o->kind == OPTION_FLAG && equals)
            return err_set(e, ST_USAGE, "%s takes no value", o->name);
        const char *value = equals                   ? equals + 1
                            : o->kind == OPTION_FLAG ? ""
                            : i + 1 < argc           ? argv[++i]
                                                     : NULL;
        if (!value)
            return err_set(e, ST_USAGE, "%s: needs a value (%s)", o->name, o->operand);
        TRY(set_value(o, value, e));
        if (o->given)
            *o->given = true;
    }
    if (n_positional)
        *n_positional = found;
    return ST_OK;
}

void options_print(const Option *options, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const Option *o = &options[i];
        char left[64];
        snprintf(left, sizeof left, "%s%s%s%s%s", o->brief ? o->brief : "", o->brief ? ", " : "",
                 o->name, o->operand ? " " : "", o->operand ? o->operand : "");
        printf("  %-28s %s\n", left, o->help);
    }
}
