/* test_products.c - the two products of kernels.h, scores and accumulate, and finish: every table against
 * double, for every number of lanes and around every edge of keys and dimensions.
 *
 * A float dot product of n terms is off by at most n u times the sum of the terms' magnitudes, in any
 * order; products of two bf16 are exact in float and their pair sums round no more often. */
#include "test.h"

static const int dims[] = { 1, 2, 3, 12, 16, 17, 31, 40, 64, 80, 127, 128, 255, 256 };
static const int counts[] = { 1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 47, 48, 49, MCSA_KEY_BLOCK - 1, MCSA_KEY_BLOCK };

/* Shapes to run: all dims with a few counts, all counts with a few dims, each with some number of lanes. */
typedef struct shape {
    int D, count, lanes;
} shape;

static size_t make_shapes(shape *shapes)
{
    size_t made = 0;
    for (size_t d = 0; d < TEST_COUNT(dims); d++)
        for (int lanes = 16; lanes <= 64; lanes += 16) shapes[made++] = (shape){ dims[d], 7, lanes };
    for (size_t c = 0; c < TEST_COUNT(counts); c++)
        for (int lanes = 16; lanes <= 64; lanes += 16) shapes[made++] = (shape){ c % 2 ? 33 : 20, counts[c], lanes };
    return made;
}

static shape shapes[4 * (TEST_COUNT(dims) + TEST_COUNT(counts))];

/* Fills [elements, columns] with normals, padding elements with zero. */
static void fill(const test_table *table, uint32_t *words, int elements, int columns, uint64_t *seed)
{
    for (int t = 0; t < test_depth(table, elements) * table->kernel.word_elements; t++)
        for (int i = 0; i < columns; i++) test_put(table, words, t, i, columns, t < elements ? test_normal(seed) : 0);
}

static void scores_of(const test_table *table, shape s, test_worst *worst)
{
    uint64_t seed = 1;
    int words = test_depth(table, s.D);
    size_t size = (size_t)s.count * (size_t)s.lanes;
    uint32_t *queries = test_words((size_t)words * (size_t)s.lanes),
             *staged = test_words((size_t)s.count * (size_t)words);
    float *out = test_words(size), *again = test_words(size);
    const uint32_t *keys[MCSA_KEY_BLOCK];
    fill(table, queries, s.D, s.lanes, &seed);
    for (int j = 0; j < s.count; j++) {
        int at = (s.count - 1 - j) * words; /* anywhere, not in a row */
        fill(table, staged + at, s.D, 1, &seed);
        keys[j] = staged + at;
    }
    table->kernel.scores(keys, queries, s.count, s.D, s.lanes, out);
    for (int j = 0; j < s.count; j++)
        for (int i = 0; i < s.lanes; i++) {
            double dot = 0, size_of_terms = 0;
            for (int d = 0; d < s.D; d++) {
                double x = test_take(table, keys[j], d, 0, 1) * test_take(table, queries, d, i, s.lanes);
                dot += x;
                size_of_terms += fabs(x);
            }
            double bound = s.D * U_F32 * size_of_terms + s.D * 0x1p-126;
            test_judge(worst, (double)out[j * s.lanes + i], dot, bound, s.D, j, i);
        }
    table->kernel.scores(keys, queries, s.count, s.D, s.lanes, again);
    assert_memory_equal(out, again, sizeof *out * size);
    test_words_free(queries, (size_t)words * (size_t)s.lanes);
    test_words_free(staged, (size_t)s.count * (size_t)words);
    test_words_free(out, size);
    test_words_free(again, size);
}

static void scores_are_dot_products(void **state)
{
    (void)state;
    test_table tables[4];
    size_t count = test_tables(tables), cases = make_shapes(shapes);
    for (size_t t = 0; t < count; t++) {
        test_worst worst = { 0 };
        for (size_t i = 0; i < cases; i++) scores_of(&tables[t], shapes[i], &worst);
        test_report(&worst, 1e-6, "scores, %s", tables[t].name);
    }
}

static void accumulate_of(const test_table *table, shape s, test_worst *worst)
{
    uint64_t seed = 2;
    int steps = test_depth(table, s.count);
    size_t size = (size_t)s.D * (size_t)s.lanes, value_words = (size_t)steps * (size_t)s.D;
    uint32_t *values = test_words(value_words), *weights = test_words((size_t)steps * (size_t)s.lanes);
    float *output = test_words(size), *before = test_words(size), alpha[64];
    fill(table, values, s.count, s.D, &seed);
    fill(table, weights, s.count, s.lanes, &seed);
    for (size_t i = 0; i < size; i++) output[i] = before[i] = (float)test_normal(&seed);
    for (int i = 0; i < 64; i++) alpha[i] = i % 5 ? (float)test_uniform(&seed) : (float)(i % 2);
    table->kernel.accumulate(values, weights, s.count, s.D, s.lanes, alpha, output);
    for (int d = 0; d < s.D; d++)
        for (int i = 0; i < s.lanes; i++) {
            double sum = (double)before[d * s.lanes + i] * (double)alpha[i], size_of_terms = fabs(sum);
            for (int j = 0; j < s.count; j++) {
                double x = test_take(table, values, j, d, s.D) * test_take(table, weights, j, i, s.lanes);
                sum += x;
                size_of_terms += fabs(x);
            }
            double bound = (s.count + 1) * U_F32 * size_of_terms + s.count * 0x1p-126;
            test_judge(worst, (double)output[d * s.lanes + i], sum, bound, s.count, d, i);
        }
    test_words_free(values, value_words);
    test_words_free(weights, (size_t)steps * (size_t)s.lanes);
    test_words_free(output, size);
    test_words_free(before, size);
}

static void accumulate_adds_weighted_values(void **state)
{
    (void)state;
    test_table tables[4];
    size_t count = test_tables(tables), cases = make_shapes(shapes);
    for (size_t t = 0; t < count; t++) {
        test_worst worst = { 0 };
        for (size_t i = 0; i < cases; i++) accumulate_of(&tables[t], shapes[i], &worst);
        test_report(&worst, 1e-6, "accumulate, %s", tables[t].name);
    }
}

/* A NaN or infinity reaches what reads it and nothing else. */
static void special_numbers_stay_in_their_place(void **state)
{
    (void)state;
    enum { D = 33, COUNT = 13, LANES = 32, BAD_KEY = 5, BAD_LANE = 9 };
    test_table tables[4];
    size_t count = test_tables(tables);
    for (size_t t = 0; t < count; t++) {
        const test_table *table = &tables[t];
        uint64_t seed = 3;
        int words = test_depth(table, D);
        uint32_t queries[D * LANES], staged[COUNT * D];
        const uint32_t *keys[COUNT];
        float out[COUNT * LANES];
        fill(table, queries, D, LANES, &seed);
        for (int j = 0; j < COUNT; j++) {
            fill(table, staged + j * words, D, 1, &seed);
            keys[j] = staged + j * words;
        }
        test_put(table, staged + BAD_KEY * words, D - 1, 0, 1, (double)NAN);
        test_put(table, queries, 0, BAD_LANE, LANES, (double)INFINITY);
        table->kernel.scores(keys, queries, COUNT, D, LANES, out);
        for (int j = 0; j < COUNT; j++)
            for (int i = 0; i < LANES; i++) {
                float x = out[j * LANES + i];
                int right = j == BAD_KEY ? isnan(x) : i == BAD_LANE ? isinf(x) : isfinite(x);
                if (!right) fail_msg("%s: key %d, lane %d is %g", table->name, j, i, (double)x);
            }
    }
}

/* out = output / sum: one rounding of 1 / sum and one of the product, or one of the quotient. */
static void finish_divides_and_turns_rows_up(void **state)
{
    (void)state;
    test_table tables[4];
    size_t count = test_tables(tables);
    for (size_t t = 0; t < count; t++) {
        test_worst worst = { 0 };
        uint64_t seed = 4;
        for (size_t d = 0; d < TEST_COUNT(dims); d++)
            for (int lanes = 16; lanes <= 64; lanes += 16)
                for (int used = lanes - 15; used <= lanes; used += 5) {
                    int D = dims[d];
                    size_t size = (size_t)D * (size_t)lanes, rows_size = (size_t)used * (size_t)D;
                    float *output = test_words(size), *rows = test_words(rows_size), sum[64];
                    for (size_t i = 0; i < size; i++) output[i] = (float)test_normal(&seed);
                    for (int i = 0; i < lanes; i++) sum[i] = (float)(0.5 + 100 * test_uniform(&seed));
                    tables[t].kernel.finish(output, D, lanes, sum, used, rows);
                    for (int i = 0; i < used; i++)
                        for (int x = 0; x < D; x++) {
                            double expected = (double)output[x * lanes + i] / (double)sum[i];
                            test_judge(&worst, (double)rows[i * D + x], expected, 2.01 * U_F32 * fabs(expected), D, i,
                                       x);
                        }
                    test_words_free(output, size);
                    test_words_free(rows, rows_size);
                }
        test_report(&worst, 1e-6, "finish, %s", tables[t].name);
    }
}

/* What peak counts is what it does: rounds times a fixed number of operations. */
static void peak_counts_its_operations(void **state)
{
    (void)state;
    test_table tables[4];
    size_t count = test_tables(tables);
    for (size_t t = 0; t < count; t++) {
        int64_t one = tables[t].kernel.peak(1);
        assert_true(one > 0);
        assert_int_equal(tables[t].kernel.peak(1000), 1000 * one);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_are_dot_products),
        cmocka_unit_test(accumulate_adds_weighted_values),
        cmocka_unit_test(special_numbers_stay_in_their_place),
        cmocka_unit_test(finish_divides_and_turns_rows_up),
        cmocka_unit_test(peak_counts_its_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
