/* problem.c - tensors to benchmark on, and the gate: attention in double for sampled rows.
 *
 * Clustered queries stand for those of a video: runs of 8 neighbours belong to one of the centres, drawn at random, and
 * differ from it by half of its spread.  The centres' share of the variance, 1 / 1.25, is what perfect groups remove.
 */
#include "clusters.h"

#include "base/half.h"
#include "base/tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLED_ROWS = 16, CLUSTER_RUN = 8, MAX_DIM = 256 };

/* Sum of four uniform numbers, centred and scaled. */
float bench_bell(uint64_t *seed)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(*seed >> 40) * 0x1p-24f - 0.5f;
    }
    return sum * 1.7320508f;
}

void bench_store(const mcsa_tensor *t, int64_t i, float x)
{
    if (t->dtype == MCSA_F32)
        ((float *)t->data)[i] = x;
    else
        ((uint16_t *)t->data)[i] = t->dtype == MCSA_BF16 ? mcsa_to_bf16(x) : mcsa_to_f16(x);
}

double bench_element(const mcsa_tensor *t, int64_t h, int64_t n, int64_t d)
{
    int64_t i = h * t->stride[0] + n * t->stride[1] + d;
    if (t->dtype == MCSA_F32) return (double)((const float *)t->data)[i];
    uint16_t half = ((const uint16_t *)t->data)[i];
    return (double)(t->dtype == MCSA_BF16 ? mcsa_from_bf16(half) : mcsa_from_f16(half));
}

double bench_unit(mcsa_dtype dtype)
{
    return dtype == MCSA_F32 ? 0x1p-24 : dtype == MCSA_BF16 ? 0x1p-8 : 0x1p-11;
}

float bench_rounded(float x, mcsa_dtype dtype)
{
    if (dtype == MCSA_F32) return x;
    return dtype == MCSA_BF16 ? mcsa_from_bf16(mcsa_to_bf16(x)) : mcsa_from_f16(mcsa_to_f16(x));
}

double bench_dense_operations(const bench_shape *shape)
{
    return 4.0 * shape->heads * shape->dim * (double)shape->tokens * shape->tokens;
}

static void fill(mcsa_tensor *t, uint64_t *seed)
{
    int64_t count = t->shape[0] * t->stride[0];
    for (int64_t i = 0; i < count; i++) bench_store(t, i, bench_bell(seed));
}

/* centre c of a head is a stream of numbers that starts at a seed of its own */
static void fill_clustered(mcsa_tensor *t, int clusters, uint64_t *seed)
{
    int64_t N = t->shape[1], D = t->shape[2];
    uint64_t centre = 0;
    for (int64_t row = 0; row < t->shape[0] * N; row++) {
        if (row % CLUSTER_RUN == 0) {
            bench_bell(seed);
            centre = (*seed >> 33) % (uint64_t)clusters + (uint64_t)(row / N * clusters);
        }
        uint64_t stream = (centre + 1) * 0x9e3779b97f4a7c15u;
        for (int64_t d = 0; d < D; d++) {
            float middle = bench_bell(&stream);
            bench_store(t, row * D + d, middle + 0.5f * bench_bell(seed));
        }
    }
}

mcsa_status bench_problem_open(bench_problem *p, const bench_shape *shape, int clusters, mcsa_error *error)
{
    size_t bytes = (size_t)shape->heads * (size_t)shape->tokens * (size_t)shape->dim * mcsa_dtype_bytes(shape->dtype);
    size_t lse = sizeof *p->lse * (size_t)shape->heads * (size_t)shape->tokens;
    mcsa_tensor *tensors[] = { &p->q, &p->k, &p->v, &p->out };
    uint64_t seed = 1;
    memset(p, 0, sizeof *p);
    p->memory = mcsa_memory_from(&(mcsa_allocator){ 0 });
    if (mcsa_block_reserve(&p->memory, &p->block, 4 * bytes + lse))
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for tensors of %zu bytes", 4 * bytes);
    memset(p->block.data, 0xff, p->block.bytes); /* NaN in every dtype: what is not written out does not pass */
    for (int i = 0; i < 4; i++) {
        *tensors[i] = (mcsa_tensor){ (char *)p->block.data + (size_t)i * bytes,
                                     shape->dtype,
                                     { shape->heads, shape->tokens, shape->dim },
                                     { (int64_t)shape->tokens * shape->dim, shape->dim, 1 } };
        if (i == 0 && clusters)
            fill_clustered(&p->q, clusters, &seed);
        else if (i < 3)
            fill(tensors[i], &seed);
    }
    p->lse = (float *)(void *)((char *)p->block.data + 4 * bytes);
    mcsa_dims dims = { shape->heads, shape->tokens, shape->tokens, shape->dim, shape->dtype };
    p->x = (mcsa_qkv){ &p->q, &p->k, &p->v, &p->out, dims, 1 / sqrtf((float)shape->dim) };
    mcsa_backend_options options = { .memory = &p->memory, .threads = shape->threads, .C = shape->group };
    options.isa = shape->isa;
    if (mcsa_backend_cpu.open(&p->state, &options) != MCSA_OK ||
        mcsa_backend_cpu.reserve(p->state, &dims, 0, 0) != MCSA_OK) {
        bench_problem_close(p);
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for scratch of %d threads", shape->threads);
    }
    return MCSA_OK;
}

void bench_problem_close(bench_problem *p)
{
    if (p->state) mcsa_backend_cpu.close(p->state);
    p->state = NULL;
    mcsa_block_release(&p->memory, &p->block);
}

/* What a row of the output is a mean of: the keys, and behind them the means of the clusters. */
typedef struct terms {
    const bench_problem *p;
    const mcsa_selection *s; /* NULL: all keys */
    int h, count;
} terms;

/* Row `term` of keys or values, or the mean of cluster `term` - M: to [D]. */
static void take_row(const terms *t, const mcsa_tensor *from, int term, double *to)
{
    const int M = t->p->x.dims.M, D = t->p->x.dims.D;
    if (term < M) {
        for (int d = 0; d < D; d++) to[d] = bench_element(from, t->h, term, d);
        return;
    }
    float mean[MAX_DIM];
    int count;
    const int32_t *keys = bench_cluster(t->s, t->h, term - M, &count);
    bench_cluster_mean(from, t->h, keys, count, mean);
    for (int d = 0; d < D; d++) to[d] = (double)mean[d];
}

/* logit [count]: what is added to the logit of a term that takes part, or -infinity. */
static void list_terms(const terms *t, int row, double *logit)
{
    const mcsa_selection *s = t->s;
    const int M = t->p->x.dims.M;
    const int64_t group = s ? (int64_t)t->h * s->G + row / s->C : 0;
    for (int j = 0; j < t->count; j++) logit[j] = s ? -INFINITY : 0;
    for (int j = 0; s && !s->P && j < M; j++)
        if (bench_kept(s, group, j)) logit[j] = 0;
    for (int p = 0; s && p < s->P; p++) {
        int count;
        const int32_t *keys = bench_cluster(s, t->h, p, &count);
        const int kept = bench_kept(s, group, p);
        for (int i = 0; kept && i < count; i++) logit[keys[i]] = 0;
        if (!kept && count) logit[M + p] = log(count);
    }
}

/* want: [D].  The sum of weight v for weights that add up to `sum`. */
static void weigh(const terms *t, const double *weight, double sum, double *want)
{
    double value[MAX_DIM];
    for (int d = 0; d < t->p->x.dims.D; d++) want[d] = 0;
    for (int j = 0; j < t->count; j++) {
        if (weight[j] == 0) continue;
        take_row(t, &t->p->v, j, value);
        for (int d = 0; d < t->p->x.dims.D; d++) want[d] += weight[j] / sum * value[d];
    }
}

/* Logits of query i in place of what is added to them.  *move: the largest error of one; *largest: of all values that
 * take part.  Returns how many do. */
static int score_terms(const terms *t, int i, double *logit, double *move, double *largest)
{
    const mcsa_dims *dims = &t->p->x.dims;
    const double scale = (double)t->p->x.scale;
    double key[MAX_DIM], value[MAX_DIM];
    int taken = 0;
    *move = *largest = 0;
    for (int j = 0; j < t->count; j++) {
        double score = 0, absolute = 0;
        if (logit[j] == -INFINITY) continue;
        taken++;
        take_row(t, &t->p->k, j, key);
        take_row(t, &t->p->v, j, value);
        for (int d = 0; d < dims->D; d++) {
            double product = bench_element(&t->p->q, t->h, i, d) * key[d];
            score += product;
            absolute += fabs(product);
            *largest = fmax(*largest, fabs(value[d]));
        }
        const double added = logit[j];
        logit[j] = score * scale + added;
        *move = fmax(*move, (absolute * scale * dims->D + 4 * added) * 0x1p-24);
    }
    return taken;
}

/* The largest error of one output row over its bound.  row: place in the order of the selection, or the query itself.
 * The bound of an element is (2 ds + 4 K u_acc + u_p) max|v| + u_out |out|, with ds the largest move of a score:
 * scale sum|q k| D u_acc, and 4 u_acc of what is added to that of a mean.  It holds however roundings fall out, so that
 * where thousands of random values cancel it is wider than the answer.  Independent roundings of weights and output
 * move a row of 16-bit numbers by about 0.6 u_out of its own size, and 4 u_out are allowed: 128 keys too few of 75,600
 * move it by 2.6 times as much. */
static double check_row(const terms *t, int row, double *weight)
{
    const mcsa_dims *dims = &t->p->x.dims;
    int i = t->s ? t->s->order[(int64_t)t->h * t->s->N + row] : row;
    double max = -INFINITY, sum = 0, ds, largest, worst = 0, want[MAX_DIM], error = 0, norm = 0;
    list_terms(t, row, weight);
    const int taken = score_terms(t, i, weight, &ds, &largest);
    for (int j = 0; j < t->count; j++) max = fmax(max, weight[j]);
    for (int j = 0; j < t->count; j++) sum += weight[j] = exp(weight[j] - max);
    weigh(t, weight, sum, want);
    const double u_acc = 0x1p-24, u_out = bench_unit(dims->dtype);
    const double u_p = dims->dtype == MCSA_F32 ? 0 : u_out; /* a GPU rounds the weights to F16 too */
    double bound = (2 * ds + 4 * taken * u_acc + u_p) * largest;
    for (int d = 0; d < dims->D; d++) {
        double off = bench_element(&t->p->out, t->h, i, d) - want[d],
               used = fabs(off) / (bound + u_out * fabs(want[d]));
        worst = bench_worse(worst, used);
        error += off * off;
        norm += want[d] * want[d];
    }
    return dims->dtype == MCSA_F32 ? worst : bench_worse(worst, sqrt(error / norm) / (4 * u_out));
}

double bench_check_rows(const bench_problem *p, const mcsa_selection *s)
{
    const mcsa_dims *dims = &p->x.dims;
    const int count = dims->M + (s ? s->P : 0);
    double worst = 0, used[SAMPLED_ROWS], *weights = malloc(sizeof *weights * SAMPLED_ROWS * (size_t)count);
    if (!weights) return INFINITY;
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < SAMPLED_ROWS; i++) {
        int64_t row = (int64_t)i * ((int64_t)dims->H * dims->N - 1) / (SAMPLED_ROWS - 1);
        const terms t = { p, s, (int)(row / dims->N), count };
        used[i] = check_row(&t, (int)(row % dims->N), weights + (int64_t)i * count);
    }
    for (int i = 0; i < SAMPLED_ROWS; i++) worst = bench_worse(worst, used[i]);
    free(weights);
    return worst;
}
