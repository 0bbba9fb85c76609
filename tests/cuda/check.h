/* check.h - what the programs that need a GPU share: random calls, device memory between guards, attention rows once
 * more in double on the host, error bounds, and a line that prints the percent of its bound a kernel used.
 *
 * Each program is a main: 0 passed, 1 failed, 77 skipped because there is no GPU that mcsa supports.  C and C++.
 *
 * u below is the unit roundoff 2^-p of a format with p significant bits: 2^-8 for bf16, 2^-11 for f16. */
#ifndef MCSA_TESTS_CUDA_CHECK_H
#define MCSA_TESTS_CUDA_CHECK_H

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "base/half.h"
#include "base/tensor.h"
#include "core/plan.h"

#define CHECK_MMA \
    0x1p-23 /* a tensor core cuts each of the 17 addends of a step of 16 products at this part of the largest */
#define CHECK_EXP2 0x1p-22 /* relative error of ex2.approx.ftz.f32, as PTX promises */

static int check_failures; /* of this program */

#define CHECK_CUDA(call)                                                                               \
    do {                                                                                               \
        cudaError_t check_error = (call);                                                              \
        if (check_error != cudaSuccess) {                                                              \
            printf("FAIL %s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(check_error)); \
            exit(1);                                                                                   \
        }                                                                                              \
    } while (0)

#define CHECK_TRUE(condition, ...)                                     \
    do {                                                               \
        if (!(condition)) {                                            \
            printf("FAIL %s:%d %s: ", __FILE__, __LINE__, #condition); \
            printf(__VA_ARGS__);                                       \
            printf("\n");                                              \
            check_failures++;                                          \
        }                                                              \
    } while (0)

/* Ends the program with 77 and says why, unless GPU 0 is of compute capability 9.0. */
static inline void check_gpu(void)
{
    int count = 0, major = 0, minor = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        printf("skip: no GPU (%s)\n", error == cudaSuccess ? "the driver sees none" : cudaGetErrorString(error));
        exit(77);
    }
    CHECK_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    CHECK_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
    if (major == 9 && minor == 0) return;
    printf("skip: GPU 0 has compute capability %d.%d; these kernels need 9.0\n", major, minor);
    exit(77);
}

/* What main returns. */
static inline int check_done(const char *program)
{
    if (check_failures)
        printf("%s: %d failed\n", program, check_failures);
    else
        printf("%s: all passed\n", program);
    return check_failures != 0;
}

/* splitmix64: a seed names its data on every machine */

static inline uint64_t check_word(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline double check_uniform(uint64_t *seed) /* [0, 1) */
{
    return (double)(check_word(seed) >> 11) * 0x1p-53;
}

static inline int64_t check_below(uint64_t *seed, int64_t n)
{
    return (int64_t)(check_word(seed) % (uint64_t)n);
}

/* Near enough to a normal number of variance 1, and fast: the sum of four uniform ones, within 3.47. */
static inline float check_normal(uint64_t *seed)
{
    uint64_t w = check_word(seed);
    int sum = (int)(w & 0xffff) + (int)(w >> 16 & 0xffff) + (int)(w >> 32 & 0xffff) + (int)(w >> 48);
    return (float)(sum - 2 * 65535) * 2.6429e-5f; /* sqrt(3) / 65536 */
}

static inline uint16_t check_half(float x, mcsa_dtype dtype)
{
    return dtype == MCSA_BF16 ? mcsa_to_bf16(x) : mcsa_to_f16(x);
}

static inline float check_float(uint16_t x, mcsa_dtype dtype)
{
    return dtype == MCSA_BF16 ? mcsa_from_bf16(x) : mcsa_from_f16(x);
}

static inline double check_unit(mcsa_dtype dtype)
{
    return dtype == MCSA_BF16 ? 0x1p-8 : 0x1p-11;
}

static inline void *check_alloc(size_t bytes)
{
    void *block = malloc(bytes ? bytes : 1);
    if (block) return block;
    printf("FAIL no memory for %zu bytes of test data\n", bytes);
    exit(1);
}

enum { CHECK_GUARD = 4096, CHECK_POISON = 0xff }; /* all ones: a NaN in every format, -1 as an index */

/* Device memory between two guards. */
typedef struct check_buffer {
    void *data; /* aligned to 256 */
    size_t bytes;
} check_buffer;

static inline void check_buffer_poison(const check_buffer *b)
{
    CHECK_CUDA(cudaMemset(b->data, CHECK_POISON, b->bytes));
    CHECK_CUDA(cudaDeviceSynchronize());
}

static inline check_buffer check_buffer_make(size_t bytes)
{
    char *block;
    size_t whole = (bytes + 255) / 256 * 256 + 2 * CHECK_GUARD;
    CHECK_CUDA(cudaMalloc((void **)&block, whole));
    CHECK_CUDA(cudaMemset(block, CHECK_POISON, whole));
    CHECK_CUDA(cudaDeviceSynchronize());
    check_buffer b;
    b.data = block + CHECK_GUARD;
    b.bytes = bytes;
    return b;
}

static inline void check_upload(const check_buffer *b, const void *host)
{
    CHECK_CUDA(cudaMemcpy(b->data, host, b->bytes, cudaMemcpyHostToDevice));
}

/* Also waits for the GPU, so errors of kernels before it show here. */
static inline void check_download(void *host, const check_buffer *b)
{
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_CUDA(cudaMemcpy(host, b->data, b->bytes, cudaMemcpyDeviceToHost));
}

/* Fails when a byte before or behind the buffer changed; frees it. */
static inline void check_buffer_free(check_buffer *b)
{
    static unsigned char guard[CHECK_GUARD];
    int64_t damaged = 0;
    if (!b->data) return;
    char *block = (char *)b->data - CHECK_GUARD;
    for (int side = 0; side < 2; side++) {
        const char *from = side ? block + CHECK_GUARD + b->bytes : block;
        CHECK_CUDA(cudaMemcpy(guard, from, CHECK_GUARD, cudaMemcpyDeviceToHost));
        for (int i = 0; i < CHECK_GUARD; i++) damaged += guard[i] != CHECK_POISON;
    }
    CHECK_TRUE(damaged == 0, "%lld bytes outside a buffer of %zu were written", (long long)damaged, b->bytes);
    CHECK_CUDA(cudaFree(block));
    b->data = NULL;
}

typedef enum check_layout {
    CHECK_HND,   /* contiguous */
    CHECK_NHD,   /* contiguous, as a linear layer leaves it */
    CHECK_PADDED /* [H, N, D] with 8 elements between rows and 24 more between heads */
} check_layout;

typedef enum check_fill {
    CHECK_NORMAL,    /* variance 1 */
    CHECK_CLUSTERED, /* rows around one of 32 centres of variance 1, at a distance of variance 1/16: peaked attention */
    CHECK_LARGE,     /* normal, and one row in eight up to 300 in magnitude */
    CHECK_INTEGERS   /* -2 ... 2: products and their sums over D are exact */
} check_fill;

/* One tensor on the host and, with the same strides, on the device.  What lies between its elements is poisoned. */
typedef struct check_tensor {
    mcsa_tensor host, device;
    check_buffer buffer;
} check_tensor;

static inline size_t check_extent(const mcsa_tensor *t) /* bytes from the first element to the end of the last */
{
    int64_t last = 0;
    for (int i = 0; i < 3; i++) last += (t->shape[i] - 1) * t->stride[i];
    return sizeof(uint16_t) * (size_t)(last + 1);
}

static inline uint16_t *check_at(const mcsa_tensor *t, int64_t h, int64_t n, int64_t d)
{
    return (uint16_t *)t->data + h * t->stride[0] + n * t->stride[1] + d * t->stride[2];
}

static inline double check_get(const mcsa_tensor *t, int64_t h, int64_t n, int64_t d)
{
    return (double)check_float(*check_at(t, h, n, d), t->dtype);
}

static inline check_tensor check_tensor_make(int H, int64_t N, int D, mcsa_dtype dtype, check_layout layout)
{
    check_tensor t;
    memset(&t, 0, sizeof t);
    int64_t row = layout == CHECK_PADDED ? D + 8 : D;
    t.host.dtype = dtype;
    t.host.shape[0] = H;
    t.host.shape[1] = N;
    t.host.shape[2] = D;
    t.host.stride[0] = layout == CHECK_NHD ? D : N * row + (layout == CHECK_PADDED ? 24 : 0);
    t.host.stride[1] = layout == CHECK_NHD ? (int64_t)H * D : row;
    t.host.stride[2] = 1;
    size_t bytes = check_extent(&t.host);
    t.host.data = check_alloc(bytes);
    memset(t.host.data, CHECK_POISON, bytes);
    t.buffer = check_buffer_make(bytes);
    t.device = t.host;
    t.device.data = t.buffer.data;
    return t;
}

static inline void check_tensor_free(check_tensor *t)
{
    free(t->host.data);
    check_buffer_free(&t->buffer);
}

/* Fresh elements on the host and on the device. */
static inline void check_tensor_fill(check_tensor *t, check_fill fill, uint64_t seed)
{
    static float centres[32][256];
    int D = (int)t->host.shape[2];
    for (int c = 0; c < 32; c++)
        for (int d = 0; d < D; d++) centres[c][d] = check_normal(&seed);
    for (int64_t h = 0; h < t->host.shape[0]; h++)
        for (int64_t n = 0; n < t->host.shape[1]; n++) {
            uint16_t *row = check_at(&t->host, h, n, 0);
            const float *centre = centres[check_below(&seed, 32)];
            float most = fill == CHECK_LARGE && check_below(&seed, 8) == 0 ? 300.0f : 0.0f;
            for (int d = 0; d < D; d++) {
                float x = check_normal(&seed);
                if (fill == CHECK_CLUSTERED) x = centre[d] + 0.25f * x;
                if (fill == CHECK_INTEGERS) x = (float)(check_word(&seed) % 5) - 2.0f;
                if (most > 0) x *= most / 3.47f;
                row[d] = check_half(x, t->host.dtype);
            }
        }
    check_upload(&t->buffer, t->host.data);
}

/* q, out [H, N, D], k, v [H, M, D] and their call. */
typedef struct check_call {
    int H, N, M, D;
    mcsa_dtype dtype;
    check_tensor q, k, v, out;
    mcsa_qkv x; /* of the device tensors; scale 1 / sqrt(D) */
} check_call;

static inline void check_call_fill(check_call *c, check_fill fill, uint64_t seed)
{
    check_tensor_fill(&c->q, fill, seed);
    check_tensor_fill(&c->k, fill, fill == CHECK_CLUSTERED ? seed : seed + 1); /* queries meet keys of their cluster */
    check_tensor_fill(&c->v, CHECK_NORMAL, seed + 2);
}

/* In place, because x points into the struct. */
static inline void check_call_make(check_call *c, const int shape[4] /* H, N, M, D */, mcsa_dtype dtype,
                                   check_layout layout, check_fill fill, uint64_t seed)
{
    memset(c, 0, sizeof *c);
    c->H = shape[0];
    c->N = shape[1];
    c->M = shape[2];
    c->D = shape[3];
    c->dtype = dtype;
    c->q = check_tensor_make(c->H, c->N, c->D, dtype, layout);
    c->k = check_tensor_make(c->H, c->M, c->D, dtype, layout);
    c->v = check_tensor_make(c->H, c->M, c->D, dtype, layout);
    c->out = check_tensor_make(c->H, c->N, c->D, dtype, layout);
    check_call_fill(c, fill, seed);
    c->x.q = &c->q.device;
    c->x.k = &c->k.device;
    c->x.v = &c->v.device;
    c->x.out = &c->out.device;
    c->x.dims.H = c->H;
    c->x.dims.N = c->N;
    c->x.dims.M = c->M;
    c->x.dims.D = c->D;
    c->x.dims.dtype = dtype;
    c->x.scale = 1.0f / sqrtf((float)c->D);
}

static inline void check_call_free(check_call *c)
{
    check_tensor_free(&c->q);
    check_tensor_free(&c->k);
    check_tensor_free(&c->v);
    check_tensor_free(&c->out);
}

/* One row of attention in double, and how far a kernel may be from it. */
typedef struct check_row {
    double out[256], lse;
    double out_bound; /* before the rounding to the dtype of out */
    double lse_bound;
} check_row;

/* A weight 2^(scale2 s - max) is off by a factor of at most e^ds with
 *     ds = scale max_j sum_d |q_d k_jd| (17/16 D 2^-23 + 8 2^-24) + (blocks + 2) exp2
 * : truncation in the tensor core (none where scores are exact), the rounding of the scale, of its product, of the
 * maximum and of their difference, and one exp2 for the weight and for each rescaling by a block of at least 64 keys.
 * Normalised weights then move by at most e^(2 ds) - 1 in sum.  The row sum adds keys 2^-24, the product with v
 * 17/16 keys 2^-23, and rounding the weights for that product the unit of their dtype, in f16 also half its smallest
 * number a key. */
static inline void check_bounds(check_row *r, double scaled_most /* scale max_j sum_d |q_d k_jd| */, int64_t keys,
                                int D, double most_v, mcsa_dtype dtype, int exact_scores)
{
    double dot = exact_scores ? 0 : 17.0 / 16 * D * CHECK_MMA;
    double ds = scaled_most * (dot + 8 * 0x1p-24) + ((double)keys / 64 + 3) * CHECK_EXP2;
    double moved = expm1(2 * ds) + (double)(keys + 16) * (17.0 / 16 * CHECK_MMA + 0x1p-24) +
                   check_unit(dtype) * (1 + 2 * ds) + (dtype == MCSA_F16 ? (double)keys * 0x1p-25 : 0);
    r->out_bound = fmin(moved, 2) * most_v; /* weights that sum to 1 cannot move further than 2 */
    r->lse_bound = ds + (double)(keys + 16) * 0x1p-24 + 8 * 0x1p-24 * (scaled_most + log((double)keys) + 1);
}

/* Query n of head h against the `count` keys listed, or all when keys is NULL. */
static inline void check_attend(check_row *r, const check_call *c, int h, int64_t n, const int32_t *keys, int64_t count,
                                int exact_scores)
{
    double q[256], max = -INFINITY, most = 0, most_v = 0, sum = 0;
    if (!keys) count = c->M;
    double *score = (double *)check_alloc(sizeof(double) * (size_t)count);
    for (int d = 0; d < c->D; d++) q[d] = check_get(&c->q.host, h, n, d);
    for (int64_t i = 0; i < count; i++) {
        const uint16_t *k = check_at(&c->k.host, h, keys ? keys[i] : i, 0);
        double dot = 0, size = 0;
        for (int d = 0; d < c->D; d++) {
            double x = q[d] * (double)check_float(k[d], c->dtype);
            dot += x;
            size += fabs(x);
        }
        score[i] = (double)c->x.scale * dot;
        max = fmax(max, score[i]);
        most = fmax(most, (double)c->x.scale * size);
    }
    memset(r->out, 0, sizeof r->out);
    for (int64_t i = 0; i < count; i++) {
        const uint16_t *v = check_at(&c->v.host, h, keys ? keys[i] : i, 0);
        double p = exp(score[i] - max);
        sum += p;
        for (int d = 0; d < c->D; d++) {
            double x = (double)check_float(v[d], c->dtype);
            r->out[d] += p * x;
            most_v = fmax(most_v, fabs(x));
        }
    }
    for (int d = 0; d < c->D; d++) r->out[d] /= sum;
    r->lse = max + log(sum);
    check_bounds(r, most, count, c->D, most_v, c->dtype, exact_scores);
    free(score);
}

/* The worst of many comparisons. */
typedef struct check_worst {
    double percent; /* of the bound; infinite after a NaN where a number was due */
    double got, expected, bound;
    int64_t place[3], count;
    double squared_error, squared_reference;
} check_worst;

/* A NaN or infinity is right exactly where the reference has the same. */
static inline void check_judge(check_worst *w, double got, double expected, double bound, int64_t a, int64_t b,
                               int64_t c)
{
    int numbers = isfinite(got) && isfinite(expected);
    int same = isnan(expected) ? isnan(got) : got == expected;
    double error = fabs(got - expected), percent = numbers && bound > 0 ? 100 * error / bound : INFINITY;
    if (same) percent = 0;
    w->count++;
    if (numbers) {
        w->squared_error += error * error;
        w->squared_reference += expected * expected;
    }
    if (percent <= w->percent) return;
    w->percent = percent;
    w->got = got;
    w->expected = expected;
    w->bound = bound;
    w->place[0] = a;
    w->place[1] = b;
    w->place[2] = c;
}

/* Prints the line; fails above 100 % of the bound, and when nothing was compared. */
static inline void check_report(const check_worst *w, const char *format, ...)
{
    va_list args;
    int ok = w->count > 0 && w->percent <= 100;
    double l2 = w->squared_reference > 0 ? sqrt(w->squared_error / w->squared_reference) : sqrt(w->squared_error);
    printf("%-4s ", ok ? "ok" : "FAIL");
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf(": %.2f %% of bound, relative L2 %.1e, %lld numbers\n", w->percent, l2, (long long)w->count);
    if (ok) return;
    printf("     at [%lld, %lld, %lld]: %.9g is not %.9g within %.3g\n", (long long)w->place[0], (long long)w->place[1],
           (long long)w->place[2], w->got, w->expected, w->bound);
    check_failures++;
}

/* Judges row n of head h of c->out.host, as downloaded. */
static inline void check_judge_row(check_worst *w, const check_call *c, const check_row *r, int h, int64_t n)
{
    for (int d = 0; d < c->D; d++) {
        double bound = r->out_bound + check_unit(c->dtype) * (fabs(r->out[d]) + r->out_bound) + 0x1p-25;
        check_judge(w, check_get(&c->out.host, h, n, d), r->out[d], bound, h, n, d);
    }
}

static inline void check_same_bits(const void *a, const void *b, size_t bytes, const char *what)
{
    CHECK_TRUE(memcmp(a, b, bytes) == 0, "%s: two runs gave different bits", what);
}

#endif
