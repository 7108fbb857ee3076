/* io/unicode.h - what the tokenizer asks about characters: their class, and normal form C.
 *
 * Both answer as the reference tokenizer does: classes as of Unicode 16, NFC as of Unicode 9
 * (characters added later are inert there). Library tables of one version would be wrong for one of
 * the two. */
#ifndef MB_IO_UNICODE_H
#define MB_IO_UNICODE_H

#include "io/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UNICODE_END = 0x110000 };

/* The low four bits of a class; every character has exactly one. */
enum {
    UC_OTHER,
    UC_LU,
    UC_LL,
    UC_LT,
    UC_LM,
    UC_LO,
    UC_M,
    UC_N,
    UC_P,
    UC_S,
    UC_SPACE,        /* White_Space, none of which is in the categories above */
    UC_CATEGORY = 15 /* mask */
};
/* The flags above them. WORD is the regex class \w, ND the regex class \d. */
enum { UC_HAN = 0x20, UC_WORD = 0x40, UC_ND = 0x80 };

/* One class per code point; filled by unicode_init. Flat, since scanners ask for every character.
 */
extern uint8_t unicode_class[UNICODE_END];

/* Fills the tables on the first call; cheap afterwards. Any thread may call it. */
void unicode_init(void);

/* True when text[0..len), valid UTF-8, certainly is in NFC already; false only means that it has a
 * character which may combine, reorder or decompose. */
bool unicode_nfc_quick(const char *text, size_t len);
/* Appends the NFC of text[0..len), valid UTF-8. Linear in len, also for long runs of marks. */
void unicode_nfc(StrBuf *out, const char *text, size_t len);

#endif
