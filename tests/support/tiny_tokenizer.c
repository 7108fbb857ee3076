/* tests/support/tiny_tokenizer.c - see tiny_tokenizer.h. */
#include "tests/support/tiny_tokenizer.h"

#include "io/utf8.h"

#include <string.h>

/* The printable stand-in of a byte in byte-level vocabularies. */
static uint32_t stand_in(int byte)
{
    uint32_t next = 256;
    for (int b = 0; b <= byte; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte)
            return itself ? (uint32_t)b : next;
        next += !itself;
    }
    return 0;
}

static void add_entry(StrBuf *b, const char *token, int id)
{
    strbuf_json_string(b, token, strlen(token));
    strbuf_fmt(b, ":%d,", id);
}

static void add_special(StrBuf *b, const char *token, int id, bool last)
{
    strbuf_fmt(
        b,
        "{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
        "\"normalized\":false,\"special\":true}%s",
        id, token, last ? "" : ",");
}

static Status parse(StrBuf *b, const char *name, Tokenizer **out, Err *e)
{
    Status st = b->failed ? err_set(e, ST_MEMORY, "not enough memory for a tokenizer")
                          : tokenizer_parse(b->data, b->len, NULL, 0, name, out, e);
    strbuf_free(b);
    return st;
}

Status tiny_tokenizer_bytes(Tokenizer **out, Err *e)
{
    StrBuf b = {0};
    strbuf_str(&b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    add_special(&b, "<|end|>", TINY_END, false);
    add_special(&b, "<|mark|>", TINY_MARK, true);
    strbuf_str(&b,
               "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_"
               "space\":false,"
               "\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,\"decoder\":{"
               "\"type\":\"ByteLevel\","
               "\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\"model\":{"
               "\"type\":\"BPE\","
               "\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_"
               "word_suffix\":null,"
               "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{");
    add_entry(&b, "<|end|>", TINY_END);
    add_entry(&b, "<|mark|>", TINY_MARK);
    for (int byte = 0; byte < 256; byte++) {
        char s[5] = {0};
        s[utf8_put(s, stand_in(byte))] = 0;
        add_entry(&b, s, TINY_BYTE + byte);
    }
    add_entry(&b, "ab", TINY_AB);
    strbuf_fmt(&b,
               "\"\xc4\xa0"
               "c\":%d},\"merges\":[[\"a\",\"b\"],[\"\xc4\xa0\",\"c\"]]}}",
               TINY_SP_C);
    return parse(&b, "tiny byte-level tokenizer", out, e);
}

Status tiny_tokenizer_pieces(Tokenizer **out, Err *e)
{
    StrBuf b = {0};
    strbuf_str(&b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    add_special(&b, "<unk>", PIECE_UNK, false);
    add_special(&b, "<s>", PIECE_BOS, false);
    add_special(&b, "</s>", PIECE_EOS, true);
    strbuf_str(
        &b,
        "],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\","
        "\"prepend\":\"\xe2\x96\x81\"},"
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]},"
        "\"pre_tokenizer\":null,\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
        "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":"
        "0}}],"
        "\"pair\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\","
        "\"type_id\":0}},"
        "{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\","
        "\"ids\":[1],"
        "\"tokens\":[\"<s>\"]}}},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":"
        "\"Replace\","
        "\"pattern\":{\"String\":\"\xe2\x96\x81\"},\"content\":\" "
        "\"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
        "{\"type\":\"Strip\",\"content\":\" "
        "\",\"start\":1,\"stop\":0}]},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
        "\"unk_token\":\"<unk>\",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
        "\"fuse_unk\":true,\"byte_fallback\":true,\"ignore_merges\":false,\"vocab\":{");
    add_entry(&b, "<unk>", PIECE_UNK);
    add_entry(&b, "<s>", PIECE_BOS);
    add_entry(&b, "</s>", PIECE_EOS);
    for (int byte = 0; byte < 256; byte++)
        strbuf_fmt(&b, "\"<0x%02X>\":%d,", byte, PIECE_BYTE + byte);
    add_entry(&b, "\xe2\x96\x81", PIECE_SPACE);
    add_entry(&b, "a", PIECE_A);
    add_entry(&b, "b", PIECE_B);
    add_entry(&b, "c", PIECE_C);
    add_entry(&b,
              "\xe2\x96\x81"
              "a",
              PIECE_SP_A);
    add_entry(&b,
              "\xe2\x96\x81"
              "b",
              PIECE_SP_B);
    strbuf_fmt(
        &b,
        "\"ab\":%d},\"merges\":[[\"\xe2\x96\x81\",\"a\"],[\"\xe2\x96\x81\",\"b\"],[\"a\",\"b\"]]}}",
        PIECE_AB);
    return parse(&b, "tiny tokenizer of pieces", out, e);
}
