/* rivals_check.h - what the tests of other methods' kernels share: both tables, random partitions and maps, scores in
 * double. */
#ifndef MCSA_TESTS_CUDA_RIVALS_CHECK_H
#define MCSA_TESTS_CUDA_RIVALS_CHECK_H

#include "check.h"

#include "rivals/kernels.h"

/* What must not fail, with the sentence when it does. */
#define CHECK_OK(call)                                                                            \
    do {                                                                                          \
        mcsa_error check_said = { "" };                                                           \
        mcsa_status check_status = (call);                                                        \
        CHECK_TRUE(check_status == MCSA_OK, "status %d, %s", (int)check_status, check_said.text); \
        if (check_status != MCSA_OK) exit(check_done("stopped"));                                 \
    } while (0)
#define CHECK_SAID &check_said

/* The same call on the CPU, where check_call keeps its tensors too. */
static inline mcsa_qkv check_host_call(const check_call *c)
{
    mcsa_qkv x = c->x;
    x.q = &c->q.host;
    x.k = &c->k.host;
    x.v = &c->v.host;
    x.out = &c->out.host;
    return x;
}

/* P parts of random sizes, some of them empty, of a random order of all rows but `omitted`; what lies behind the last
 * part is no row number. */
static inline rival_partition check_random_parts(int H, int N, int P, int omitted, uint64_t seed)
{
    rival_partition p = { 0 };
    CHECK_OK(rival_partition_reserve(&p, H, N, P, CHECK_SAID));
    for (int h = 0; h < H; h++) {
        int32_t *order = p.order + (int64_t)h * N, *first = p.first + (int64_t)h * (P + 1);
        for (int i = 0; i < N; i++) order[i] = i;
        for (int i = N - 1; i > 0; i--) {
            int64_t j = check_below(&seed, i + 1);
            int32_t other = order[i];
            order[i] = order[j];
            order[j] = other;
        }
        for (int i = 0; i <= P; i++) {
            first[i] = i == 0 ? 0 : i == P ? N - omitted : (int32_t)check_below(&seed, N - omitted + 1);
            for (int j = i; j > 0 && first[j - 1] > first[j]; j--) {
                int32_t other = first[j];
                first[j] = first[j - 1];
                first[j - 1] = other;
            }
        }
        for (int i = N - omitted; i < N; i++) order[i] = INT32_MAX;
    }
    return p;
}

static inline rival_partition check_blocks(int H, int N, int size)
{
    rival_partition p = { 0 };
    CHECK_OK(rival_partition_blocks(&p, H, N, size, NULL, CHECK_SAID));
    return p;
}

/* Each pair of parts with this chance; every `hungry`-th row of the map keeps nothing (0: none). */
static inline rival_map check_random_map(int H, int Q, int K, double chance, int hungry, uint64_t seed)
{
    rival_map map = { 0 };
    CHECK_OK(rival_map_reserve(&map, H, Q, K, CHECK_SAID));
    for (int h = 0; h < H; h++)
        for (int q = 0; q < Q; q++)
            for (int k = 0; k < K; k++)
                if (!(hungry && q % hungry == hungry - 1) && check_uniform(&seed) < chance)
                    rival_map_keep(&map, h, q, k);
    return map;
}

/* q_i . k_j; *size: the sum of magnitudes. */
static inline double check_dot(const check_call *c, int h, int64_t i, int64_t j, double *size)
{
    const uint16_t *q = check_at(&c->q.host, h, i, 0), *k = check_at(&c->k.host, h, j, 0);
    double dot = 0;
    *size = 0;
    for (int d = 0; d < c->D; d++) {
        double x = (double)check_float(q[d], c->dtype) * (double)check_float(k[d], c->dtype);
        dot += x;
        *size += fabs(x);
    }
    return dot;
}

static inline float *check_floats(int64_t count)
{
    float *x = (float *)check_alloc((size_t)count * sizeof *x);
    memset(x, CHECK_POISON, (size_t)count * sizeof *x);
    return x;
}

static inline float *check_normals(int64_t count, double size, uint64_t seed)
{
    float *x = check_floats(count);
    for (int64_t i = 0; i < count; i++) x[i] = (float)size * check_normal(&seed);
    return x;
}

typedef struct tables {
    const rival_kernels *gpu, *cpu;
    void *on_gpu, *on_cpu;
} tables;

static inline tables tables_open(void)
{
    tables t;
    mcsa_config config = { .steps = 1, .layers = 1, .device = MCSA_DEVICE_CUDA };
    CHECK_OK(rival_kernels_find(&t.gpu, MCSA_DEVICE_CUDA, CHECK_SAID));
    CHECK_OK(t.gpu->open(&t.on_gpu, &config, CHECK_SAID));
    config.device = MCSA_DEVICE_CPU;
    t.cpu = &rival_kernels_cpu;
    CHECK_OK(t.cpu->open(&t.on_cpu, &config, CHECK_SAID));
    return t;
}

static inline void tables_close(tables *t)
{
    t->gpu->close(t->on_gpu);
    t->cpu->close(t->on_cpu);
}

/* Sizes and parts of one round of tests. */
typedef struct round_case {
    int H, N, D, Q, K, omitted; /* Q, K: parts of the queries and keys; 0: blocks of 64; K -1: rows */
    mcsa_dtype dtype;
    check_layout layout;
    check_fill fill;
} round_case;

typedef struct test_round {
    round_case of;
    check_call c;
    rival_partition queries, keys;
    uint64_t seed;
    char name[96];
} test_round;

static inline void round_make(test_round *r, const round_case *of, uint64_t seed)
{
    const int shape[4] = { of->H, of->N, of->N, of->D };
    r->of = *of;
    r->seed = seed;
    check_call_make(&r->c, shape, of->dtype, of->layout, of->fill, seed);
    r->queries = of->Q ? check_random_parts(of->H, of->N, of->Q, of->omitted, seed + 10)
                       : check_blocks(of->H, of->N, RIVAL_TILE);
    r->keys = of->K > 0 ? check_random_parts(of->H, of->N, of->K, of->omitted, seed + 11)
                        : check_blocks(of->H, of->N, of->K ? 1 : RIVAL_TILE);
    snprintf(r->name, sizeof r->name, "%s [%d, %d, %d], %d x %d parts", of->dtype == MCSA_BF16 ? "bf16" : "f16", of->H,
             of->N, of->D, r->queries.P, r->keys.P);
}

static inline void round_free(test_round *r)
{
    check_call_free(&r->c);
    rival_partition_free(&r->queries);
    rival_partition_free(&r->keys);
}

#endif
