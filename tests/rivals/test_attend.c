/* test_attend.c - attention over kept parts, means of parts, and the residual row by row, on the CPU, against double.
 */
#include "verbs.h"

enum { H = 2 };

/* [H, N] bitmaps of the keys that each query attends to; NULL for a query in no part, *empty where nothing is kept. */
static const uint64_t **keys_by_query(const rival_partition *queries, const rival_partition *keys, const rival_map *map,
                                      uint64_t **storage)
{
    int N = queries->N, words = (N + 63) / 64;
    const uint64_t **by_query = test_alloc(sizeof *by_query * (size_t)H * (size_t)N);
    *storage = test_alloc(sizeof **storage * (size_t)H * (size_t)map->Q * (size_t)words);
    for (int h = 0; h < H; h++)
        for (int q = 0; q < map->Q; q++) {
            uint64_t *bits = *storage + ((size_t)h * (size_t)map->Q + (size_t)q) * (size_t)words;
            int count;
            const int32_t *rows;
            for (int k = 0; k < map->K; k++) {
                if (!rival_map_has(map, h, q, k)) continue;
                rows = rival_part(keys, h, k, &count);
                for (int r = 0; r < count; r++) bits[rows[r] / 64] |= (uint64_t)1 << (rows[r] % 64);
            }
            rows = rival_part(queries, h, q, &count);
            for (int r = 0; r < count; r++) by_query[h * N + rows[r]] = bits;
        }
    return by_query;
}

static int holds_none(const uint64_t *bits, int N)
{
    for (int w = 0; w < (N + 63) / 64; w++)
        if (bits[w]) return 0;
    return 1;
}

typedef struct scene {
    int N, Q, K, D;
    mcsa_dtype dtype;
    test_layout layout;
    int threads;
} scene;

/* About two parts in five, nothing in part 1 of the queries, all in part 0. */
static rival_map random_map(const scene *s, uint64_t seed)
{
    rival_map map = { 0 };
    assert_ok(rival_map_reserve(&map, H, s->Q, s->K, &error));
    for (int h = 0; h < H; h++)
        for (int q = 0; q < s->Q; q++)
            for (int k = 0; k < s->K; k++)
                if (q == 0 || (q != 1 && test_below(&seed, 5) < 2)) rival_map_keep(&map, h, q, k);
    return map;
}

static float scale_of(const test_call *c)
{
    return 1 / sqrtf((float)c->D);
}

static void judge_rows(const test_call *c, const float *lse, const uint64_t *const *by_query,
                       const test_rounding *rounding, const char *what)
{
    /* the reference wants a bitmap for every row: those without one see key 0 and are not judged */
    uint64_t first[64] = { 1 };
    const uint64_t **seen = test_alloc(sizeof *seen * (size_t)H * (size_t)c->N);
    for (int i = 0; i < H * c->N; i++) seen[i] = by_query[i] && !holds_none(by_query[i], c->N) ? by_query[i] : first;
    test_reference r = test_reference_make(c, (double)scale_of(c), seen, rounding);
    test_worst out = { 0 }, sums = { 0 };
    for (int h = 0; h < H; h++)
        for (int n = 0; n < c->N; n++) {
            int64_t row = (int64_t)h * c->N + n;
            for (int d = 0; d < c->D; d++) {
                double got = test_get(&c->out.view, h, n, d), expected = r.out[row * c->D + d];
                double bound = r.out_bound[row];
                bound += rounding->out * (fabs(expected) + bound) + 0x1p-25;
                if (!by_query[row])
                    assert_true(isnan(got)); /* left as it was */
                else if (seen[row] == first)
                    assert_true(got == 0);
                else
                    test_judge(&out, got, expected, bound, h, n, d);
            }
            if (!by_query[row])
                assert_true(isnan(lse[row]));
            else if (seen[row] == first)
                assert_true(lse[row] == -INFINITY);
            else
                test_judge(&sums, (double)lse[row], r.lse[row], r.lse_bound[row], h, n, 0);
        }
    test_report(&out, test_ceiling(c->dtype), "%s, out", what);
    test_report(&sums, INFINITY, "%s, log sums", what);
    test_reference_free(&r);
    free(seen);
}

static void poison(const test_call *c, float *lse)
{
    for (int h = 0; h < H; h++)
        for (int n = 0; n < c->N; n++) {
            for (int d = 0; d < c->D; d++) test_set(&c->out.view, h, n, d, (double)NAN);
            lse[h * c->N + n] = NAN;
        }
}

static void attend_scene(const scene *s, mcsa_isa isa)
{
    char what[100];
    test_rounding rounding = test_rounding_of(isa, s->dtype);
    test_call c = test_call_make((const int[]){ H, s->N, s->N, s->D }, s->dtype, s->layout, 7, 1);
    rival_partition queries = verbs_partition(H, s->N, s->Q, 1), keys = verbs_partition(H, s->N, s->K, 2);
    rival_map map = random_map(s, 3);
    uint64_t *storage;
    const uint64_t **by_query = keys_by_query(&queries, &keys, &map, &storage);
    float *lse = test_words((size_t)H * (size_t)s->N);
    void *state = verbs_open(isa, s->threads);
    mcsa_qkv x = verbs_call(&c, scale_of(&c));
    poison(&c, lse);
    assert_ok(verbs->attend(state, &x, &queries, &keys, &map, lse, &error));
    snprintf(what, sizeof what, "%s, %s, N = %d, %d x %d parts, D = %d", mcsa_isa_name(isa), test_dtype_name(s->dtype),
             s->N, s->Q, s->K, s->D);
    judge_rows(&c, lse, by_query, &rounding, what);
    assert_int_equal(test_damage(&c.out), 0);
    verbs->close(state);
    test_words_free(lse, (size_t)H * (size_t)s->N);
    rival_partition_free(&queries);
    rival_partition_free(&keys);
    rival_map_free(&map);
    free(by_query);
    free(storage);
    test_call_free(&c);
}

static void attention_over_kept_parts(void **state)
{
    (void)state;
    static const scene scenes[] = {
        { 1, 1, 1, 16, MCSA_F32, TEST_HND, 1 },         { 65, 3, 4, 16, MCSA_BF16, TEST_NHD, 1 },
        { 300, 5, 70, 64, MCSA_BF16, TEST_HND, 4 },     { 300, 5, 70, 64, MCSA_F16, TEST_SPREAD, 1 },
        { 700, 4, 300, 128, MCSA_F32, TEST_SPREAD, 4 }, { 700, 40, 9, 33, MCSA_BF16, TEST_HND, 1 },
    };
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++)
        for (size_t i = 0; test_has(test_levels[l]) && i < TEST_COUNT(scenes); i++)
            attend_scene(&scenes[i], test_levels[l]);
}

/* FP32 sums of n rows are off by at most n u of the sum of magnitudes, and the division by u more. */
static void means_of_parts(void **state)
{
    (void)state;
    static const int shapes[][3] = { { 1, 1, 16 }, { 65, 4, 128 }, { 1000, 7, 64 }, { 1000, 900, 5 } }; /* N, P, D */
    for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++)
        for (size_t i = 0; i < TEST_COUNT(shapes); i++) {
            int N = shapes[i][0], P = shapes[i][1], D = shapes[i][2];
            test_tensor x = test_tensor_make(H, N, D, test_dtypes[t], i % 2 ? TEST_SPREAD : TEST_NHD);
            test_fill_normal(&x.view, 5, 2);
            rival_partition parts = verbs_partition(H, N, P, 6);
            size_t words = (size_t)H * (size_t)P * (size_t)D;
            float *mean = test_words(words);
            void *kernels = verbs_open(MCSA_ISA_AUTO, i % 2 ? 4 : 1);
            test_worst worst = { 0 };
            assert_ok(verbs->pool(kernels, &x.view, &parts, mean, &error));
            for (int h = 0; h < H; h++)
                for (int p = 0; p < P; p++)
                    for (int d = 0; d < D; d++) {
                        int count;
                        const int32_t *rows = rival_part(&parts, h, p, &count);
                        double sum = 0, size = 0;
                        for (int r = 0; r < count; r++) {
                            sum += test_get(&x.view, h, rows[r], d);
                            size += fabs(test_get(&x.view, h, rows[r], d));
                        }
                        double expected = count ? sum / count : 0,
                               bound = count ? (count + 1) * U_F32 * size / count : 0;
                        test_judge(&worst, (double)mean[((int64_t)h * P + p) * D + d], expected, bound, h, p, d);
                    }
            test_report(&worst, INFINITY, "%s, N = %d, %d parts, D = %d", test_dtype_name(test_dtypes[t]), N, P, D);
            verbs->close(kernels);
            test_words_free(mean, words);
            rival_partition_free(&parts);
            test_tensor_free(&x);
        }
}

static void rows_and_bytes_are_read(void **state)
{
    (void)state;
    static const int32_t index[] = { 3, 0, 19, 3 };
    enum { D = 9, COUNT = 4 };
    for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
        test_tensor x = test_tensor_make(H, 20, D, test_dtypes[t], TEST_SPREAD);
        test_fill_normal(&x.view, 5, 2);
        float *rows = test_words(H * COUNT * D), copy[7] = { 0 };
        void *kernels = verbs_open(MCSA_ISA_AUTO, 1);
        assert_ok(verbs->read_rows(kernels, &x.view, index, COUNT, rows, &error));
        for (int h = 0; h < H; h++)
            for (int i = 0; i < COUNT; i++)
                for (int d = 0; d < D; d++)
                    assert_true((double)rows[(h * COUNT + i) * D + d] == test_get(&x.view, h, index[i], d));
        assert_ok(verbs->read(kernels, rows, sizeof copy, copy, &error));
        assert_memory_equal(copy, rows, sizeof copy);
        verbs->close(kernels);
        test_words_free(rows, H * COUNT * D);
        test_tensor_free(&x);
    }
}

/* residual = round(dense - sparse) to BF16, out = round(out + residual) to its dtype: the same bits as that, done here
 * element by element. */
static void a_residual_is_the_rounded_difference(void **state)
{
    (void)state;
    enum { N = 77, D = 20 };
    for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
        test_tensor dense = test_tensor_make(H, N, D, test_dtypes[t], TEST_SPREAD);
        test_tensor sparse = test_tensor_make(H, N, D, test_dtypes[t], TEST_HND);
        test_tensor out = test_tensor_make(H, N, D, test_dtypes[t], TEST_NHD);
        test_fill_normal(&dense.view, 1, 1);
        test_fill_normal(&sparse.view, 2, 1);
        test_copy(&out.view, &sparse.view);
        uint16_t *residual = test_words(H * N * D / 2);
        void *kernels = verbs_open(MCSA_ISA_AUTO, 4);
        assert_ok(verbs->subtract(kernels, &dense.view, &sparse.view, residual, &error));
        assert_ok(verbs->add(kernels, &out.view, residual, &error));
        for (int h = 0; h < H; h++)
            for (int n = 0; n < N; n++)
                for (int d = 0; d < D; d++) {
                    float had = (float)test_get(&sparse.view, h, n, d);
                    float missed = (float)test_get(&dense.view, h, n, d) - had;
                    uint16_t code = mcsa_to_bf16(missed);
                    mcsa_tensor one = { &(float){ 0 }, test_dtypes[t], { 1, 1, 1 }, { 1, 1, 1 } };
                    test_set(&one, 0, 0, 0, (double)(had + mcsa_from_bf16(code)));
                    assert_int_equal(residual[(h * N + n) * D + d], code);
                    assert_true(test_get(&out.view, h, n, d) == test_get(&one, 0, 0, 0));
                }
        assert_int_equal(test_damage(&out), 0);
        verbs->close(kernels);
        test_words_free(residual, H * N * D / 2);
        test_tensor_free(&dense);
        test_tensor_free(&sparse);
        test_tensor_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_over_kept_parts),
        cmocka_unit_test(means_of_parts),
        cmocka_unit_test(rows_and_bytes_are_read),
        cmocka_unit_test(a_residual_is_the_rounded_difference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
