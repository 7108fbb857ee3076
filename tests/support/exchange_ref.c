/* tests/support/exchange_ref.c - see exchange_ref.h. */
#include "tests/support/exchange_ref.h"

#include <string.h>

static int pairs_on(const WindowSpec *w, int token, int rank)
{
    const int32_t *choice = w->expert + (size_t)token * (size_t)w->top_k;
    int n = 0;
    for (int s = 0; s < w->top_k; s++)
        n += choice[s] >= 0 && w->owner[choice[s]] == rank;
    return n;
}

void exchange_ref_count(const WindowSpec *w)
{
    int blocks = w->n > 0 ? (w->n + EXCHANGE_BLOCK_TOKENS - 1) / EXCHANGE_BLOCK_TOKENS : 1;
    memset(w->counts, 0, (size_t)blocks * 2 * (size_t)w->n_ranks * sizeof *w->counts);
    for (int t = 0; t < w->n; t++)
        for (int r = 0; r < w->n_ranks; r++) {
            int n = pairs_on(w, t, r), block = t / EXCHANGE_BLOCK_TOKENS;
            int32_t *count = w->counts + 2 * (block * w->n_ranks + r);
            count[0] += n > 0;
            count[1] += n;
            w->totals[2 * r] += n > 0;
            w->totals[2 * r + 1] += n;
        }
}

static void list_rows(const WindowSpec *w)
{
    int32_t home = w->result_row;
    if (w->mark)
        *w->mark = w->value;
    for (int r = 0; r < w->n_ranks; r++) {
        int rows = 0, pairs = 0;
        for (int t = 0; t < w->n; t++) {
            int n = pairs_on(w, t, r);
            if (n == 0)
                continue;
            if (r != w->rank) {
                w->token[r * w->room + rows] = t;
                w->pair[r * w->room + rows] = pairs;
                int32_t at = home + pairs;
                for (int s = 0; s < w->top_k; s++) {
                    int32_t expert = w->expert[t * w->top_k + s];
                    if (expert >= 0 && w->owner[expert] == r)
                        w->slot[t * w->top_k + s] = at++;
                }
            }
            rows++;
            pairs += n;
        }
        w->totals[2 * r] = rows;
        w->totals[2 * r + 1] = pairs;
        if (r != w->rank)
            home += w->result_stride > 0 ? w->result_stride : pairs;
    }
}

void exchange_ref_pack(const WindowSpec *w)
{
    size_t ints = (size_t)exchange_mail_ints(w->top_k), k = (size_t)w->top_k;
    list_rows(w);
    for (int to = 0; to < w->n_ranks - 1; to++) {
        int r = to < w->rank ? to : to + 1, listed = w->totals[2 * r];
        int rows = w->message_rows > 0 ? w->message_rows : listed;
        char *message = w->messages + (size_t)to * w->message_stride;
        char *mails = message + exchange_mail_at((size_t)rows, w->row_bytes);
        for (int i = 0; i < rows; i++) {
            int32_t mail[EXCHANGE_MAX_TOP_K + 4];
            memset(mail, i < listed ? 0 : -1, sizeof mail);
            if (i < listed) {
                size_t token = (size_t)w->token[r * w->room + i];
                memcpy(message + (size_t)i * w->row_bytes,
                       (const char *)w->rows + token * w->row_bytes, w->row_bytes);
                for (size_t s = 0; s < k; s++) {
                    int32_t expert = w->expert[token * k + s];
                    mail[s] = expert >= 0 && w->owner[expert] == r ? w->local[expert] : -1;
                }
                mail[k] = w->pair[r * w->room + i];
            }
            memcpy(mails + (size_t)i * ints * sizeof *mail, mail, ints * sizeof *mail);
        }
    }
}

void exchange_ref_group(const GroupSpec *g)
{
    int32_t pair = 0;
    for (int e = 0; e < g->n_local; e++) {
        g->first[e] = pair;
        for (int l = 0; l < g->n_lists; l++) {
            const ChoiceRows *list = &g->list[l];
            for (int at = 0; at < list->n * g->top_k; at++) {
                int row = at / g->top_k;
                int32_t expert = list->choice[row * list->stride + at % g->top_k];
                if (l == g->own && g->local && expert >= 0)
                    expert = g->local[expert];
                if (expert != e)
                    continue;
                g->row_of[pair] = list->row + row;
                list->place[at] = pair++;
            }
        }
    }
    g->first[g->n_local] = pair;
    for (int l = 0; l < g->n_lists; l++)
        for (int at = 0; at < g->list[l].n * g->top_k; at++)
            if (g->list[l].choice[at / g->top_k * g->list[l].stride + at % g->top_k] < 0)
                g->list[l].place[at] = -1;
}

void exchange_ref_results(const ResultSpec *r)
{
    if (r->mark)
        *r->mark = r->value;
    for (int l = 0; l < r->n_lists; l++)
        for (int row = 0; row < r->list[l].n; row++) {
            int32_t nth = r->list[l].mail[row * exchange_mail_ints(r->top_k) + r->top_k];
            for (int s = 0; s < r->top_k; s++) {
                int32_t place = r->list[l].place[row * r->top_k + s];
                if (place >= 0)
                    memcpy((char *)r->list[l].to + (size_t)nth++ * r->row_bytes,
                           (const char *)r->rows + (size_t)place * r->row_bytes, r->row_bytes);
            }
        }
}
