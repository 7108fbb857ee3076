/* io/regex.h - a small regular expression matcher for pre-tokenizer patterns that scan.h does not
 * know.
 *
 * The syntax is the part of Oniguruma's that such patterns use: alternation, groups, (?i:...) over
 * ASCII letters, classes with ranges, negation, nesting, && and the properties L Lu Ll Lt Lm Lo M N
 * Nd P S Han, greedy, lazy and possessive repeats, look-ahead, atomic groups, ^ $ \A \z \Z \b \B.
 * Anything else is an error when the pattern is compiled, never a silent approximation. Classes are
 * those of unicode.h. */
#ifndef MB_IO_REGEX_H
#define MB_IO_REGEX_H

#include "io/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Regex Regex; /* immutable once compiled: threads share it */

/* Scratch of one thread; all zero: empty. */
typedef struct RegexStack {
    struct RegexTry *tries;
    size_t n, cap;
} RegexStack;

/* pattern: len bytes of UTF-8. ST_INPUT names the offset of what is not understood. */
Status regex_compile(const char *pattern, size_t len, Regex **out, Err *e);
void regex_free(Regex *r); /* NULL is fine */

/* The leftmost match in text[from..len), valid UTF-8; what precedes from is seen by anchors only.
 * *steps is what the search may still cost and is counted down: a pattern that backtracks without
 * end becomes ST_INPUT. */
Status regex_find(const Regex *r, RegexStack *stack, const char *text, size_t len, size_t from,
                  size_t *steps, bool *found, size_t *start, size_t *end, Err *e);
void regex_stack_free(RegexStack *stack);

#endif
