/* test_softmax.c - online softmax and the mass of keys: every table against double, exp2 over a dense
 * sweep of its arguments, and the numbers that have no logarithm. */
#include "test.h"

static const int counts[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 48, MCSA_KEY_BLOCK - 1, MCSA_KEY_BLOCK };

/* 2^(score scale2 - from) is off by the rounding of the product, of the difference and of exp2; what is
 * below the smallest normal number may become 0. */
static double exp2_bound(double score2, double argument, double value)
{
    return value * expm1(log(2) * U_F32 * (fabs(score2) + fabs(argument)) + U_EXP2) + 0x1p-126;
}

static void judge_lane(const test_table *table, const float *score, int count, int lanes, int i, float scale2,
                       const mcsa_strip *before, const mcsa_strip *after, const uint32_t *weights, test_worst *worst)
{
    float max = before->max[i];
    for (int j = 0; j < count; j++) max = fmaxf(max, scale2 * score[j * lanes + i]);
    if (after->max[i] != max) fail_msg("%s: maximum %g, not %g", table->name, (double)after->max[i], (double)max);
    double from = isinf(max) ? 0 : (double)max, fall = (double)before->max[i] - from, alpha = exp2(fall);
    test_judge(worst, (double)after->alpha[i], alpha, exp2_bound(0, isinf(fall) ? 0 : fall, alpha), count, -1, i);
    double sum = alpha * (double)before->sum[i],
           bound = exp2_bound(0, isinf(fall) ? 0 : fall, alpha) * (double)before->sum[i];
    for (int j = 0; j < count; j++) {
        double score2 = (double)score[j * lanes + i] * (double)scale2, argument = score2 - from, p = exp2(argument);
        double off = isinf(argument) ? 0 : exp2_bound(score2, argument, p);
        double rounded = table->kernel.word_elements == 2 ? U_BF16 * (p + off) : 0;
        test_judge(worst, test_take(table, weights, j, i, lanes), p, off + rounded, count, j, i);
        sum += p;
        bound += off;
    }
    test_judge(worst, (double)after->sum[i], sum, bound + (count + 2) * U_F32 * sum, count, -2, i);
}

typedef enum shape { NORMAL, TINY, HUGE_SPREAD, EQUAL, ONE_HOT, RISING, ALL_MINUS_INFINITY, SHAPES } shape;

static float score_of(shape kind, int j, int i, uint64_t *seed)
{
    switch (kind) {
    case NORMAL: return (float)(3 * test_normal(seed));
    case TINY: return (float)(1e-30 * test_normal(seed));
    case HUGE_SPREAD: return (float)(1e6 * test_normal(seed));
    case EQUAL: return 7.25f;
    case ONE_HOT: return j == i % 5 ? 1e5f : -1e5f;
    case RISING: return (float)(j + i);
    default: return -INFINITY;
    }
}

static void softmax_of(const test_table *table, int count, int lanes, shape kind, test_worst *worst)
{
    uint64_t seed = 5;
    const float scale2 = 0.1803369f;
    size_t size = (size_t)count * (size_t)lanes, words = (size_t)test_depth(table, count) * (size_t)lanes;
    float *score = test_words(size);
    uint32_t *weights = test_words(words);
    mcsa_strip strip = { { 0 }, { 0 }, { 0 } };
    for (int i = 0; i < MCSA_STRIP; i++) strip.max[i] = -INFINITY;
    for (int block = 0; block < 3; block++) { /* a fresh strip, then one that goes on with other scores */
        for (int j = 0; j < count; j++)
            for (int i = 0; i < lanes; i++) score[j * lanes + i] = score_of(kind, j, i, &seed) - (block == 2 ? 40 : 0);
        mcsa_strip before = strip;
        table->kernel.softmax(score, count, lanes, scale2, &strip, weights);
        for (int i = 0; i < lanes; i++)
            judge_lane(table, score, count, lanes, i, scale2, &before, &strip, weights, worst);
        if (count % table->kernel.word_elements)
            for (int i = 0; i < lanes; i++) assert_true(test_take(table, weights, count, i, lanes) == 0);
        for (int i = lanes; i < MCSA_STRIP; i++) /* lanes that are not there */
            assert_true(strip.max[i] == before.max[i] && strip.sum[i] == before.sum[i]);
    }
    test_words_free(score, size);
    test_words_free(weights, words);
}

static void softmax_of_every_shape(void **state)
{
    (void)state;
    test_table tables[4];
    size_t count = test_tables(tables);
    static const char *const names[] = { "normal", "tiny", "huge", "equal", "one-hot", "rising", "all -inf" };
    for (size_t t = 0; t < count; t++)
        for (int kind = 0; kind < SHAPES; kind++) {
            test_worst worst = { 0 };
            for (size_t c = 0; c < TEST_COUNT(counts); c++)
                for (int lanes = 16; lanes <= 64; lanes += 16)
                    softmax_of(&tables[t], counts[c], lanes, (shape)kind, &worst);
            test_report(&worst, INFINITY, "softmax, %s, %s", tables[t].name, names[kind]);
        }
}

/* A NaN score makes its lane's sum NaN, wherever it stands, and no other lane's. */
static void nan_scores_spoil_their_lane_only(void **state)
{
    (void)state;
    enum { LANES = 16, COUNT = 11 };
    static const float bad[] = { NAN, -NAN, INFINITY };
    test_table tables[4];
    size_t count = test_tables(tables);
    for (size_t t = 0; t < count; t++)
        for (size_t b = 0; b < TEST_COUNT(bad); b++)
            for (int where = 0; where < COUNT; where++) {
                uint64_t seed = 6;
                float score[COUNT * LANES];
                uint32_t weights[COUNT * LANES];
                mcsa_strip strip = { { 0 }, { 0 }, { 0 } };
                for (int i = 0; i < COUNT * LANES; i++) score[i] = (float)test_normal(&seed);
                score[where * LANES + 3] = bad[b];
                tables[t].kernel.softmax(score, COUNT, LANES, 1, &strip, weights);
                for (int i = 0; i < LANES; i++)
                    if (!isnan(strip.sum[i]) != (i != 3))
                        fail_msg("%s: %g at key %d of lane 3, and lane %d has sum %g", tables[t].name, (double)bad[b],
                                 where, i, (double)strip.sum[i]);
            }
}

/* Keys are (w, 0) with w a power of two, so that scores are exact and only the mass is judged. */
static void mass_of(const test_table *table, int keys, int lanes, test_worst *worst)
{
    enum { D = 2 };
    static const double weight[] = { 1, -1, 0.5, -2, 0.25 };
    const float scale2 = 0.1803369f;
    uint64_t seed = 7;
    size_t words = (size_t)test_depth(table, D), blocks = ((size_t)keys + 15) / 16 * 16;
    uint32_t *queries = test_words(words * (size_t)lanes), *staged = test_words(words * (size_t)keys);
    float *partial = test_words(blocks * MCSA_LANES), *mass = test_words(blocks), minus_lse2[64];
    const uint32_t *at[MCSA_KEY_BLOCK];
    for (int i = 0; i < lanes; i++) {
        test_put(table, queries, 0, i, lanes, 20 * test_normal(&seed));
        test_put(table, queries, 1, i, lanes, test_normal(&seed));
        minus_lse2[i] = i % 7 == 6 ? -INFINITY : (float)(-8 + test_normal(&seed));
    }
    for (int j = 0; j < keys; j++) {
        uint32_t *key = staged + (size_t)j * words;
        test_put(table, key, 0, 0, 1, weight[j % 5]);
        test_put(table, key, 1, 0, 1, 0);
        at[j] = key;
    }
    for (size_t i = 0; i < blocks * MCSA_LANES; i++) partial[i] = i % MCSA_LANES == 3 ? (float)(i / MCSA_LANES) : 0;
    table->kernel.mass(at, queries, keys, D, lanes, scale2, minus_lse2, partial);
    table->kernel.mass_sum(partial, keys, mass);
    for (int j = 0; j < keys; j++) {
        double sum = 0, bound = 0;
        for (int i = 0; i < lanes; i++) {
            double score2 = weight[j % 5] * test_take(table, queries, 0, i, lanes) * (double)scale2;
            double x = score2 + (double)minus_lse2[i];
            if (isinf(x)) continue;
            sum += exp2(x);
            bound += exp2_bound(score2, x, exp2(x));
        }
        test_judge(worst, (double)mass[j], j + sum, bound + lanes * U_F32 * sum + MCSA_LANES * U_F32 * (j + sum), keys,
                   j, lanes);
    }
    test_words_free(queries, words * (size_t)lanes);
    test_words_free(staged, words * (size_t)keys);
    test_words_free(partial, blocks * MCSA_LANES);
    test_words_free(mass, blocks);
}

static void mass_sums_over_lanes(void **state)
{
    (void)state;
    test_table tables[4];
    size_t count = test_tables(tables);
    for (size_t t = 0; t < count; t++) {
        test_worst worst = { 0 };
        for (size_t c = 0; c < TEST_COUNT(counts); c++)
            for (int lanes = 16; lanes <= 64; lanes += 16) mass_of(&tables[t], counts[c], lanes, &worst);
        test_report(&worst, 1e-6, "mass, %s", tables[t].name);
    }
}

/* 2^x through mass: scores of 0, one lane with x among lanes that add nothing. */
static float exp2_by_mass(const test_table *table, float x)
{
    uint32_t queries[MCSA_LANES] = { 0 }, key[1] = { 0 };
    const uint32_t *keys[1] = { key };
    float minus_lse2[MCSA_LANES], partial[16 * MCSA_LANES] = { 0 }, mass[16];
    for (int i = 0; i < MCSA_LANES; i++) minus_lse2[i] = i == 11 ? x : -INFINITY;
    table->kernel.mass(keys, queries, 1, 1, MCSA_LANES, 1, minus_lse2, partial);
    table->kernel.mass_sum(partial, 1, mass);
    return mass[0];
}

static float exp2_by_softmax(const test_table *table, float x)
{
    float score[MCSA_LANES];
    uint32_t weights[MCSA_LANES];
    mcsa_strip strip = { { 0 }, { 0 }, { 0 } }; /* maximum 0, so that nothing is subtracted from x <= 0 */
    for (int i = 0; i < MCSA_LANES; i++) score[i] = i == 11 ? x : -1;
    table->kernel.softmax(score, 1, MCSA_LANES, 1, &strip, weights);
    return (float)test_take(table, weights, 0, 11, MCSA_LANES);
}

static void judge_exp2(const test_table *table, float x, double bf16, test_worst *worst)
{
    double expected = exp2((double)x), bound = expected * U_EXP2 + (expected < 0x1p-126 ? 0x1p-126 : 0);
    test_judge(worst, (double)exp2_by_mass(table, x), expected, bound, 0, 0, 0);
    if (x <= 0) test_judge(worst, (double)exp2_by_softmax(table, x), expected, bound + bf16 * expected, 1, 0, 0);
}

/* Every 4099th float from -160 to -2^-40, and to 127; then integers, halves and the ends. */
static void exp2_over_its_whole_domain(void **state)
{
    (void)state;
    test_table tables[4];
    size_t count = test_tables(tables);
    for (size_t t = 0; t < count; t++) {
        const test_table *table = &tables[t];
        test_worst worst = { 0 };
        double bf16 = table->kernel.word_elements == 2 ? 1.01 * U_BF16 : 0;
        float end[2] = { 160, 127 };
        for (int positive = 0; positive < 2; positive++) {
            uint32_t first = 0x2b800000u, last; /* 2^-40: below, 2^x rounds to 1 */
            memcpy(&last, &end[positive], sizeof last);
            for (uint32_t bits = first; bits <= last; bits += 4099) {
                float x;
                memcpy(&x, &bits, sizeof x);
                judge_exp2(table, positive ? x : -x, bf16, &worst);
            }
        }
        for (int n = -126; n <= 127; n++) {
            if (exp2_by_mass(table, (float)n) != exp2f((float)n)) fail_msg("%s: 2^%d is not exact", table->name, n);
            if (n < 127) judge_exp2(table, (float)n + 0.5f, bf16, &worst);
            judge_exp2(table, nextafterf((float)n + 0.5f, -200), bf16, &worst);
            judge_exp2(table, nextafterf((float)n, -200), bf16, &worst);
        }
        static const float low[] = { -0.0f, -0x1p-149f, -126.5f, -127,  -149,   -149.5f,
                                     -150,  -151,       -200,    -1e4f, -1e30f, -FLT_MAX };
        for (size_t i = 0; i < TEST_COUNT(low); i++) judge_exp2(table, low[i], bf16, &worst);
        assert_true(exp2_by_mass(table, -INFINITY) == 0);
        assert_true(exp2_by_softmax(table, -INFINITY) == 0);
        assert_true(isnan(exp2_by_mass(table, NAN)));
        assert_true(isnan(exp2_by_softmax(table, NAN)));
        test_report(&worst, INFINITY, "exp2, %s", table->name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_of_every_shape),
        cmocka_unit_test(nan_scores_spoil_their_lane_only),
        cmocka_unit_test(mass_sums_over_lanes),
        cmocka_unit_test(exp2_over_its_whole_domain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
