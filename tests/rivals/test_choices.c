/* test_choices.c - what every method chooses, at every size: all rows once, no query without a key, and the density
 * asked.  T5. */
#include "choices.h"

/* All rows of every head exactly once. */
static void expect_partition(const rival_partition *p, const test_call *c, const char *method, const char *what)
{
    unsigned char *seen = test_alloc((size_t)c->N);
    assert_int_equal(p->H, c->H);
    assert_int_equal(p->N, c->N);
    for (int h = 0; h < p->H; h++) {
        const int32_t *order = p->order + (int64_t)h * p->N, *first = p->first + (int64_t)h * (p->P + 1);
        memset(seen, 0, (size_t)c->N);
        if (first[0] != 0 || first[p->P] != c->N)
            fail_msg("%s: %s cover %d to %d of %d rows", method, what, first[0], first[p->P], c->N);
        for (int k = 0; k < p->P; k++) assert_true(first[k] <= first[k + 1]);
        for (int i = 0; i < c->N; i++) {
            assert_in_range(order[i], 0, c->N - 1);
            seen[order[i]]++;
        }
        for (int i = 0; i < c->N; i++)
            if (seen[i] != 1) fail_msg("%s: %s hold row %d of head %d %d times", method, what, i, h, seen[i]);
    }
    free(seen);
}

/* Every query has a key, and no bit lies behind the last part. */
static void expect_map(const rival_choice *choice, const char *method)
{
    const rival_map *map = &choice->map;
    assert_int_equal(map->H, choice->queries.H);
    assert_int_equal(map->Q, choice->queries.P);
    assert_int_equal(map->K, choice->keys.P);
    assert_int_equal(map->words, (map->K + 63) / 64);
    for (int h = 0; h < map->H; h++)
        for (int q = 0; q < map->Q; q++) {
            const uint64_t *row = rival_map_row(map, h, q);
            int keys = 0;
            for (int k = 0; k < map->K; k++)
                if (rival_map_has(map, h, q, k)) keys += rival_part_size(&choice->keys, h, k);
            if (!keys && rival_part_size(&choice->queries, h, q))
                fail_msg("%s: part %d of head %d keeps no key", method, q, h);
            if (map->K % 64) assert_true(row[map->words - 1] >> (map->K % 64) == 0);
        }
}

static void a_choice_holds_every_row_and_no_query_is_without_a_key(void **state)
{
    (void)state;
    static const int sizes[] = { 1, 2, 63, 64, 65, 127, 128, 129, 191, 1000 };
    static const double densities[] = { 1e-6, 0.15, 1 };
    for (const rival_method *const *m = rival_methods; *m; m++)
        for (size_t n = 0; n < TEST_COUNT(sizes); n++)
            for (size_t s = 0; s < TEST_COUNT(densities); s++) {
                int N = sizes[n], H = N > 500 ? 1 : 2;
                test_call c = test_call_make((const int[]){ H, N, N, 8 }, MCSA_F32, TEST_HND, (uint64_t)N, 1);
                rival_config config = fixture_config((*m)->name, N, densities[s]);
                chooser by = chooser_open(&config);
                chooser_warm_up(&by, &c);
                const rival_choice *choice = chooser_choose(&by, &c, 2);
                expect_partition(&choice->queries, &c, (*m)->name, "queries");
                expect_partition(&choice->keys, &c, (*m)->name, "keys");
                expect_map(choice, (*m)->name);
                for (int h = 0; densities[s] == 1 && h < H; h++)
                    for (int q = 0; q < choice->map.Q; q++)
                        for (int k = 0; k < choice->map.K; k++)
                            if (!rival_map_has(&choice->map, h, q, k) && rival_part_size(&choice->keys, h, k) &&
                                rival_part_size(&choice->queries, h, q))
                                fail_msg("%s: density 1 leaves out part %d of %d", (*m)->name, k, q);
                chooser_close(&by);
                test_call_free(&c);
            }
}

/* Queries and keys that fall into clusters, whose attention is not even. */
static void fill_clustered(const mcsa_tensor *t, uint64_t seed)
{
    for (int64_t h = 0; h < t->shape[0]; h++)
        for (int64_t n = 0; n < t->shape[1]; n++) {
            uint64_t place = 31 * (uint64_t)(n / 37) + 7 * (uint64_t)h;
            for (int64_t d = 0; d < t->shape[2]; d++)
                test_set(t, h, n, d, 1.5 * test_normal(&place) + 0.7 * test_normal(&seed));
        }
}

static void expect_density(const char *method, const test_call *c, double density)
{
    rival_config config = fixture_config(method, c->N, density);
    chooser by = chooser_open(&config);
    chooser_warm_up(&by, c);
    const rival_choice *choice = chooser_choose(&by, c, 2);
    double executed = choice_density(choice);
    print_message("  %-12s %d tokens: %.4f asked, %.4f executed\n", method, c->N, density, executed);
    if (!(fabs(executed - density) <= 0.005))
        fail_msg("%s executes %.4f of the pairs of %d tokens, asked were %.2f", method, executed, c->N, density);
    expect_partition(&choice->queries, c, method, "queries");
    expect_partition(&choice->keys, c, method, "keys");
    expect_map(choice, method);
    chooser_close(&by);
}

static void expect_densities(int H, int N, mcsa_dtype dtype, const double *densities, size_t count)
{
    test_call c = test_call_make((const int[]){ H, N, N, 16 }, dtype, TEST_HND, 8, 1);
    fill_clustered(&c.q.view, 1);
    fill_clustered(&c.k.view, 2);
    for (const rival_method *const *m = rival_methods; *m; m++)
        for (size_t s = 0; s < count; s++) expect_density((*m)->name, &c, densities[s]);
    test_call_free(&c);
}

/* Half a point, as the methods are compared at. */
static void executed_density_is_the_density_asked(void **state)
{
    (void)state;
    static const double densities[] = { 0.15, 0.10, 0.25 };
    expect_densities(2, 2048, MCSA_F32, densities, 3);
    expect_densities(2, 1960, MCSA_F32, densities, 3);
    expect_densities(1, 8191, MCSA_BF16, densities, 1);
    expect_densities(1, 12345, MCSA_BF16, densities, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_choice_holds_every_row_and_no_query_is_without_a_key),
        cmocka_unit_test(executed_density_is_the_density_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
