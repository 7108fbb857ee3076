/* io/bytelevel.h - the alphabet of byte-level vocabularies: one printable character for every byte.
 */
#ifndef MB_IO_BYTELEVEL_H
#define MB_IO_BYTELEVEL_H

#include <stddef.h>
#include <stdint.h>

/* The character that stands for a byte: itself for the printable ones of Latin-1, else U+0100 and
 * up. */
uint32_t bytelevel_char(uint8_t byte);

/* The bytes that text[0..len), valid UTF-8, stands for, into out (room for len); returns how many,
 * or SIZE_MAX when some character is not in the alphabet. */
size_t bytelevel_bytes(const char *text, size_t len, char *out);

#endif
