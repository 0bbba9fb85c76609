/* dit_linear_test.c - cuBLASLt's layers against sampled rows in double, with bias and GELU, and the same bits twice.
 *
 * BF16 products are exact; a tensor core cuts the addends of a step of 16 of them (CHECK_MMA), so a sum over K moves by
 * at most 17/16 K 2^-23 times the sum of magnitudes, far less in the mean; F32 layers add K times, 2^-24 each.  Then
 * comes one rounding of the result: over a whole layer its relative L2 error is below the unit of the format, which a
 * wrong bias, a TF32 product or a lost piece of a sum would not be. */
#include "check.h"

#include "dit/cuda/linear_lt.h"

#include <omp.h>

enum { SAMPLES = 12 };

typedef struct layer_case {
    int64_t in, out, rows;
    mcsa_dtype dtype;
    int gelu;
} layer_case;

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

/* The slope of GELU is at most 1.13; tanh.approx.f32, which an epilogue may use, is off by 2^-10.98 of its value. */
static double gelu_bound(double x, double bound)
{
    return 1.13 * bound + 0.5 * fabs(x) * 0x1p-10;
}

typedef struct layer_data {
    float *x, *weight, *bias; /* as the layer sees them: BF16 values where it is BF16 */
    void *raw, *y;            /* x, y in the layer's dtype */
} layer_data;

static float seen(float x, mcsa_dtype dtype)
{
    return dtype == MCSA_BF16 ? mcsa_from_bf16(mcsa_to_bf16(x)) : x;
}

static layer_data make_data(const layer_case *c)
{
    const size_t element = c->dtype == MCSA_BF16 ? 2 : 4;
    const int64_t xs = c->rows * c->in, ws = c->in * c->out;
    uint64_t seed = 12;
    layer_data d = { check_alloc((size_t)xs * 4), check_alloc((size_t)ws * 4), check_alloc((size_t)c->out * 4),
                     check_alloc((size_t)xs * element), check_alloc((size_t)(c->rows * c->out) * element) };
    for (int64_t i = 0; i < xs; i++) d.x[i] = seen(check_normal(&seed), c->dtype);
    for (int64_t i = 0; i < ws; i++) d.weight[i] = seen(check_normal(&seed) / sqrtf((float)c->in), c->dtype);
    for (int64_t i = 0; i < c->out; i++) d.bias[i] = seen(check_normal(&seed), c->dtype);
    for (int64_t i = 0; i < xs; i++)
        if (c->dtype == MCSA_BF16)
            ((uint16_t *)d.raw)[i] = mcsa_to_bf16(d.x[i]);
        else
            ((float *)d.raw)[i] = d.x[i];
    return d;
}

/* One row; expected and bound: [out] */
static void exact_row(const layer_case *c, const layer_data *d, int64_t n, double *expected, double *bound)
{
    const double step = c->dtype == MCSA_BF16 ? 17.0 / 16 * CHECK_MMA : 0x1p-24;
#pragma omp parallel for
    for (int64_t o = 0; o < c->out; o++) {
        double sum = (double)d->bias[o], size = fabs(sum);
        for (int64_t i = 0; i < c->in; i++) {
            const double product = (double)d->x[n * c->in + i] * (double)d->weight[o * c->in + i];
            sum += product;
            size += fabs(product);
        }
        bound[o] = (double)(c->in + 2) * step * size;
        expected[o] = sum;
        if (!c->gelu) continue;
        expected[o] = gelu(sum);
        bound[o] = gelu_bound(sum, bound[o]);
    }
}

static void judge(const layer_case *c, const layer_data *d)
{
    const double unit = c->dtype == MCSA_BF16 ? check_unit(MCSA_BF16) : 0x1p-24;
    double *expected = check_alloc((size_t)c->out * sizeof *expected),
           *bound = check_alloc((size_t)c->out * sizeof *bound);
    check_worst w = { 0 };
    uint64_t seed = 13;
    for (int s = 0; s < SAMPLES; s++) {
        const int64_t n = s == 0 ? 0 : s == 1 ? c->rows - 1 : check_below(&seed, c->rows);
        exact_row(c, d, n, expected, bound);
        for (int64_t o = 0; o < c->out; o++) {
            const int64_t at = n * c->out + o;
            const double got =
                c->dtype == MCSA_BF16 ? (double)mcsa_from_bf16(((uint16_t *)d->y)[at]) : (double)((float *)d->y)[at];
            check_judge(&w, got, expected[o], bound[o] + unit * (fabs(expected[o]) + bound[o]), n, o, 0);
        }
    }
    check_report(&w, "%s%s, %lld rows, %lld to %lld", c->dtype == MCSA_BF16 ? "bf16" : "f32", c->gelu ? " gelu" : "",
                 (long long)c->rows, (long long)c->in, (long long)c->out);
    /* In F32 sums dominate: sqrt(K) roundings of 2^-24 would be expected, 4 times that are allowed. */
    const double l2 = sqrt(w.squared_error / w.squared_reference);
    const double limit = c->dtype == MCSA_BF16 ? unit : 4 * unit * sqrt((double)c->in) + (c->gelu ? 0x1p-11 : 0);
    CHECK_TRUE(l2 <= limit, "relative L2 %.2e exceeds %.2e", l2, limit);
    free(expected);
    free(bound);
}

static void test_layer(lt_engine *engine, const layer_case *c)
{
    const size_t element = c->dtype == MCSA_BF16 ? 2 : 4, y_bytes = (size_t)(c->rows * c->out) * element;
    const dit_linear_shape shape = { c->in, c->out, c->dtype, c->dtype, c->gelu };
    layer_data d = make_data(c);
    void *again = check_alloc(y_bytes);
    mcsa_error error = { "" };
    dit_linear *layer = NULL;
    check_buffer x = check_buffer_make((size_t)(c->rows * c->in) * element), y = check_buffer_make(y_bytes);
    check_upload(&x, d.raw);
    CHECK_TRUE(lt_linear_create(&layer, engine, &shape, d.weight, d.bias, &error) == MCSA_OK, "%s", error.text);
    for (int round = 0; round < 2 && layer; round++) {
        check_buffer_poison(&y);
        CHECK_TRUE(lt_linear_apply(layer, x.data, y.data, c->rows, &error) == MCSA_OK, "%s", error.text);
        check_download(round ? again : d.y, &y);
    }
    check_same_bits(d.y, again, y_bytes, "a linear layer");
    judge(c, &d);
    lt_linear_free(layer);
    check_buffer_free(&x);
    check_buffer_free(&y);
    void *host[] = { d.x, d.weight, d.bias, d.raw, d.y, again };
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
}

int main(void)
{
    static const layer_case cases[] = {
        { 384, 1152, 4096, MCSA_BF16, 0 },  { 384, 384, 129, MCSA_BF16, 0 },    { 384, 1536, 4097, MCSA_BF16, 1 },
        { 1536, 384, 1, MCSA_BF16, 0 },     { 384, 768, 12, MCSA_BF16, 0 },     { 5120, 15360, 512, MCSA_BF16, 0 },
        { 5120, 13824, 640, MCSA_BF16, 1 }, { 13824, 5120, 640, MCSA_BF16, 0 }, { 48, 384, 4096, MCSA_F32, 0 },
        { 64, 1536, 1000, MCSA_F32, 0 },    { 256, 384, 1, MCSA_F32, 0 },       { 384, 2304, 1, MCSA_F32, 0 },
        { 1536, 9216, 1, MCSA_F32, 0 },     { 256, 384, 12, MCSA_F32, 1 },      { 384, 48, 4096, MCSA_F32, 0 },
        { 1536, 64, 777, MCSA_F32, 0 },
    };
    mcsa_error error = { "" };
    lt_engine *engine = NULL;
    check_gpu();
    if (lt_engine_create(&engine, 0, &error) != MCSA_OK) {
        printf("FAIL %s\n", error.text);
        return 1;
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) test_layer(engine, &cases[i]);
    CHECK_CUDA(stage_clock_read(lt_engine_clock(engine)));
    const double seconds = lt_engine_clock(engine)->seconds;
    CHECK_TRUE(seconds > 0 && seconds < 10, "the layers' clock says %g s", seconds);
    lt_engine_free(engine);
    return check_done("dit_linear_test");
}
