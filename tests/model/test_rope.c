/* tests/model/test_rope.c - rotary frequencies against independently computed values, and what is
 * refused. */
#include "model/rope.h"

#include "model/config.h"
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Lane {
    int i;
    double freq;
} Lane;

static const struct {
    const char *name, *config;
    int head_dim, max_positions;
    double af;
    Lane lanes[9];
} cases[] = {
    {"default",
     "{\"rope_theta\": 10000.0, \"rope_scaling\": null}",
     4,
     512,
     1,
     {{0, 1}, {1, 0.01}}},
    {"family's theta", "{}", 4, 512, 1, {{0, 1}, {1, 0.002581988897}}},
    {"half of the lanes",
     "{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000, "
     "\"partial_rotary_factor\": 0.5}}",
     8,
     512,
     1,
     {{0, 1}, {1, 0.01}}},
    {"linear",
     "{\"rope_theta\": 10000.0, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}}",
     4,
     512,
     1,
     {{0, 0.25}, {1, 0.0025}}},
    {"rope_parameters win",
     "{\"rope_theta\": 7.0, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}, "
     "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000}}",
     4,
     512,
     1,
     {{0, 1}, {1, 0.01}}},
    {"gpt_oss yarn without truncation",
     "{\"rope_theta\": 150000, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 32.0, "
     "\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"truncate\": false, "
     "\"original_max_position_embeddings\": 4096}}",
     64,
     131072,
     1.3465735903,
     {{8, 0.0508132748},
      {9, 0.0317056962},
      {10, 0.0193350011},
      {12, 0.00679495949},
      {16, 0.000456483919},
      {20, 1.81883367e-5},
      {24, 4.09997848e-6},
      {31, 3.02351143e-7}}},
    {"yarn with truncation and mscale",
     "{\"rope_theta\": 10000, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, "
     "\"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 0.707, \"mscale_all_dim\": 0.707, "
     "\"original_max_position_embeddings\": 4096}}",
     64,
     163840,
     1,
     {{8, 0.1},
      {9, 0.0749894209},
      {10, 0.0562341325},
      {12, 0.0268793601},
      {16, 0.0055},
      {20, 0.000790569415},
      {24, 2.5e-5},
      {31, 3.33380358e-6}}},
    {"yarn, beta 1 and 1",
     "{\"rope_theta\": 50000, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 32, "
     "\"beta_fast\": 1, \"beta_slow\": 1, \"mscale\": 1, \"mscale_all_dim\": 1, "
     "\"original_max_position_embeddings\": 4096}}",
     64,
     131072,
     1,
     {{8, 0.0668740305},
      {9, 0.0476886124},
      {10, 0.0340072782},
      {12, 0.0172936334},
      {16, 0.00447213595},
      {20, 3.61404677e-5},
      {24, 9.34592988e-6},
      {31, 8.76441291e-7}}},
    {"yarn, factor from the lengths",
     "{\"rope_theta\": 50000, \"rope_scaling\": {\"type\": \"yarn\", \"mscale\": 1, "
     "\"mscale_all_dim\": 1, \"original_max_position_embeddings\": 4096}}",
     64,
     262144,
     1,
     {{8, 0.0668740305},
      {9, 0.043776656},
      {10, 0.0284279591},
      {12, 0.0116191599},
      {16, 0.00153729673},
      {20, 1.80702339e-5},
      {24, 4.67296494e-6},
      {31, 4.38220646e-7}}},
    {"yarn, explicit attention factor",
     "{\"rope_theta\": 160000, \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 16, "
     "\"rope_theta\": 160000, \"attention_factor\": 1, "
     "\"original_max_position_embeddings\": 65536}}",
     64,
     1048576,
     1,
     {{8, 0.05},
      {9, 0.0343828011},
      {10, 0.0236435402},
      {12, 0.0111803399},
      {16, 0.002265625},
      {20, 0.000296977778},
      {24, 1.953125e-5},
      {31, 5.68052904e-7}}},
    {"yarn of Qwen3",
     "{\"rope_theta\": 1000000.0, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, "
     "\"original_max_position_embeddings\": 32768}}",
     128,
     131072,
     1.1386294361,
     {{0, 1}}},
    {"llama3",
     "{\"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, "
     "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
     "\"original_max_position_embeddings\": 8192}}",
     128,
     131072,
     1,
     {{28, 0.00321144599},
      {29, 0.00216657076},
      {30, 0.00137189357},
      {32, 0.000524846161},
      {36, 7.78465527e-5},
      {63, 3.06892599e-7}}},
};

static const struct {
    const char *name, *config, *message;
    int head_dim;
} refused[] = {
    {"longrope", "{\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1]}}",
     "rope_scaling: rope_type \"longrope\" is not supported", 64},
    {"dynamic", "{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}",
     "rope_type \"dynamic\" is not supported", 64},
    {"two types", "{\"rope_scaling\": {\"type\": \"mrope\", \"rope_type\": \"default\"}}",
     "rope_type is \"default\" but type is \"mrope\"", 64},
    {"no type", "{\"rope_scaling\": {\"factor\": 2.0}}", "factor is given, but no rope_type", 64},
    {"linear without factor", "{\"rope_scaling\": {\"type\": \"linear\"}}",
     "rope_scaling: factor is missing", 64},
    {"key of another type",
     "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"beta_fast\": 3}}",
     "beta_fast means nothing to rope_type \"linear\"", 64},
    {"factor of default", "{\"rope_parameters\": {\"rope_type\": \"default\", \"factor\": 2}}",
     "rope_parameters: factor means nothing to rope_type \"default\"", 64},
    {"llama3 without original",
     "{\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
     "\"high_freq_factor\": 4}}",
     "original_max_position_embeddings is missing", 64},
    {"llama3 upside down",
     "{\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
     "\"high_freq_factor\": 1, \"original_max_position_embeddings\": 8192}}",
     "high_freq_factor must be greater", 64},
    {"theta of one", "{\"rope_theta\": 1}", "rope_theta is 1, expected a number from", 64},
    {"negative factor", "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": -2}}",
     "factor is -2, expected", 64},
    {"scaling is a list", "{\"rope_scaling\": [1]}", "rope_scaling is not an object", 64},
    {"odd head", "{}", "rotary embedding of 5 lanes", 5},
    {"truncate is a number", "{\"rope_scaling\": {\"type\": \"yarn\", \"truncate\": 1}}",
     "truncate is 1, expected true or false", 64},
};

static int check_case(size_t n)
{
    Err e;
    cJSON *config;
    Rope rope = {0};
    int failed = 0;
    if (config_parse(cases[n].config, strlen(cases[n].config), &config, &e) != ST_OK)
        return check_str(cases[n].name, e.text, "");
    if (rope_parse(config, cases[n].head_dim, cases[n].max_positions, 150000, &rope, &e) != ST_OK) {
        cJSON_Delete(config);
        return check_str(cases[n].name, e.text, "");
    }
    failed += check_near(cases[n].name, rope.attention_factor, cases[n].af, 1e-9);
    for (const Lane *lane = cases[n].lanes; lane->freq != 0; lane++)
        failed += check_near(cases[n].name, rope.inv_freq[lane->i] / lane->freq, 1, 1e-7);
    free(rope.inv_freq);
    cJSON_Delete(config);
    return failed;
}

static int check_refused(size_t n)
{
    Err e = {0};
    cJSON *config;
    Rope rope = {0};
    int failed;
    if (config_parse(refused[n].config, strlen(refused[n].config), &config, &e) != ST_OK)
        return check_str(refused[n].name, e.text, "");
    failed = check_int(refused[n].name,
                       rope_parse(config, refused[n].head_dim, 512, 1e4, &rope, &e), ST_INPUT);
    failed += check_has(refused[n].name, e.text, refused[n].message);
    cJSON_Delete(config);
    return failed;
}

static int check_table(void)
{
    float freq[2] = {1, 0.01f}, table[3 * 4];
    Rope rope = {.rotary_dim = 4, .attention_factor = 2, .inv_freq = freq};
    int failed = 0;
    rope_fill_table(&rope, 3, table);
    failed += check_near("position 0, cosine", table[0], 2, 0);
    failed += check_near("position 0, sine", table[2], 0, 0);
    failed += check_near("position 2, cosine of lane 0", table[8], 2 * cos(2), 1e-6);
    failed += check_near("position 2, cosine of lane 1", table[9], 2 * cos(0.02), 1e-6);
    failed += check_near("position 2, sine of lane 0", table[10], 2 * sin(2), 1e-6);
    return failed + check_near("position 2, sine of lane 1", table[11], 2 * sin(0.02), 1e-6);
}

int main(void)
{
    int failed = check_table();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        failed += check_case(i);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        failed += check_refused(i);
    return test_result(failed);
}
