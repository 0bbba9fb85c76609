/* group.c - Fast PDDP: split every node of a level at the median of its projections on its principal direction, until
 * each leaf is one group.
 *
 * A node is a run of groups [a, b) and owns the rows [a C, min(b C, N)) of `order`; the left child takes the first
 * ceil((b - a) / 2) groups' worth of rows, so every group but the last has exactly C queries.  Only index arrays move
 * between levels.  Within a node indices stay ascending.  Work runs over (head, node), each node by one thread.
 *
 * The principal direction is found by power iteration on the centred rows, PASSES passes over the data each of which is
 * one product with the covariance; the last one's projections decide.  Its sign is arbitrary but deterministic. */
#include "cpu.h"
#include "kth.h"

#include <math.h>
#include <string.h>

static const float CONVERGED = 0.9999f; /* cosine between two iterates: the split moves few queries after that */

enum {
    PRODUCTS = 7, /* with the covariance, and one pass to project: 2, 4, 8, 30 passes gave 24.1, 24.2, 24.4, 24.6 dB in
                     a prototype at 4,096 tokens */
    SAMPLE = 2048 /* rows: 512 KiB of bf16 at D = 128, what a pass can read from L2 */
};

static double squared_norm(const float *v, int D)
{
    double sum = 0;
    for (int d = 0; d < D; d++) sum += (double)v[d] * (double)v[d];
    return sum;
}

/* v /= |v|; returns 0 and leaves v when the norm is 0 or not finite. */
static int normalise(float *v, int D)
{
    double norm = sqrt(squared_norm(v, D));
    if (!(norm > 0 && norm < INFINITY)) return 0;
    for (int d = 0; d < D; d++) v[d] = (float)((double)v[d] / norm);
    return 1;
}

/* First row minus mean; where that is zero, some fixed direction. */
static void first_direction(const mcsa_kernels *kernels, const mcsa_rows *rows, const float *mean, float *v)
{
    int64_t bytes = rows->dtype == MCSA_F32 ? 4 : 2;
    const char *row = (const char *)rows->data + bytes * rows->index[0] * rows->row_stride;
    kernels->load_row(row, rows->dtype, rows->column_stride, rows->D, v);
    for (int d = 0; d < rows->D; d++) v[d] -= mean[d];
    if (normalise(v, rows->D)) return;
    for (int d = 0; d < rows->D; d++) v[d] = d % 3 ? 1.0f : -1.0f;
    normalise(v, rows->D);
}

/* v [D]: principal direction of the rows. */
static void principal(const mcsa_kernels *kernels, const mcsa_rows *rows, float *v)
{
    float mean[MCSA_MAX_DIM] = { 0 }, y[MCSA_MAX_DIM];
    int D = rows->D;
    kernels->pddp_pass(rows, v, -1, mean, NULL); /* v = 0, shift -1: sums the rows */
    for (int d = 0; d < D; d++) mean[d] /= (float)rows->count;
    first_direction(kernels, rows, mean, v);
    for (int product = 0; product < PRODUCTS; product++) {
        float shift = 0, along = 0;
        for (int d = 0; d < D; d++) shift += mean[d] * v[d];
        memset(y, 0, sizeof y);
        double sum = kernels->pddp_pass(rows, v, shift, y, NULL);
        for (int d = 0; d < D; d++) y[d] -= (float)sum * mean[d];
        if (!normalise(y, D)) return; /* all rows are equal */
        for (int d = 0; d < D; d++) along += v[d] * y[d];
        memcpy(v, y, sizeof y);
        if (along > CONVERGED) return;
    }
}

/* projection [count] of the rows on the principal direction of a sample of them.  sample: [count] scratch */
static void project(const mcsa_kernels *kernels, const mcsa_rows *rows, float *projection, int32_t *sample)
{
    float v[MCSA_MAX_DIM] = { 0 };
    mcsa_rows some = *rows;
    int step = (rows->count + SAMPLE - 1) / SAMPLE;
    if (step > 1) {
        some.index = sample;
        some.count = (rows->count + step - 1) / step;
        for (int i = 0; i < some.count; i++) sample[i] = rows->index[(int64_t)i * step];
    }
    principal(kernels, &some, v);
    kernels->pddp_pass(rows, v, 0, NULL, projection);
}

/* Moves the `right` rows with the largest projections behind the others, both in their old order. */
static void split(int32_t *order, const float *projection, int count, int right, uint32_t *rank, int32_t *next)
{
    for (int i = 0; i < count; i++) rank[i] = mcsa_ordered(projection[i]);
    mcsa_kth kth = mcsa_kth_largest(rank, count, right);
    int32_t *low = next, *high = next + (count - right);
    for (int i = 0; i < count; i++) {
        int tie = (rank[i] == kth.threshold) & (kth.ties > 0), up = (rank[i] > kth.threshold) | tie;
        kth.ties -= tie;
        *(up ? high : low) = order[i]; /* no branch: half of them would be mispredicted */
        high += up;
        low += !up;
    }
    memcpy(order, next, sizeof *order * (size_t)count);
}

/* One level: bounds [nodes + 1] -> next, returns the number of nodes of the next level. */
static int halve(const int32_t *bounds, int nodes, int32_t *next)
{
    int made = 0;
    for (int i = 0; i < nodes; i++) {
        next[made++] = bounds[i];
        int groups = bounds[i + 1] - bounds[i];
        if (groups > 1) next[made++] = bounds[i] + (groups + 1) / 2;
    }
    next[made] = bounds[nodes];
    return made;
}

void mcsa_cpu_group(void *state, const mcsa_qkv *x, mcsa_selection *s)
{
    mcsa_cpu *cpu = state;
    const mcsa_kernels *kernels = mcsa_cpu_kernels(cpu, x->dims.dtype);
    for (int64_t i = 0; i < (int64_t)s->H * s->N; i++) s->order[i] = (int32_t)(i % s->N);
    int32_t *bounds = cpu->group.bounds[0], *next = cpu->group.bounds[1];
    bounds[0] = 0;
    bounds[1] = s->G;
    for (int nodes = 1; nodes < s->G;) {
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads)
        for (int64_t task = 0; task < (int64_t)s->H * nodes; task++) {
            int h = (int)(task / nodes), node = (int)(task % nodes), groups = bounds[node + 1] - bounds[node];
            if (groups == 1) continue;
            int first = bounds[node] * s->C, left = (groups + 1) / 2 * s->C;
            int end = bounds[node + 1] * s->C < s->N ? bounds[node + 1] * s->C : s->N;
            int64_t at = (int64_t)h * s->N + first;
            mcsa_rows rows = mcsa_head_rows(x->q, h, s->order + at, 0, end - first);
            project(kernels, &rows, cpu->group.projection + at, cpu->group.order + at);
            split(s->order + at, cpu->group.projection + at, rows.count, rows.count - left, cpu->group.rank + at,
                  cpu->group.order + at);
        }
        nodes = halve(bounds, nodes, next);
        int32_t *swap = bounds;
        bounds = next;
        next = swap;
    }
}
