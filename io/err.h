/* io/err.h - how a function says that it failed: a status, and one line for the user. */
#ifndef MB_IO_ERR_H
#define MB_IO_ERR_H

typedef enum Status {
    ST_OK = 0,
    ST_USAGE,  /* the command line */
    ST_INPUT,  /* a file or a row says something that cannot be used */
    ST_IO,     /* the file system refused */
    ST_MEMORY, /* an allocation failed, or a plan does not fit */
    ST_DEVICE, /* an accelerator failed */
    ST_COMM    /* another rank, MPI or NCCL failed */
} Status;

/* Plain data, so that a rank can send it to the others. */
typedef struct Err {
    Status code;
    int rank;       /* where it began; dist_agree() fills it in */
    char text[500]; /* one line: "file: tensor: what it is, what was expected" */
} Err;

/* Writes the message (cut to fit, control characters replaced) and returns code. e may be NULL. */
Status err_set(Err *e, Status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts "where: " in front of the message that is there, and returns its code. */
Status err_in(Err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* err_set(ST_IO) with ": " and the text of errno appended. */
Status err_errno(Err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define TRY(call)                                                                                  \
    do {                                                                                           \
        Status try_ = (call);                                                                      \
        if (try_ != ST_OK)                                                                         \
            return try_;                                                                           \
    } while (0)

/* The same inside a function that has one `fail:` label and a variable `Status st`. */
#define TRY_GOTO(call)                                                                             \
    do {                                                                                           \
        st = (call);                                                                               \
        if (st != ST_OK)                                                                           \
            goto fail;                                                                             \
    } while (0)

#endif
