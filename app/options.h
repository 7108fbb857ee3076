/* app/options.h - a command's flags as a table: parsing, checking and help from one place. */
#ifndef MB_APP_OPTIONS_H
#define MB_APP_OPTIONS_H

#include "io/err.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum OptionKind {
    OPTION_TEXT,   /* const char ** */
    OPTION_LIST,   /* OptionList *: may be given several times */
    OPTION_INT,    /* int * */
    OPTION_INT64,  /* int64_t * */
    OPTION_NUMBER, /* double * */
    OPTION_SIZE,   /* size_t *: bytes, suffixes K, M, G, T = 2^10 and so on */
    OPTION_FLAG    /* bool *: takes no value */
} OptionKind;

enum { OPTION_LIST_MAX = 32 };

typedef struct OptionList {
    const char *at[OPTION_LIST_MAX];
    int n;
} OptionList;

typedef struct Option {
    const char *name;  /* "--max-tokens" */
    const char *brief; /* "-m", or NULL */
    OptionKind kind;
    void *value;
    bool *given;         /* set when the flag is there; NULL: nobody asks */
    double least, most;  /* of a number; both 0: any */
    const char *operand; /* "N", "FILE": what help shows */
    const char *help;    /* one line */
} Option;

/* Reads argv[1..]; "--name value" and "--name=value". Arguments that are not options go to
 * positional, at most max_positional. *help: --help or -h was given. ST_USAGE names what is
 * wrong. */
Status options_parse(const Option *options, size_t n, int argc, char **argv,
                     const char **positional, int max_positional, int *n_positional, bool *help,
                     Err *e);
/* One line per option to stdout. */
void options_print(const Option *options, size_t n);

#endif
