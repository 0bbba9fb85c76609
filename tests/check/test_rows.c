/* test_rows.c - the moves of numbers: load_row, store_row, pack_queries, stage_keys and stage_values of
 * every table, in every dtype and stride.  Nothing is computed, so every bit must be right. */
#include "test.h"

static const int dims[] = { 1, 2, 3, 12, 15, 16, 17, 31, 32, 33, 40, 64, 80, 96, 128, 255, 256 };

/* Rows of head 1 of a [2, N, D] tensor of random bits that are finite. */
static test_tensor source(int N, int D, mcsa_dtype dtype, test_layout layout)
{
    test_tensor t = test_tensor_make(2, N, D, dtype, layout);
    test_fill_normal(&t.view, (uint64_t)(N + D), 1);
    return t;
}

static mcsa_rows rows_of(const test_tensor *t, const int32_t *index, int first, int count)
{
    const mcsa_tensor *v = &t->view;
    return (
        mcsa_rows){ test_at(v, 1, 0, 0), v->dtype, v->stride[1], v->stride[2], index, first, count, (int)v->shape[2] };
}

/* The dtypes whose tensors a table serves. */
static int serves(const test_table *table, mcsa_dtype dtype)
{
    return table->kernel.word_elements == 1 || dtype == MCSA_BF16;
}

static void load_and_store_keep_every_bit(void **state)
{
    (void)state;
    test_table tables[4];
    size_t count = test_tables(tables);
    for (size_t t = 0; t < count; t++)
        for (size_t y = 0; y < TEST_COUNT(test_dtypes); y++)
            for (size_t d = 0; d < TEST_COUNT(dims); d++)
                for (int layout = 0; layout < 3; layout++) {
                    int D = dims[d];
                    test_tensor from = source(3, D, test_dtypes[y], (test_layout)layout);
                    test_tensor to = test_tensor_make(2, 3, D, test_dtypes[y], (test_layout)layout);
                    float *row = test_words((size_t)D);
                    tables[t].kernel.load_row(test_at(&from.view, 1, 2, 0), test_dtypes[y], from.view.stride[2], D,
                                              row);
                    for (int i = 0; i < D; i++) assert_true((double)row[i] == test_get(&from.view, 1, 2, i));
                    tables[t].kernel.store_row(row, D, test_dtypes[y], to.view.stride[2], test_at(&to.view, 0, 1, 0));
                    for (int i = 0; i < D; i++) {
                        assert_true(test_get(&to.view, 0, 1, i) == (double)row[i]);
                        memset(test_at(&to.view, 0, 1, i), TEST_CANARY_BYTE, mcsa_dtype_bytes(test_dtypes[y]));
                    }
                    for (size_t b = 0; b < to.bytes; b++) assert_int_equal(to.storage[b], TEST_CANARY_BYTE);
                    test_words_free(row, (size_t)D);
                    test_tensor_free(&from);
                    test_tensor_free(&to);
                }
}

/* Rounding to 16 bits as half.h does it, at ties, at the edges of the range and for what is not a number. */
static void stores_round_to_nearest_even(void **state)
{
    (void)state;
    static const float special[] = { 0,          -0.0f,      1,         0x1.01p0f,   0x1.03p0f,  0x1.008p0f,
                                     0x1.018p0f, 65504,      65519.99f, 65520,       -65520,     0x1p-24f,
                                     0x1p-25f,   0x1.8p-25f, 0x1p-149f, FLT_MAX,     0x1.ffp15f, 1.5e-40f,
                                     INFINITY,   -INFINITY,  0x1p-14f,  0x1.ffcp-15f };
    enum { COUNT = 64 };
    test_table tables[4];
    size_t count = test_tables(tables);
    float row[COUNT];
    uint64_t seed = 1;
    for (size_t i = 0; i < COUNT; i++)
        row[i] = i < TEST_COUNT(special) ? special[i] : (float)ldexp(test_normal(&seed), test_below(&seed, 40) - 25);
    for (size_t t = 0; t < count; t++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            uint16_t out[COUNT];
            tables[t].kernel.store_row(row, COUNT, bf16 ? MCSA_BF16 : MCSA_F16, 1, out);
            for (int i = 0; i < COUNT; i++) {
                uint16_t expected = bf16 ? mcsa_to_bf16(row[i]) : mcsa_to_f16(row[i]);
                if (out[i] != expected) fail_msg("%s: %a became %04x", tables[t].name, (double)row[i], out[i]);
            }
        }
}

static void queries_lie_side_by_side(void **state)
{
    (void)state;
    static const int32_t index[] = { 5, 0, 3, 66, 7, 2, 1, 69, 68, 9, 10, 20, 30, 40, 50, 60, 61, 4 };
    test_table tables[4];
    size_t count = test_tables(tables);
    for (size_t t = 0; t < count; t++)
        for (size_t y = 0; y < TEST_COUNT(test_dtypes); y++)
            for (size_t d = 0; d < TEST_COUNT(dims); d++)
                for (int used = 1; used <= 64; used += used < 18 ? 1 : 23) {
                    const test_table *table = &tables[t];
                    if (!serves(table, test_dtypes[y])) continue;
                    int D = dims[d], lanes = (used + 15) / 16 * 16, words = test_depth(table, D);
                    const int32_t *some = used <= (int)TEST_COUNT(index) && d % 2 ? index : NULL;
                    test_tensor from = source(70, D, test_dtypes[y], (test_layout)((d + (size_t)used) % 3));
                    mcsa_rows rows = rows_of(&from, some, 6, used);
                    size_t size = (size_t)words * (size_t)lanes;
                    uint32_t *queries = test_words(size), *scratch = test_words(size);
                    table->kernel.pack_queries(&rows, lanes, queries, scratch);
                    for (int i = 0; i < lanes; i++)
                        for (int e = 0; e < words * table->kernel.word_elements; e++) {
                            double x = i < used && e < D ? test_get(&from.view, 1, some ? some[i] : 6 + i, e) : 0;
                            if (test_take(table, queries, e, i, lanes) != x)
                                fail_msg("%s: element %d of query %d of %d", table->name, e, i, used);
                        }
                    test_words_free(queries, size);
                    test_words_free(scratch, size);
                    test_tensor_free(&from);
                }
}

/* Keys are found through pointers, whether they were staged or lie where they were. */
static void keys_and_values_are_words(void **state)
{
    (void)state;
    static const int32_t index[] = { 69, 0, 3, 66, 7, 2, 68 };
    test_table tables[4];
    size_t count = test_tables(tables);
    for (size_t t = 0; t < count; t++)
        for (size_t y = 0; y < TEST_COUNT(test_dtypes); y++)
            for (size_t d = 0; d < TEST_COUNT(dims); d++)
                for (int used = 1; used <= 7; used++) {
                    const test_table *table = &tables[t];
                    if (!serves(table, test_dtypes[y])) continue;
                    int D = dims[d], words = test_depth(table, D), steps = test_depth(table, used);
                    const int32_t *some = used % 2 ? index : NULL;
                    test_tensor from = source(70, D, test_dtypes[y], (test_layout)((d + (size_t)used) % 3));
                    mcsa_rows rows = rows_of(&from, some, 63, used);
                    size_t key_size = (size_t)used * (size_t)words, value_size = (size_t)steps * (size_t)D;
                    uint32_t *staged = test_words(key_size), *values = test_words(value_size);
                    const uint32_t *keys[7];
                    table->kernel.stage_keys(&rows, staged, keys);
                    table->kernel.stage_values(&rows, values);
                    for (int j = 0; j < steps * table->kernel.word_elements; j++) {
                        int row = j >= used ? -1 : some ? some[j] : 63 + j;
                        for (int e = 0; e < D; e++) {
                            double x = row < 0 ? 0 : test_get(&from.view, 1, row, e);
                            if (row >= 0 && test_take(table, keys[j], e, 0, 1) != x)
                                fail_msg("%s: element %d of key %d, D %d", table->name, e, j, D);
                            if (test_take(table, values, j, e, D) != x)
                                fail_msg("%s: element %d of value %d of %d, D %d", table->name, e, j, used, D);
                        }
                        if (row >= 0 && D % table->kernel.word_elements)
                            assert_true(test_take(table, keys[j], D, 0, 1) == 0);
                    }
                    test_words_free(staged, key_size);
                    test_words_free(values, value_size);
                    test_tensor_free(&from);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(load_and_store_keep_every_bit),
        cmocka_unit_test(stores_round_to_nearest_even),
        cmocka_unit_test(queries_lie_side_by_side),
        cmocka_unit_test(keys_and_values_are_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
