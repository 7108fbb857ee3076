/* jobs/key_cursor.h - walks over the member names of one input line without building a tree.
 *
 * The index needs the custom_id of every line, and lines of 100 MB are allowed: values are skipped,
 * not decoded. The walk visits the members of the line's object and those of its "body"; it does
 * not prove that the line is JSON. */
#ifndef MB_JOBS_KEY_CURSOR_H
#define MB_JOBS_KEY_CURSOR_H

#include <stdbool.h>
#include <stddef.h>

typedef struct KeyCursor {
    const char *at, *end;
    int depth;     /* 1: in the line's object, 2: in its body, 0: behind the end */
    bool expected; /* a member must follow, since a comma was read */
    bool broken;   /* the line cannot be JSON; the walk is over */
} KeyCursor;

typedef struct KeyView {
    const char *key; /* between the quotes, as written */
    size_t key_len;
    bool escaped; /* the name holds a backslash, so the bytes are not the name */
    int depth;    /* as in KeyCursor */
    const char *value;
    size_t value_len; /* as written; 0 for a body object, whose members come next */
} KeyView;

/* line stays the caller's and must outlive the cursor. Anything but an object is broken at once. */
void key_cursor_start(KeyCursor *c, const char *line, size_t len);
/* The next member; false at the end and where the line is broken. */
bool key_cursor_next(KeyCursor *c, KeyView *out);
/* The name is exactly want; never true for an escaped name. */
bool key_view_is(const KeyView *v, const char *want);

#endif
