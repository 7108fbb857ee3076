/* tests/jobs/test_roofline.c - operations, bytes and least seconds of steps, against numbers from paper. */
#include "jobs/roofline.h"
#include "tests/support/check.h"

#include <math.h>

static int close_to(const char *name, double got, double want)
{
    return check_true(name, fabs(got - want) <= 1e-9 * fabs(want));
}

/* Full attention, then a window of 4; the last layer has the window. */
static RoofLayer layers[] = {{.window = 0}, {.window = 1, .last = true}, {.window = -1}};
static const RoofModel model = {
    .layers = layers, .n_layers = 3, .windows = {0, 4}, .n_windows = 2, .n_ranks = 1};

static int check_step(void)
{
    /* Six prompt positions from 2 on, of which the last wants logits; a generated one at 9. */
    const StepSeq seqs[] = {{.n_rows = 6, .pos = 2, .n_wanted = 1, .n_prompt = 8},
                            {.row = 6, .n_rows = 1, .pos = 9, .n_wanted = 1, .n_prompt = 8}};
    const Step step = {.n_rows = 7, .seqs = seqs, .n_seqs = 2};
    StepShape s = roof_step(&model, &step);
    int failed = check_int("rows", s.n_rows, 7) + check_int("wanted", s.n_wanted, 2);
    failed += close_to("all keys of a prompt", s.pairs[0][0], 3 + 4 + 5 + 6 + 7 + 8);
    failed += close_to("a window's keys of a prompt", s.pairs[1][0], 3 + 5 * 4);
    failed += close_to("all keys of a generated row", s.pairs[0][1], 10);
    failed += close_to("a window's keys of a generated row", s.pairs[1][1], 4);
    failed += close_to("positions read for a prompt", s.kv_rows[0][0], 8);
    failed += close_to("in a window", s.kv_rows[1][0], 8); /* the first row sees all from 0 on */
    failed += close_to("positions read for a generated row", s.kv_rows[1][1], 4);
    failed += close_to("the last layer's pairs of a prompt", s.last_pairs[0], 4);
    return failed + close_to("of a generated row", s.last_pairs[1], 4);
}

static int check_floor(void)
{
    static const double chosen[] = {0.5, 0.25, 0, 1};
    RoofLayer one = {
        .matrix = {{.op = ROOF_PROJECTIONS, .inputs = 8, .outputs = 4, .bytes = 64},
                   {.op = ROOF_HEAD, .inputs = 8, .outputs = 100, .bytes = 1600, .wanted = true}},
        .n_matrices = 2,
        .window = -1,
        .moe = true,
        .chosen = chosen};
    RoofModel m = {.layers = &one,
                   .n_layers = 1,
                   .n_ranks = 2,
                   .n_local = 4,
                   .top_k = 3,
                   .pair_share = 0.5,
                   .act_bytes = 2,
                   .hidden = 8,
                   .expert_flops = 1000,
                   .expert_inner = 6,
                   .expert_bytes = 500,
                   .expert_fp8 = true};
    /* Operations take a second each, of FP8 products a quarter, and bytes half a second. */
    const BackendCeilings limits = {.memory_bytes_s = 2, .flops = 1, .fp8_flops = 4};
    const StepShape s = {.n_rows = 2};
    Roofline sum = {0};
    roof_add(&sum, &m, &s, &limits);
    const RoofCount *c = &sum.op[ROOF_PROJECTIONS];
    int failed = close_to("projections", c->flops, 2 * 2 * 8 * 4);
    failed += close_to("weights of projections", c->weight_bytes, 64);
    failed += close_to("rows of projections", c->row_bytes, 2 * (8 + 4) * 2);
    failed += close_to("floor of projections", c->floor_s, 128); /* 112 bytes take 56 */
    c = &sum.op[ROOF_HEAD];
    failed += close_to("no logits", c->flops + c->weight_bytes + c->row_bytes + c->floor_s, 0);
    c = &sum.op[ROOF_EXPERTS];
    /* 4 tokens of both ranks, 3 choices each, half of them here. */
    failed += close_to("experts", c->flops, 6 * 1000);
    failed += close_to("distinct experts", c->weight_bytes,
                       500 * ((1 - pow(0.5, 4)) + (1 - pow(0.75, 4)) + 0 + 1));
    failed += close_to("rows of experts", c->row_bytes, 2 * (2 * 2 * 8 + 2 * 6 * (6 + 8)));
    failed += close_to("floor of experts", c->floor_s, 1500); /* bytes take 855 */
    RoofCount all = roof_total(&sum);
    failed += close_to("total", all.floor_s, 1628);
    const StepShape none = {0};
    roof_add(&sum, &m, &none, &limits);
    failed += close_to("a step without rows", roof_total(&sum).floor_s, 1628);
    const BackendCeilings unknown = {.memory_bytes_s = 1};
    sum = (Roofline){0};
    roof_add(&sum, &m, &s, &unknown);
    return failed + close_to("bytes alone", sum.op[ROOF_PROJECTIONS].floor_s, 112);
}

int main(void)
{
    return test_result(check_step() + check_floor());
}
