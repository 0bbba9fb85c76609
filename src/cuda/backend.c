/* backend.c - the CUDA backend: the table that binds the verbs to the kernels, device memory, and what went wrong.
 *
 * Everything is put on the run's stream; nothing here waits for the GPU but `settle`.  Each verb makes the run's GPU
 * current and puts the caller's back. */
#include "kernels.h"

#include "clock.h"
#include "gpu.h"
#include "limits.h"

#include <stdlib.h>

typedef struct mcsa_cuda {
    mcsa_memory *memory;
    mcsa_block scratch;
    cudaStream_t stream;
    int device;
    mcsa_status failed; /* of the verbs since the last outcome */
    mcsa_error failure;
    mcsa_cuda_clock clock;
} mcsa_cuda;

static void fail(mcsa_cuda *cuda, const char *what, cudaError_t error)
{
    if (error == cudaSuccess || cuda->failed != MCSA_OK) return;
    cuda->failed = mcsa_fail(&cuda->failure, MCSA_EDEVICE, "%s failed on GPU %d: %s (%s)", what, cuda->device,
                             cudaGetErrorString(error), cudaGetErrorName(error));
    cudaGetLastError();
}

/* The GPU that was current before, or the run's own when that cannot be told. */
static int enter(mcsa_cuda *cuda)
{
    int before = cuda->device;
    cudaGetLastError(); /* what others left is not this call's */
    fail(cuda, "reading the current GPU", cudaGetDevice(&before));
    if (before != cuda->device) fail(cuda, "choosing the GPU", cudaSetDevice(cuda->device));
    return before;
}

static void leave(mcsa_cuda *cuda, int before)
{
    if (before != cuda->device) fail(cuda, "returning to the caller's GPU", cudaSetDevice(before));
}

static void *device_alloc(void *user, size_t bytes)
{
    void *block = NULL;
    int before = enter(user);
    if (cudaMalloc(&block, bytes) != cudaSuccess) {
        cudaGetLastError();
        block = NULL;
    }
    leave(user, before);
    return block;
}

static void device_free(void *user, void *block, size_t bytes)
{
    (void)bytes;
    int before = enter(user);
    fail(user, "freeing memory", cudaFree(block));
    leave(user, before);
}

static mcsa_status open_cuda(void **state, const mcsa_backend_options *o)
{
    mcsa_gpu gpu = { 0 };
    TRY(mcsa_cuda_limit_options(o, o->error));
    TRY(mcsa_cuda_gpu_read(&gpu, o->device_index, o->error));
    mcsa_cuda *cuda = calloc(1, sizeof *cuda);
    if (!cuda) return MCSA_ENOMEM;
    cuda->memory = o->memory;
    cuda->device = o->device_index;
    cuda->stream = o->stream;
    if (!o->memory->allocator.alloc) o->memory->allocator = (mcsa_allocator){ device_alloc, device_free, cuda };
    *state = cuda;
    return MCSA_OK;
}

static void close_cuda(void *state)
{
    mcsa_cuda *cuda = state;
    int before = enter(cuda);
    mcsa_block_release(cuda->memory, &cuda->scratch);
    mcsa_cuda_clock_free(&cuda->clock);
    leave(cuda, before);
    free(cuda);
}

static mcsa_status check_place(const mcsa_cuda *cuda, const void *data, const char *name, mcsa_error *error)
{
    struct cudaPointerAttributes at;
    cudaError_t refused = cudaPointerGetAttributes(&at, data);
    if (refused != cudaSuccess) {
        cudaGetLastError();
        return mcsa_fail(error, MCSA_EDEVICE, "the place of %s cannot be told: %s", name, cudaGetErrorString(refused));
    }
    if (at.type == cudaMemoryTypeManaged || (at.type == cudaMemoryTypeDevice && at.device == cuda->device))
        return MCSA_OK;
    if (at.type == cudaMemoryTypeDevice)
        return mcsa_fail(error, MCSA_EINVAL, "%s is in the memory of GPU %d; this run computes on GPU %d", name,
                         at.device, cuda->device);
    return mcsa_fail(error, MCSA_EINVAL, "%s is in host memory; this run computes on GPU %d", name, cuda->device);
}

static mcsa_status supports(const void *state, const mcsa_qkv *x, mcsa_error *error)
{
    TRY(mcsa_cuda_limit_call(x, error));
    TRY(check_place(state, x->q->data, "q", error));
    TRY(check_place(state, x->k->data, "k", error));
    TRY(check_place(state, x->v->data, "v", error));
    return check_place(state, x->out->data, "out", error);
}

/* One block serves all verbs, since they follow one another on the stream. */
static mcsa_status reserve(void *state, const mcsa_dims *dims, int K, int P)
{
    mcsa_cuda *cuda = state;
    if (K == 0) return MCSA_OK;
    size_t sizes[] = { mcsa_cuda_group_bytes(dims), P ? mcsa_cuda_cluster_bytes(dims, P) : 0,
                       mcsa_cuda_select_bytes(dims, P), mcsa_cuda_attend_tokens_bytes(dims, K, P) },
           most = 0;
    for (int i = 0; i < 4; i++) most = sizes[i] > most ? sizes[i] : most;
    return mcsa_block_reserve(cuda->memory, &cuda->scratch, most) ? MCSA_ENOMEM : MCSA_OK;
}

static int64_t scratch_bytes(const void *state)
{
    return (int64_t)((const mcsa_cuda *)state)->scratch.bytes;
}

static int64_t residual_bytes(mcsa_residual form, const mcsa_dims *dims)
{
    return form == MCSA_RESIDUAL_OFF ? 0 : (int64_t)sizeof(uint16_t) * dims->H * dims->N * dims->D;
}

/* A call whose axes of one element have strides that fit too, since the kernels hand all strides to the hardware. */
typedef struct tidy_call {
    mcsa_tensor q, k, v, out;
    mcsa_qkv x;
} tidy_call;

static mcsa_tensor tidy_tensor(const mcsa_tensor *t)
{
    mcsa_tensor tidy = *t;
    if (t->shape[1] == 1) tidy.stride[1] = t->shape[2];
    if (t->shape[0] == 1) tidy.stride[0] = t->shape[1] * tidy.stride[1];
    return tidy;
}

static const mcsa_qkv *tidy(tidy_call *c, const mcsa_qkv *x)
{
    c->q = tidy_tensor(x->q);
    c->k = tidy_tensor(x->k);
    c->v = tidy_tensor(x->v);
    c->out = tidy_tensor(x->out);
    c->x = (mcsa_qkv){ &c->q, &c->k, &c->v, &c->out, x->dims, x->scale };
    return &c->x;
}

static void attend_dense(void *state, const mcsa_qkv *x, float *lse)
{
    mcsa_cuda *cuda = state;
    tidy_call call;
    int before = enter(cuda);
    if (cuda->failed == MCSA_OK && lse) cuda->failed = check_place(cuda, lse, "lse", &cuda->failure);
    if (cuda->failed == MCSA_OK)
        fail(cuda, "dense attention", mcsa_cuda_attend_dense(tidy(&call, x), lse, cuda->stream));
    leave(cuda, before);
}

static void group(void *state, const mcsa_qkv *x, mcsa_selection *selection)
{
    mcsa_cuda *cuda = state;
    tidy_call call;
    int before = enter(cuda);
    if (cuda->failed == MCSA_OK)
        fail(cuda, "grouping", mcsa_cuda_group(tidy(&call, x), selection->order, cuda->scratch.data, cuda->stream));
    leave(cuda, before);
}

static void cluster(void *state, const mcsa_qkv *x, mcsa_selection *selection)
{
    mcsa_cuda *cuda = state;
    tidy_call call;
    int before = enter(cuda);
    if (cuda->failed == MCSA_OK)
        fail(cuda, "clustering", mcsa_cuda_cluster(tidy(&call, x), selection, cuda->scratch.data, cuda->stream));
    leave(cuda, before);
}

static void select_keys(void *state, const mcsa_qkv *x, const float *lse, mcsa_selection *selection)
{
    mcsa_cuda *cuda = state;
    tidy_call call;
    int before = enter(cuda);
    if (cuda->failed == MCSA_OK)
        fail(cuda, "selection", mcsa_cuda_select(tidy(&call, x), lse, selection, cuda->scratch.data, cuda->stream));
    leave(cuda, before);
}

static int64_t attend_tokens(void *state, const mcsa_qkv *x, const mcsa_selection *selection,
                             const mcsa_residual_rows *residual)
{
    mcsa_cuda *cuda = state;
    tidy_call call;
    int before = enter(cuda);
    if (cuda->failed == MCSA_OK)
        fail(cuda, "token-sparse attention",
             mcsa_cuda_attend_tokens(tidy(&call, x), selection, residual, cuda->scratch.data, cuda->stream));
    leave(cuda, before);
    int64_t padded = (selection->K + MCSA_CUDA_KEY_BLOCK - 1) / MCSA_CUDA_KEY_BLOCK * MCSA_CUDA_KEY_BLOCK;
    return (int64_t)selection->H * selection->G * MCSA_CUDA_C * padded;
}

static mcsa_status outcome(void *state, mcsa_error *error)
{
    mcsa_cuda *cuda = state;
    mcsa_status failed = cuda->failed;
    cuda->failed = MCSA_OK;
    return failed == MCSA_OK ? MCSA_OK : mcsa_fail(error, failed, "%s", cuda->failure.text);
}

static void lap(void *state, double *stage)
{
    mcsa_cuda *cuda = state;
    int before = enter(cuda);
    mcsa_cuda_clock_lap(&cuda->clock, cuda->stream, stage);
    leave(cuda, before);
}

static void settle(void *state)
{
    mcsa_cuda *cuda = state;
    int before = enter(cuda);
    fail(cuda, "an earlier call", mcsa_cuda_clock_settle(&cuda->clock, cuda->stream));
    leave(cuda, before);
}

__attribute__((visibility("default"))) extern const mcsa_backend mcsa_backend_cuda;

const mcsa_backend mcsa_backend_cuda = {
    .name = "cuda",
    .version = MCSA_VERSION,
    .gpu_read = mcsa_cuda_gpu_read,
    .open = open_cuda,
    .close = close_cuda,
    .supports = supports,
    .reserve = reserve,
    .scratch_bytes = scratch_bytes,
    .residual_bytes = residual_bytes,
    .attend_dense = attend_dense,
    .group = group,
    .cluster = cluster,
    .select = select_keys,
    .attend_tokens = attend_tokens,
    .outcome = outcome,
    .lap = lap,
    .settle = settle,
};
