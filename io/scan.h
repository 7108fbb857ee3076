/* io/scan.h - hand-written scanners for the pre-tokenizer patterns of known tokenizers.
 *
 * They are selected by the exact text of the regular expression and give what it would give, at
 * some hundred MB/s and in linear time whatever the text is; regex.h does the rest. */
#ifndef MB_IO_SCAN_H
#define MB_IO_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The leftmost match in [p, end), valid UTF-8; look-ahead and anchors see nothing beyond end. False
 * when there is none. Matches are never empty. */
typedef bool (*ScanFind)(const uint8_t *p, const uint8_t *end, const uint8_t **match,
                         const uint8_t **match_end);

/* The scanner of a regular expression, or NULL when there is none for it. */
ScanFind scan_find(const char *regex, size_t len);

/* What ByteLevel with use_regex splits by. */
extern const char scan_gpt2_regex[];
/* What models that ship a tiktoken.model split by. */
extern const char scan_kimi_regex[];

/* The known expressions, for tests that hold the scanners to the general matcher. NULL past the
 * end. */
const char *scan_regex(size_t index);

#endif
