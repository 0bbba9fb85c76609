/* problem.c - tensors to benchmark on, and the gate: attention in double for sampled rows.
 *
 * Clustered queries stand for those of a video: runs of 8 neighbours belong to one of the centres, drawn at random, and
 * differ from it by half of its spread.  The centres' share of the variance, 1 / 1.25, is what perfect groups remove.
 */
#include "problem.h"

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

static int kept_by(const mcsa_selection *s, int h, int row, int j)
{
    int64_t group = (int64_t)h * s->G + row / s->C;
    return (int)(s->kept[group * s->words + j / 64] >> (j % 64) & 1);
}

/* want: [D].  The sum of weight[j] v[j] for weights that add up to `sum`. */
static void weigh(const bench_problem *p, int h, const double *weight, double sum, double *want)
{
    for (int d = 0; d < p->x.dims.D; d++) want[d] = 0;
    for (int j = 0; j < p->x.dims.M; j++) {
        if (weight[j] == 0) continue;
        for (int d = 0; d < p->x.dims.D; d++) want[d] += weight[j] / sum * bench_element(&p->v, h, j, d);
    }
}

/* The largest error of one output row over its bound.  row: place in the order of the selection, or the query itself.
 * The bound of an element is (2 ds + 4 K u_acc + u_p) max|v| + u_out |out|, with ds the largest move of a score:
 * scale sum|q k| D u_acc.  It holds however roundings fall out, so that where thousands of random values cancel it is
 * wider than the answer.  Independent roundings of weights and output move a row of 16-bit numbers by about
 * 0.6 u_out of its own size, and 4 u_out are allowed: 128 keys too few of 75,600 move it by 2.6 times as much. */
static double check_row(const bench_problem *p, const mcsa_selection *s, int h, int row, double *weight)
{
    const mcsa_dims *dims = &p->x.dims;
    int i = s ? s->order[(int64_t)h * s->N + row] : row, kept = 0;
    double max = -INFINITY, sum = 0, size = 0, largest = 0, worst = 0, want[MAX_DIM], error = 0, norm = 0;
    for (int j = 0; j < dims->M; j++) {
        double score = 0, absolute = 0;
        weight[j] = -INFINITY;
        if (s && !kept_by(s, h, row, j)) continue;
        kept++;
        for (int d = 0; d < dims->D; d++) {
            double product = bench_element(&p->q, h, i, d) * bench_element(&p->k, h, j, d),
                   v = fabs(bench_element(&p->v, h, j, d));
            score += product;
            absolute += fabs(product);
            largest = v > largest ? v : largest;
        }
        weight[j] = score * (double)p->x.scale;
        max = weight[j] > max ? weight[j] : max;
        size = absolute > size ? absolute : size;
    }
    for (int j = 0; j < dims->M; j++) sum += weight[j] = exp(weight[j] - max);
    weigh(p, h, weight, sum, want);
    double u_acc = 0x1p-24,
           u_out = dims->dtype == MCSA_F32    ? 0x1p-24
                   : dims->dtype == MCSA_BF16 ? 0x1p-8
                                              : 0x1p-11,
           u_p = dims->dtype == MCSA_F32 ? 0 : u_out; /* a GPU rounds the weights to F16 too */
    double ds = (double)p->x.scale * size * dims->D * u_acc, bound = (2 * ds + 4 * kept * u_acc + u_p) * largest;
    for (int d = 0; d < dims->D; d++) {
        double off = bench_element(&p->out, h, i, d) - want[d], used = fabs(off) / (bound + u_out * fabs(want[d]));
        worst = bench_worse(worst, used);
        error += off * off;
        norm += want[d] * want[d];
    }
    return dims->dtype == MCSA_F32 ? worst : bench_worse(worst, sqrt(error / norm) / (4 * u_out));
}

double bench_check_rows(const bench_problem *p, const mcsa_selection *s)
{
    const mcsa_dims *dims = &p->x.dims;
    double worst = 0, used[SAMPLED_ROWS], *weights = malloc(sizeof *weights * SAMPLED_ROWS * (size_t)dims->M);
    if (!weights) return INFINITY;
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < SAMPLED_ROWS; i++) {
        int64_t row = (int64_t)i * ((int64_t)dims->H * dims->N - 1) / (SAMPLED_ROWS - 1);
        used[i] = check_row(p, s, (int)(row / dims->N), (int)(row % dims->N), weights + (int64_t)i * dims->M);
    }
    for (int i = 0; i < SAMPLED_ROWS; i++) worst = bench_worse(worst, used[i]);
    free(weights);
    return worst;
}
