/* test_kernels_diagonal.c - XAttention's scores of blocks against its definition in double, entry by entry of the
 * antidiagonals. */
#include "verbs.h"

typedef struct strides {
    mcsa_qkv x;
    int stride, size;
} strides;

static mcsa_status step(void *state, const void *user, float *out, mcsa_error *error)
{
    const strides *s = user;
    return verbs->diagonal(state, &s->x, s->stride, s->size, out, error);
}

/* Scaled score of strided query u and key v, rows past N left out; *size: sum of |products|, scaled. */
static double strided_score(const double *q, const double *k, int N, int D, int u, int v, const strides *s,
                            double *size)
{
    double score = 0, part, scale = (double)s->x.scale / s->stride;
    *size = 0;
    for (int r = 0; r < s->stride; r++) {
        int a = u * s->stride + s->stride - 1 - r, b = v * s->stride + r;
        if (a >= N || b >= N) continue;
        score += verbs_dot(q + (int64_t)a * D, k + (int64_t)b * D, D, scale, &part);
        *size += part;
    }
    return score;
}

/* block, bound: [B, B] of one head.  A weight of the softmax moves by e^(2 ds) - 1 with the ds of test_row_bounds, for
 * stride D products and one rescaling per block; sums add a unit per term. */
static void reference(const double *q, const double *k, int N, int D, const strides *s, double *block, double *bound)
{
    int V = (N + s->stride - 1) / s->stride, per = s->size / s->stride, B = (N + s->size - 1) / s->size;
    double *score = test_alloc(sizeof *score * (size_t)V);
    memset(block, 0, sizeof *block * (size_t)B * (size_t)B);
    memset(bound, 0, sizeof *bound * (size_t)B * (size_t)B);
    for (int u = 0; u < V; u++) {
        double max = -INFINITY, most = 0, sum = 0, size;
        for (int v = 0; v < V; v++) {
            score[v] = strided_score(q, k, N, D, u, v, s, &size);
            max = fmax(max, score[v]);
            most = fmax(most, size);
        }
        for (int v = 0; v < V; v++) sum += exp(score[v] - max);
        double ds = most * (s->stride * D + 8) * U_F32 + (B + V / MCSA_KEY_BLOCK + 3) * (U_EXP2 + 2 * U_F32);
        double moved = expm1(2 * ds) + (2 * V + per + 8) * U_F32;
        for (int v = 0; v < V; v++) {
            int64_t at = (int64_t)(u / per) * B + v / per;
            block[at] += exp(score[v] - max) / sum;
            bound[at] += exp(score[v] - max) / sum * moved + 0x1p-126;
        }
    }
    free(score);
}

static void run_shape(const int shape[3] /* H, N, D */, int stride, int size, mcsa_dtype dtype, double amplitude)
{
    int H = shape[0], N = shape[1], D = shape[2], B = (N + size - 1) / size;
    test_call c = test_call_make((const int[]){ H, N, N, D }, dtype, N % 2 ? TEST_SPREAD : TEST_NHD, 61, amplitude);
    const strides s = { verbs_call(&c, 1 / sqrtf((float)D)), stride, size };
    size_t squares = (size_t)B * (size_t)B, count = (size_t)H * squares;
    double *block = test_alloc(sizeof *block * count), *bound = test_alloc(sizeof *bound * count);
    double *q = test_doubles(&c.q.view), *k = test_doubles(&c.k.view);
    for (int h = 0; h < H; h++) {
        size_t head = (size_t)h * (size_t)N * (size_t)D;
        reference(q + head, k + head, N, D, &s, block + (size_t)h * squares, bound + (size_t)h * squares);
    }
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (test_levels[l] > mcsa_cpu_isa()) continue;
        test_worst worst = { 0 };
        float *got = verbs_run(step, &s, count, test_levels[l]);
        for (size_t i = 0; i < count; i++)
            test_judge(&worst, (double)got[i], block[i], bound[i], (int64_t)(i / squares), (int64_t)(i % squares) / B,
                       (int64_t)i % B);
        test_report(&worst, amplitude > 1 ? 1e-4 : 1e-6, "N %d D %d stride %d of %d %s %s", N, D, stride, size,
                    test_dtype_name(dtype), mcsa_isa_name(test_levels[l]));
        test_words_free(got, count);
    }
    free(block);
    free(bound);
    free(q);
    free(k);
    test_call_free(&c);
}

static void blocks_are_sums_of_antidiagonals(void **state)
{
    (void)state;
    for (size_t d = 0; d < TEST_COUNT(test_dtypes); d++) {
        run_shape((const int[]){ 2, 1, 16 }, 8, 128, test_dtypes[d], 1);
        run_shape((const int[]){ 1, 7, 17 }, 8, 16, test_dtypes[d], 1);
        run_shape((const int[]){ 2, 65, 64 }, 8, 16, test_dtypes[d], 2);
        run_shape((const int[]){ 1, 1000, 128 }, 8, 128, test_dtypes[d], 1);
        run_shape((const int[]){ 2, 333, 16 }, 4, 12, test_dtypes[d], 2);  /* blocks that fill 63 of 64 lanes */
        run_shape((const int[]){ 1, 900, 16 }, 2, 420, test_dtypes[d], 2); /* and such that take several strips */
        run_shape((const int[]){ 2, 130, 24 }, 1, 32, test_dtypes[d], 2);
        run_shape((const int[]){ 1, 100, 64 }, 8, 32, test_dtypes[d], 20); /* scores to 200 */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(blocks_are_sums_of_antidiagonals) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
