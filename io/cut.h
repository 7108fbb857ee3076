/* io/cut.h - where Kimi's tokenizer cuts a text before it looks at it.
 *
 * The class that models with a tiktoken.model ship hands its regular expression blocks of 400,000
 * characters, and inside a block no more than 25,000 characters of white space, or of anything
 * else, in a row. Nothing is merged or matched across a cut, so ids depend on it. */
#ifndef MB_IO_CUT_H
#define MB_IO_CUT_H

#include <stddef.h>

enum { CUT_BLOCK = 400000, CUT_RUN = 25000 }; /* characters */

/* How many bytes of text[0..len), valid UTF-8, lie before the next cut; len when there is none.
 * *left is how many characters the block still has: CUT_BLOCK at the start of a text, then as
 * left by the call for what was before this one. */
size_t cut_next(const char *text, size_t len, size_t *left);

#endif
