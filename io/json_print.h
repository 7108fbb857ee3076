/* io/json_print.h - JSON values back to text, numbers as they were written. */
#ifndef MB_IO_JSON_PRINT_H
#define MB_IO_JSON_PRINT_H

#include "io/json.h"
#include "io/strbuf.h"

/* v, indented by two blanks a level from indent on, without members of the names in drop
 * (NULL-terminated; NULL: none) at any depth. Lists of plain values stay on one line. */
void json_print(const JsonValue *v, const char *const *drop, int indent, StrBuf *out);
/* "key": value of one member, indented. */
void json_print_member(const JsonValue *member, const char *const *drop, int indent, StrBuf *out);

#endif
