/* test_residual.c - a residual row stored and added back, in each form and by every table: within half a
 * step of what went in, no byte beyond the row, and exact where it can be. */
#include "cpu/residual.h"
#include "test.h"

static const mcsa_residual forms[] = { MCSA_RESIDUAL_BF16, MCSA_RESIDUAL_INT8, MCSA_RESIDUAL_INT4 };
static const char *const form_names[] = { "bf16", "int8", "int4" };
static const int dims[] = { 1, 2, 3, 7, 8, 12, 15, 16, 17, 31, 32, 33, 40, 63, 64, 80, 127, 128, 255, 256 };

/* Half a step: bf16 steps with each number, the integers with the row's largest, most / 127 and most / 7.
 * Dividing and multiplying in float loses up to 2^-22 of the range; a row below 2^-100 is stored as zero. */
static double stored_error(mcsa_residual form, double most, double x)
{
    double half = form == MCSA_RESIDUAL_INT8 ? 0.5 / 127 : 0.5 / 7;
    if (form == MCSA_RESIDUAL_BF16) return U_BF16 * fabs(x) + 0x1p-134; /* half the smallest bf16 */
    return most * (half + 0x1p-22) + 0x1p-100;
}

static void round_trip(const test_table *table, mcsa_residual form, const float *x, int D, test_worst *worst)
{
    size_t bytes = residual_row_bytes(form, D);
    unsigned char code[2 * MCSA_MAX_DIM + 64 + 8];
    float sum[MCSA_MAX_DIM + 16];
    double most = 0;
    uint64_t seed = 3;
    memset(code, TEST_CANARY_BYTE, sizeof code);
    unsigned char *at = code + 32;
    at += (64 - (uintptr_t)at % 64) % 4; /* rows are multiples of 4 bytes (2 for bf16) from an aligned block */
    table->kernel.residual_encode(form, x, D, at);
    for (const unsigned char *p = code; p < at; p++) assert_int_equal(*p, TEST_CANARY_BYTE);
    for (const unsigned char *p = at + bytes; p < code + sizeof code; p++) assert_int_equal(*p, TEST_CANARY_BYTE);
    for (int d = 0; d < D; d++) most = fmax(most, fabs((double)x[d]));
    for (int d = 0; d < D + 16; d++) sum[d] = d % 3 ? (float)test_normal(&seed) : 0;
    float before[MCSA_MAX_DIM + 16];
    memcpy(before, sum, sizeof sum);
    table->kernel.residual_add(form, at, D, sum);
    for (int d = 0; d < D; d++) {
        double expected = (double)before[d] + (double)x[d];
        double bound = stored_error(form, most, (double)x[d]) + 2 * U_F32 * (fabs((double)before[d]) + 2 * most);
        test_judge(worst, (double)sum[d], expected, bound, (int64_t)form, D, d);
    }
    assert_memory_equal(sum + D, before + D, 16 * sizeof *sum);
}

static void rows_come_back_within_half_a_step(void **state)
{
    (void)state;
    test_table tables[4];
    size_t count = test_tables(tables);
    static const double scales[] = { 1e-30, 1e-3, 1, 300, 1e30 };
    for (size_t t = 0; t < count; t++)
        for (size_t f = 0; f < TEST_COUNT(forms); f++) {
            test_worst worst = { 0 };
            uint64_t seed = 1;
            for (size_t d = 0; d < TEST_COUNT(dims); d++)
                for (size_t s = 0; s < TEST_COUNT(scales); s++)
                    for (int trial = 0; trial < 8; trial++) {
                        float x[MCSA_MAX_DIM];
                        for (int i = 0; i < dims[d]; i++) x[i] = (float)(scales[s] * test_normal(&seed));
                        if (trial == 7) x[dims[d] - 1] = (float)(100 * scales[s]); /* one outlier */
                        round_trip(&tables[t], forms[f], x, dims[d], &worst);
                    }
            test_report(&worst, INFINITY, "residual %s, %s", form_names[f], tables[t].name);
        }
}

/* Zero rows, equal rows, the largest element at either end and of either sign. */
static void special_rows(void **state)
{
    (void)state;
    test_table tables[4];
    size_t count = test_tables(tables);
    for (size_t t = 0; t < count; t++)
        for (size_t f = 0; f < TEST_COUNT(forms); f++) {
            test_worst worst = { 0 };
            for (size_t i = 0; i < TEST_COUNT(dims); i++) {
                int D = dims[i];
                float x[MCSA_MAX_DIM] = { 0 };
                round_trip(&tables[t], forms[f], x, D, &worst);
                for (int sign = -1; sign <= 1; sign += 2) {
                    for (int d = 0; d < D; d++) x[d] = (float)sign * 0.7f;
                    round_trip(&tables[t], forms[f], x, D, &worst);
                    memset(x, 0, sizeof x);
                    x[0] = (float)sign * 3;
                    round_trip(&tables[t], forms[f], x, D, &worst);
                    x[0] = 0;
                    x[D - 1] = (float)sign * 0x1p-126f;
                    round_trip(&tables[t], forms[f], x, D, &worst);
                }
            }
            test_report(&worst, INFINITY, "special rows in %s, %s", form_names[f], tables[t].name);
        }
}

/* A zero row adds exactly nothing, whatever the form: a follower of nothing dropped changes no bit. */
static void zero_rows_add_nothing(void **state)
{
    (void)state;
    test_table tables[4];
    size_t count = test_tables(tables);
    const float zero[33] = { 0 };
    for (size_t t = 0; t < count; t++)
        for (size_t f = 0; f < TEST_COUNT(forms); f++) {
            unsigned char code[128];
            float row[33], same[33];
            uint64_t seed = 9;
            for (int d = 0; d < 33; d++) row[d] = same[d] = (float)test_normal(&seed);
            tables[t].kernel.residual_encode(forms[f], zero, 33, code);
            tables[t].kernel.residual_add(forms[f], code, 33, row);
            assert_memory_equal(row, same, sizeof row);
        }
}

/* Multiples of the step survive exactly: all 255 of int8 and all 15 of int4, in even and odd places. */
static void whole_steps_are_exact(void **state)
{
    (void)state;
    test_table tables[4];
    size_t count = test_tables(tables);
    for (size_t t = 0; t < count; t++)
        for (int eight = 0; eight < 2; eight++) {
            int most = eight ? 127 : 7, D = 2 * most + 1;
            float x[256], row[256] = { 0 };
            unsigned char code[320];
            for (int d = 0; d < D; d++) x[d] = (float)(d - most);
            tables[t].kernel.residual_encode(eight ? MCSA_RESIDUAL_INT8 : MCSA_RESIDUAL_INT4, x, D, code);
            tables[t].kernel.residual_add(eight ? MCSA_RESIDUAL_INT8 : MCSA_RESIDUAL_INT4, code, D, row);
            for (int d = 0; d < D; d++)
                if (row[d] != x[d]) fail_msg("%s: %g came back as %g", tables[t].name, (double)x[d], (double)row[d]);
        }
}

/* No residual: nothing is stored and nothing added. */
static void off_touches_nothing(void **state)
{
    (void)state;
    test_table tables[4];
    size_t count = test_tables(tables);
    assert_int_equal(residual_row_bytes(MCSA_RESIDUAL_OFF, 128), 0);
    for (size_t t = 0; t < count; t++) {
        float row[3] = { 1, 2, 3 };
        unsigned char code[4] = { 1, 2, 3, 4 };
        tables[t].kernel.residual_encode(MCSA_RESIDUAL_OFF, row, 3, code);
        tables[t].kernel.residual_add(MCSA_RESIDUAL_OFF, code, 3, row);
        assert_true(row[0] == 1 && row[1] == 2 && row[2] == 3);
        assert_true(code[0] == 1 && code[1] == 2 && code[2] == 3 && code[3] == 4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_back_within_half_a_step),
        cmocka_unit_test(special_rows),
        cmocka_unit_test(zero_rows_add_nothing),
        cmocka_unit_test(whole_steps_are_exact),
        cmocka_unit_test(off_touches_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
