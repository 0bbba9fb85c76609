/* test_pddp.c - one pass of power iteration: projections, their sum and the weighted sum of rows, of every
 * table against double, in every dtype, with and without an index. */
#include "test.h"

static const int dims[] = { 1, 2, 7, 8, 9, 16, 17, 24, 31, 32, 33, 64, 80, 128, 255, 256 };

typedef struct pass {
    test_tensor x;
    const int32_t *index;
    float direction[MCSA_MAX_DIM], shift;
    int count, D;
} pass;

static void judge_pass(const test_table *table, const pass *p, test_worst *projections, test_worst *sums)
{
    const mcsa_tensor *v = &p->x.view;
    mcsa_rows rows = { test_at(v, 1, 0, 0), v->dtype, v->stride[1], v->stride[2], p->index, 2, p->count, p->D };
    float *y = test_words((size_t)p->D), *t = test_words((size_t)p->count), *once = test_words((size_t)p->D);
    double sum[MCSA_MAX_DIM], bound[MCSA_MAX_DIM], total = 0, total_bound = 0;
    for (int d = 0; d < p->D; d++) {
        y[d] = once[d] = (float)(d % 4) - 1; /* added to, not overwritten */
        sum[d] = (double)y[d];
        bound[d] = U_F32 * fabs(sum[d]);
    }
    double returned = table->kernel.pddp_pass(&rows, p->direction, p->shift, y, t);
    assert_true(table->kernel.pddp_pass(&rows, p->direction, p->shift, once, NULL) == returned);
    assert_memory_equal(y, once, sizeof *y * (size_t)p->D);
    for (int r = 0; r < p->count; r++) {
        int row = p->index ? p->index[r] : 2 + r;
        double dot = 0, terms = 0;
        for (int d = 0; d < p->D; d++) {
            double x = test_get(v, 1, row, d) * (double)p->direction[d];
            dot += x;
            terms += fabs(x);
        }
        double off = (p->D + 1) * U_F32 * terms; /* a float dot product */
        test_judge(projections, (double)t[r], dot, off, p->D, r, 0);
        double centred = dot - (double)p->shift;
        total += centred;
        off += U_F32 * (fabs(centred) + off);
        total_bound += off;
        for (int d = 0; d < p->D; d++) {
            double x = test_get(v, 1, row, d);
            sum[d] += centred * x;
            bound[d] += off * fabs(x) + (p->count + 2) * U_F32 * fabs(centred * x);
        }
    }
    test_judge(sums, returned, total, total_bound + 1e-12 * fabs(total), p->D, -1, 0);
    for (int d = 0; d < p->D; d++) test_judge(sums, (double)y[d], sum[d], bound[d], p->D, p->count, d);
    test_words_free(y, (size_t)p->D);
    test_words_free(once, (size_t)p->D);
    test_words_free(t, (size_t)p->count);
}

static void one_pass_is_a_product_with_the_covariance(void **state)
{
    (void)state;
    static const int32_t index[] = { 9, 3, 0, 90, 17, 94, 2, 1, 55, 23, 42 };
    static const int counts[] = { 1, 2, 3, 11, 92 };
    test_table tables[4];
    size_t count = test_tables(tables);
    for (size_t k = 0; k < count; k++)
        for (size_t y = 0; y < TEST_COUNT(test_dtypes); y++) {
            if (tables[k].kernel.word_elements == 2 && test_dtypes[y] != MCSA_BF16) continue;
            test_worst projections = { 0 }, sums = { 0 };
            for (size_t d = 0; d < TEST_COUNT(dims); d++)
                for (size_t c = 0; c < TEST_COUNT(counts); c++) {
                    uint64_t seed = d + 1;
                    pass p = { .count = counts[c], .D = dims[d], .shift = (float)(d % 3) - 1 };
                    p.index = d % 2 && p.count <= (int)TEST_COUNT(index) ? index : NULL;
                    p.x = test_tensor_make(2, 95, p.D, test_dtypes[y], (test_layout)((d + c) % 3));
                    test_fill_normal(&p.x.view, seed, 2);
                    for (int i = 0; i < p.D; i++) p.direction[i] = (float)test_normal(&seed);
                    judge_pass(&tables[k], &p, &projections, &sums);
                    test_tensor_free(&p.x);
                }
            test_report(&projections, 1e-6, "projections of %s, %s", test_dtype_name(test_dtypes[y]), tables[k].name);
            test_report(&sums, 1e-6, "sums of %s, %s", test_dtype_name(test_dtypes[y]), tables[k].name);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(one_pass_is_a_product_with_the_covariance) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
