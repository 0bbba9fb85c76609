/* gpu.c - see gpu.h. */
#include "gpu.h"

#include "base/tensor.h"
#include "core/cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t head_bytes(const mcsa_tensor *t)
{
    return (size_t)t->stride[0] * mcsa_dtype_bytes(t->dtype);
}

static char *head(const mcsa_tensor *t, int h)
{
    return (char *)t->data + (size_t)h * head_bytes(t);
}

static int sampled(const bench_gpu *gpu, int h)
{
    return h % gpu->sample.x.dims.H;
}

static void put_heads(bench_gpu *gpu, const mcsa_tensor *to, const mcsa_tensor *from)
{
    for (int h = 0; h < gpu->x.dims.H; h++)
        gpu->device->put(gpu->copies, head(to, h), head(from, sampled(gpu, h)), head_bytes(to));
}

/* Brings `heads` arrays of `bytes` that lie one behind the other: the first S to `to`, the others to be compared. */
static int fetch_heads(bench_gpu *gpu, void *to, const void *from, size_t bytes)
{
    int equal = 1, heads = gpu->sample.x.dims.H;
    char *copy = gpu->status == MCSA_OK ? malloc(bytes) : NULL;
    if (!copy && gpu->status == MCSA_OK)
        gpu->status = mcsa_fail(&gpu->error, MCSA_ENOMEM, "no memory for a copy of %zu bytes", bytes);
    for (int h = 0; h < gpu->x.dims.H && gpu->status == MCSA_OK; h++) {
        char *model = (char *)to + (size_t)sampled(gpu, h) * bytes, *place = h < heads ? model : copy;
        gpu->status = gpu->device->get(gpu->copies, place, (const char *)from + (size_t)h * bytes, bytes, &gpu->error);
        equal &= memcmp(place, model, bytes) == 0;
    }
    free(copy);
    return gpu->status == MCSA_OK && equal;
}

static mcsa_status start(bench_gpu *gpu, const bench_shape *shape, mcsa_error *error)
{
    mcsa_backend_options options = {
        .memory = &gpu->memory, .C = shape->group, .residual = MCSA_RESIDUAL_BF16, .error = error
    };
    dit_device_options copies = { .threads = shape->threads };
    mcsa_status status = gpu->backend->open(&gpu->state, &options);
    if (status == MCSA_ENOMEM) return mcsa_fail(error, status, "no memory for the GPU's backend");
    if (status != MCSA_OK) return status;
    return gpu->device->open(&gpu->copies, &copies, error);
}

static mcsa_status place(bench_gpu *gpu, const bench_shape *shape, mcsa_error *error)
{
    const int64_t elements = (int64_t)shape->tokens * shape->dim;
    const size_t rows = (size_t)shape->heads * (size_t)shape->tokens;
    const size_t bytes = (rows * (size_t)shape->dim * mcsa_dtype_bytes(shape->dtype) + 255) / 256 * 256;
    mcsa_tensor *tensors[] = { &gpu->q, &gpu->k, &gpu->v, &gpu->out };
    if (mcsa_block_reserve(&gpu->memory, &gpu->block, 4 * bytes + rows * sizeof *gpu->lse))
        return mcsa_fail(error, MCSA_ENOMEM, "the GPU has no room for tensors of %zu bytes", 4 * bytes);
    for (int i = 0; i < 4; i++)
        *tensors[i] = (mcsa_tensor){ (char *)gpu->block.data + (size_t)i * bytes,
                                     shape->dtype,
                                     { shape->heads, shape->tokens, shape->dim },
                                     { elements, shape->dim, 1 } };
    gpu->lse = (float *)(void *)((char *)gpu->block.data + 4 * bytes);
    gpu->x = (mcsa_qkv){ &gpu->q,
                         &gpu->k,
                         &gpu->v,
                         &gpu->out,
                         { shape->heads, shape->tokens, shape->tokens, shape->dim, shape->dtype },
                         1 / sqrtf((float)shape->dim) };
    return gpu->backend->supports(gpu->state, &gpu->x, error);
}

static mcsa_status fill(bench_gpu *gpu, const bench_shape *shape, int clusters, mcsa_error *error)
{
    bench_shape first = *shape;
    if (first.heads > BENCH_SAMPLED_HEADS) first.heads = BENCH_SAMPLED_HEADS;
    TRY(bench_problem_open(&gpu->sample, &first, clusters, error));
    put_heads(gpu, &gpu->q, &gpu->sample.q);
    put_heads(gpu, &gpu->k, &gpu->sample.k);
    put_heads(gpu, &gpu->v, &gpu->sample.v);
    return MCSA_OK;
}

mcsa_status bench_gpu_open(bench_gpu *gpu, const bench_shape *shape, int clusters, float density, mcsa_error *error)
{
    const mcsa_backend *backend;
    const dit_device *device;
    TRY(mcsa_backend_find(&backend, MCSA_DEVICE_CUDA, error));
    TRY(dit_device_find(&device, MCSA_DEVICE_CUDA, error));
    memset(gpu, 0, sizeof *gpu);
    gpu->backend = backend;
    gpu->device = device;
    return bench_gpu_open_on(gpu, shape, clusters, density, error);
}

/* For single keys, and for clusters and means. */
static mcsa_status reserve(bench_gpu *gpu, float density, mcsa_error *error)
{
    const mcsa_dims *dims = &gpu->x.dims;
    const int K = density > 0 ? bench_selection_rows(dims->N, density) : 0;
    if (gpu->backend->reserve(gpu->state, dims, K, 0) == MCSA_OK &&
        (!K || gpu->backend->reserve(gpu->state, dims, K, mcsa_cache_clusters(K)) == MCSA_OK))
        return MCSA_OK;
    return mcsa_fail(error, MCSA_ENOMEM, "the GPU has no room for the scratch of %d heads", dims->H);
}

mcsa_status bench_gpu_open_on(bench_gpu *gpu, const bench_shape *shape, int clusters, float density, mcsa_error *error)
{
    mcsa_status status = start(gpu, shape, error);
    if (status == MCSA_OK) status = place(gpu, shape, error);
    if (status == MCSA_OK) status = reserve(gpu, density, error);
    if (status == MCSA_OK) status = fill(gpu, shape, clusters, error);
    if (status != MCSA_OK) bench_gpu_close(gpu);
    return status;
}

void bench_gpu_close(bench_gpu *gpu)
{
    bench_problem_close(&gpu->sample);
    if (gpu->state) {
        mcsa_block_release(&gpu->memory, &gpu->block);
        gpu->backend->close(gpu->state);
    }
    if (gpu->copies) gpu->device->close(gpu->copies);
    gpu->state = gpu->copies = NULL;
}

mcsa_status bench_gpu_outcome(bench_gpu *gpu, mcsa_error *error)
{
    if (gpu->status == MCSA_OK) gpu->status = gpu->backend->outcome(gpu->state, &gpu->error);
    return gpu->status == MCSA_OK ? MCSA_OK : mcsa_fail(error, gpu->status, "%s", gpu->error.text);
}

void bench_gpu_start(bench_gpu *gpu)
{
    gpu->backend->lap(gpu->state, NULL);
}

void bench_gpu_lap(bench_gpu *gpu, double *stage)
{
    *stage = 0; /* laps are added up when waited for */
    gpu->backend->lap(gpu->state, stage);
}

void bench_gpu_dense(bench_gpu *gpu, double *stage)
{
    gpu->backend->attend_dense(gpu->state, &gpu->x, gpu->lse);
    bench_gpu_lap(gpu, stage);
}

void bench_gpu_group(bench_gpu *gpu, bench_gpu_selection *s, double *stage)
{
    gpu->backend->group(gpu->state, &gpu->x, &s->there);
    bench_gpu_lap(gpu, stage);
}

void bench_gpu_cluster(bench_gpu *gpu, bench_gpu_selection *s, double *stage)
{
    gpu->backend->cluster(gpu->state, &gpu->x, &s->there);
    bench_gpu_lap(gpu, stage);
}

void bench_gpu_select(bench_gpu *gpu, bench_gpu_selection *s, double *stage)
{
    gpu->backend->select(gpu->state, &gpu->x, gpu->lse, &s->there);
    bench_gpu_lap(gpu, stage);
}

void bench_gpu_tokens(bench_gpu *gpu, const bench_gpu_selection *s, const mcsa_residual_rows *rows, double *stage)
{
    gpu->backend->attend_tokens(gpu->state, &gpu->x, &s->there, rows);
    bench_gpu_lap(gpu, stage);
}

void bench_gpu_wait(bench_gpu *gpu)
{
    gpu->backend->settle(gpu->state);
}

void bench_gpu_poison(bench_gpu *gpu)
{
    memset(gpu->sample.out.data, 0xff, (size_t)gpu->sample.x.dims.H * head_bytes(&gpu->sample.out));
    put_heads(gpu, &gpu->out, &gpu->sample.out);
}

int bench_gpu_fetch(bench_gpu *gpu)
{
    return fetch_heads(gpu, gpu->sample.out.data, gpu->out.data, head_bytes(&gpu->out));
}

int bench_gpu_is_right(bench_gpu *gpu, const bench_gpu_selection *s)
{
    return bench_gpu_fetch(gpu) && bench_check_rows(&gpu->sample, s ? &s->host : NULL) <= 1;
}

void bench_gpu_selection_close(bench_gpu_selection *s, bench_gpu *gpu)
{
    mcsa_block_release(&gpu->sample.memory, &s->host.memory);
    mcsa_block_release(&gpu->memory, &s->there.memory);
}

/* The arrays of a selection and how much of each belongs to a head. */
enum { ARRAYS = 4 };

typedef struct array {
    void *data;
    size_t bytes; /* of a head; 0: there is no such array */
} array;

static void list_arrays(const mcsa_selection *s, array *a)
{
    a[0] = (array){ s->order, sizeof *s->order * (size_t)s->N };
    a[1] = (array){ s->members, s->P ? sizeof *s->members * (size_t)s->N : 0 };
    a[2] = (array){ s->first, s->P ? sizeof *s->first * ((size_t)s->P + 1) : 0 };
    a[3] = (array){ s->kept, sizeof *s->kept * (size_t)s->G * (size_t)s->words };
}

void bench_gpu_selection_put(bench_gpu_selection *s, bench_gpu *gpu)
{
    array host[ARRAYS], there[ARRAYS];
    list_arrays(&s->host, host);
    list_arrays(&s->there, there);
    for (int i = 0; i < ARRAYS; i++)
        for (int h = 0; h < s->there.H && host[i].bytes; h++)
            gpu->device->put(gpu->copies, (char *)there[i].data + (size_t)h * there[i].bytes,
                             (char *)host[i].data + (size_t)sampled(gpu, h) * host[i].bytes, host[i].bytes);
}

mcsa_status bench_gpu_selection_open(bench_gpu_selection *s, bench_gpu *gpu, bench_budget budget, mcsa_error *error)
{
    const mcsa_dims *dims = &gpu->x.dims;
    bench_shape shape = { .heads = gpu->sample.x.dims.H, .tokens = dims->N, .group = 128 };
    TRY(bench_selection_open(&s->host, &gpu->sample.memory, &shape, budget, error));
    memset(s->host.memory.data, 0xff, s->host.memory.bytes); /* neither permutation nor partition nor K keys */
    shape.heads = dims->H;
    TRY(bench_selection_open(&s->there, &gpu->memory, &shape, budget, error));
    bench_gpu_selection_put(s, gpu);
    return MCSA_OK;
}

int bench_gpu_selection_fetch(bench_gpu_selection *s, bench_gpu *gpu)
{
    array host[ARRAYS], there[ARRAYS];
    int equal = 1;
    list_arrays(&s->host, host);
    list_arrays(&s->there, there);
    for (int i = 0; i < ARRAYS; i++)
        if (host[i].bytes) equal &= fetch_heads(gpu, host[i].data, there[i].data, host[i].bytes);
    return equal;
}

/* The share of its bound that an element uses; bare: what the sparse output alone was rounded to. */
static double share(double got, double dense, double bare, double unit)
{
    const double stored = 0x1p-8 * (fabs(dense - bare) + unit * fabs(bare)); /* the residual, bf16 */
    return fabs(got - dense) / (stored + unit * (fabs(dense) + stored) + 0x1p-24);
}

int bench_gpu_gives_dense_back(bench_gpu *gpu, const bench_gpu_selection *s, const mcsa_residual_rows *residual)
{
    mcsa_tensor out = gpu->sample.out, dense = out, bare = out;
    const mcsa_residual_rows none = { MCSA_RESIDUAL_OFF, NULL, 0 };
    mcsa_residual_rows record = *residual;
    const double unit = bench_unit(out.dtype);
    const size_t bytes = (size_t)out.shape[0] * head_bytes(&out);
    double ignored, worst = 0;
    char *copies = malloc(2 * bytes);
    if (!copies) return 0;
    dense.data = copies;
    bare.data = copies + bytes;
    bench_gpu_tokens(gpu, s, &none, &ignored);
    int good = bench_gpu_fetch(gpu);
    memcpy(bare.data, out.data, bytes);
    bench_gpu_dense(gpu, &ignored);
    good &= bench_gpu_fetch(gpu);
    memcpy(dense.data, out.data, bytes);
    record.record = 1;
    bench_gpu_tokens(gpu, s, &record, &ignored);
    bench_gpu_wait(gpu);
    bench_gpu_poison(gpu);
    bench_gpu_tokens(gpu, s, residual, &ignored);
    bench_gpu_wait(gpu);
    good &= bench_gpu_fetch(gpu);
#pragma omp parallel for reduction(max : worst)
    for (int64_t row = 0; row < out.shape[0] * out.shape[1]; row++)
        for (int64_t d = 0, h = row / out.shape[1], n = row % out.shape[1]; d < out.shape[2]; d++) {
            double used = share(bench_element(&out, h, n, d), bench_element(&dense, h, n, d),
                                bench_element(&bare, h, n, d), unit);
            worst = used <= worst ? worst : used == used ? used : HUGE_VAL;
        }
    free(copies);
    return good && worst <= 1;
}

double bench_gpu_mass_slack(const bench_gpu *gpu)
{
    return 8 * gpu->x.dims.D * 0x1p-24;
}
