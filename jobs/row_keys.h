/* jobs/row_keys.h - every body key of a completions request: its type, range and neutral value. */
#ifndef MB_JOBS_ROW_KEYS_H
#define MB_JOBS_ROW_KEYS_H

#include <stdbool.h>
#include <stddef.h>

typedef enum KeyKind {
    KEY_INT,         /* int; beyond max it is refused or, with clamp, becomes max */
    KEY_INT64,       /* any 64-bit integer */
    KEY_REAL,        /* double, finite */
    KEY_BOOL,        /* bool */
    KEY_ELSEWHERE,   /* read by a function of its own */
    KEY_IGNORED,     /* accepted, changes nothing here */
    KEY_UNSUPPORTED, /* would change the result: only its neutral value is accepted */
} KeyKind;

typedef struct BodyKey {
    const char *name;
    KeyKind kind;
    size_t offset;    /* in SamplingParams */
    double min, max;  /* of KEY_INT and KEY_REAL, inclusive unless open_min */
    bool open_min;    /* min itself is out of range */
    bool clamp;       /* larger integers mean no more than max */
    bool optional;    /* the default stands for "absent" and is outside the range */
    bool names_param; /* a refused range names the key as error.param, as servers do for some keys
                         only */
    const char *neutral; /* of KEY_UNSUPPORTED, beside null: "false", "true", "1", "[]", "text" */
} BodyKey;

extern const BodyKey body_keys[];
extern const int n_body_keys;

/* Whether anything reads, refuses or deliberately ignores a key; top: in the line's own object,
 * where the keys of a batch line and of a short row's body lie side by side. */
bool row_key_known(const char *key, size_t len, bool top);

#endif
