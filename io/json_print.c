/* io/json_print.c - see json_print.h. */
#include "io/json_print.h"

#include <string.h>

static bool dropped(const JsonValue *v, const char *const *drop)
{
    for (int i = 0; drop && v->key && drop[i]; i++)
        if (strcmp(v->key, drop[i]) == 0)
            return true;
    return false;
}

static void new_line(int indent, StrBuf *out)
{
    strbuf_fmt(out, "\n%*s", indent, "");
}

static bool has_nested(const JsonValue *v)
{
    for (const JsonValue *m = v->child; m; m = m->next)
        if (m->type == JSON_ARRAY || m->type == JSON_OBJECT)
            return true;
    return false;
}

void json_print_member(const JsonValue *member, const char *const *drop, int indent, StrBuf *out)
{
    strbuf_json_string(out, member->key, member->key_len);
    strbuf_str(out, ": ");
    json_print(member, drop, indent, out);
}

static void print_members(const JsonValue *v, const char *const *drop, int indent, StrBuf *out)
{
    bool object = v->type == JSON_OBJECT, lines = object || has_nested(v), first = true;
    strbuf_str(out, object ? "{" : "[");
    for (const JsonValue *m = v->child; m; m = m->next) {
        if (dropped(m, drop))
            continue;
        strbuf_str(out, first ? "" : lines ? "," : ", ");
        first = false;
        if (lines)
            new_line(indent + 2, out);
        if (object)
            json_print_member(m, drop, indent + 2, out);
        else
            json_print(m, drop, indent + 2, out);
    }
    if (lines && !first)
        new_line(indent, out);
    strbuf_str(out, object ? "}" : "]");
}

void json_print(const JsonValue *v, const char *const *drop, int indent, StrBuf *out)
{
    switch (v->type) {
    case JSON_NULL:
        strbuf_str(out, "null");
        break;
    case JSON_FALSE:
        strbuf_str(out, "false");
        break;
    case JSON_TRUE:
        strbuf_str(out, "true");
        break;
    case JSON_NUMBER:
        strbuf_add(out, v->text, v->len);
        break;
    case JSON_STRING:
        strbuf_json_string(out, v->text, v->len);
        break;
    case JSON_ARRAY:
    case JSON_OBJECT:
        print_members(v, drop, indent, out);
        break;
    }
}
