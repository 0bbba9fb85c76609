/* test_tile.c - a tile of queries against keys around every edge of strips and key blocks: its attention,
 * its log-sum-exps and the masses of its keys, which sum to its queries. */
#include "cpu/tile.h"
#include "test.h"

enum { QUERIES = 150, KEYS = 2 * MCSA_KEY_BLOCK + 3, D = 24 };

typedef struct bench {
    test_call c;
    mcsa_tile tile;
    void *memory;
} bench;

static bench open_bench(mcsa_dtype dtype, int keys)
{
    bench b = { .c = test_call_make((const int[]){ 1, QUERIES, keys, D }, dtype, TEST_HND, 4, 1) };
    mcsa_tile measured;
    mcsa_arena arena = { NULL, 0 };
    mcsa_tile_carve(&measured, &arena, QUERIES, D, keys);
    size_t bytes = (arena.used + 63) / 64 * 64;
    b.memory = aligned_alloc(64, bytes);
    assert_non_null(b.memory);
    memset(b.memory, TEST_CANARY_BYTE, bytes);
    arena = (mcsa_arena){ b.memory, 0 };
    mcsa_tile_carve(&b.tile, &arena, QUERIES, D, keys);
    return b;
}

static mcsa_rows rows_of(const mcsa_tensor *t, const int32_t *index, int first, int count)
{
    return (mcsa_rows){ t->data, t->dtype, t->stride[1], t->stride[2], index, first, count, D };
}

static void judge_tile(const test_table *table, bench *b, const test_reference *r, int count, const int32_t *index,
                       test_worst worst[4])
{
    const float scale = 1 / sqrtf(D);
    test_call *c = &b->c;
    mcsa_rows queries = rows_of(&c->q.view, index, 3, count);
    mcsa_rows keys = rows_of(&c->k.view, NULL, 0, c->M), values = rows_of(&c->v.view, NULL, 0, c->M);
    double *mass = test_alloc(sizeof *mass * (size_t)c->M), *off = test_alloc(sizeof *off * (size_t)c->M), total = 0,
           *trail_off = test_alloc(sizeof *trail_off * (size_t)c->M);
    const double rounded = table->kernel.word_elements == 2 ? U_BF16 : 0; /* of probabilities that meet v */
    float lse[QUERIES];
    mcsa_tile_load(&b->tile, &table->kernel, &queries);
    assert_true(mcsa_tile_trail_fits(&b->tile, c->M));
    mcsa_tile_attend(&b->tile, &keys, &values, scale, 1);
    mcsa_tile_trail_mass(&b->tile, c->M);
    for (int i = 0; i < count; i++) {
        int n = index ? index[i] : 3 + i;
        for (int d = 0; d < D; d++)
            test_judge(&worst[0], (double)b->tile.rows[i * D + d], r->out[n * D + d], r->out_bound[n], count, i, d);
        test_judge(&worst[1], (double)b->tile.lse[i], r->lse[n], r->lse_bound[n], count, i, 0);
        lse[i] = (float)r->lse[n];
        for (int j = 0; j < c->M; j++) {
            double dot = 0;
            for (int d = 0; d < D; d++) dot += test_get(&c->q.view, 0, n, d) * test_get(&c->k.view, 0, j, d);
            double a = exp((double)scale * dot - r->lse[n]);
            mass[j] += a;
            off[j] += a * expm1(2 * r->lse_bound[n] + count * U_F32);
            trail_off[j] += a * expm1(3 * r->lse_bound[n] + 2 * U_EXP2 + count * U_F32 + rounded);
        }
    }
    for (int j = 0; j < c->M; j++)
        test_judge(&worst[3], (double)b->tile.mass[j], mass[j], trail_off[j], count, c->M, j);
    mcsa_tile_mass(&b->tile, &keys, scale, lse);
    double total_off = 0;
    for (int j = 0; j < c->M; j++) {
        test_judge(&worst[2], (double)b->tile.mass[j], mass[j], off[j], count, c->M, j);
        total += (double)b->tile.mass[j];
        total_off += off[j];
    }
    test_judge(&worst[2], total, count, total_off, count, c->M, -1); /* METHOD.md: sum_j mass_j = queries */
    free(mass);
    free(off);
    free(trail_off);
}

static void tiles_attend_and_weigh(void **state)
{
    (void)state;
    static const int counts[] = { 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 147 };
    static const int keys[] = { 1, 2, 5, MCSA_KEY_BLOCK - 1, MCSA_KEY_BLOCK, MCSA_KEY_BLOCK + 1, KEYS };
    test_table tables[4];
    size_t table_count = test_tables(tables);
    int32_t index[QUERIES];
    for (int i = 0; i < QUERIES; i++) index[i] = (i * 37 + 5) % QUERIES;
    for (size_t t = 0; t < table_count; t++) {
        test_worst worst[4] = { { .percent = 0 } };
        for (size_t k = 0; k < TEST_COUNT(keys); k++) {
            mcsa_dtype dtype = tables[t].kernel.word_elements == 2 ? MCSA_BF16 : test_dtypes[k % 3];
            bench b = open_bench(dtype, keys[k]);
            test_rounding rounding = { .probability = tables[t].kernel.word_elements == 2 ? U_BF16 : 0 };
            test_reference r = test_reference_make(&b.c, (double)(1 / sqrtf(D)), NULL, &rounding);
            for (size_t i = k % 2; i < TEST_COUNT(counts); i += 1 + (keys[k] > 5))
                judge_tile(&tables[t], &b, &r, counts[i], i % 3 ? index : NULL, worst);
            test_reference_free(&r);
            test_call_free(&b.c);
            free(b.memory);
        }
        test_report(&worst[0], 5e-3, "output, %s", tables[t].name);
        test_report(&worst[1], 1e-6, "log-sum-exp, %s", tables[t].name);
        test_report(&worst[2], 1e-6, "masses, %s", tables[t].name);
        test_report(&worst[3], tables[t].kernel.word_elements == 2 ? 5e-3 : 1e-6, "masses from the trail, %s",
                    tables[t].name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(tiles_attend_and_weigh) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
