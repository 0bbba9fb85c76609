/* device_cuda.c - an NVIDIA GPU behind dit/device.h: cuBLASLt for linear layers, kernels.h for the rest.
 *
 * Every call makes the model's GPU the calling thread's current one.  The row operations of device.h have no status:
 * the first launch that fails is kept, and `get`, which ends a forward pass, reports it. */
#include "kernels.h"
#include "linear_lt.h"

#include <stdlib.h>

/* Attention's kernels are for compute capability 9.0, and so are those of this library. */
enum { CAPABILITY_MAJOR = 9, CAPABILITY_MINOR = 0 };

typedef struct gpu {
    int index;
    cudaStream_t stream;
    lt_engine *linear;
    cudaError_t failure; /* the first one not yet reported */
} gpu;

static gpu *enter(void *state)
{
    gpu *g = state;
    cudaSetDevice(g->index);
    return g;
}

static void note(gpu *g, cudaError_t result)
{
    if (g->failure == cudaSuccess) g->failure = result;
}

static mcsa_status find_gpu(int index, mcsa_error *error)
{
    int count = 0, major = 0, minor = 0;
    cudaError_t result = cudaGetDeviceCount(&count);
    if (result != cudaSuccess)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "no GPU can be used: %s", cudaGetErrorString(result));
    if (index < 0 || index >= count)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "there is no GPU %d: %d can be used, counted from 0", index, count);
    result = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
    if (result == cudaSuccess) result = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
    if (result == cudaSuccess) result = cudaSetDevice(index);
    if (result != cudaSuccess)
        return mcsa_fail(error, MCSA_EDEVICE, "GPU %d does not answer: %s", index, cudaGetErrorString(result));
    if (major != CAPABILITY_MAJOR || minor != CAPABILITY_MINOR)
        return mcsa_fail(error, MCSA_EUNSUPPORTED,
                         "GPU %d has compute capability %d.%d; these kernels are for %d.%d (H100, H200)", index, major,
                         minor, CAPABILITY_MAJOR, CAPABILITY_MINOR);
    return MCSA_OK;
}

static mcsa_status gpu_open(void **state, const dit_device_options *options, mcsa_error *error)
{
    TRY(find_gpu(options->index, error));
    gpu *g = calloc(1, sizeof *g);
    if (!g) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a device");
    g->index = options->index;
    g->stream = options->stream;
    mcsa_status status = lt_engine_create(&g->linear, g->stream, error);
    if (status != MCSA_OK) {
        free(g);
        return status;
    }
    *state = g;
    return MCSA_OK;
}

static void gpu_close(void *state)
{
    gpu *g = enter(state);
    lt_engine_free(g->linear);
    free(g);
}

static mcsa_status gpu_arithmetic(void *state, const dit_wan_config *config, mcsa_dtype asked, mcsa_dtype stored,
                                  mcsa_dtype *dtype, mcsa_error *error)
{
    (void)state;
    (void)stored;
    const int dim = config->heads * config->head_dim;
    if (asked == MCSA_F32)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "a GPU computes attention in BF16; F32 needs the CPU");
    if (config->head_dim != 64 && config->head_dim != 128)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "heads of %d channels: a GPU's attention has 64 and 128",
                         config->head_dim);
    if (dim > DIT_CUDA_MAX_DIM)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "rows of %d channels: a GPU takes at most %d", dim,
                         DIT_CUDA_MAX_DIM);
    *dtype = MCSA_BF16;
    return MCSA_OK;
}

static void *gpu_alloc(void *state, size_t bytes)
{
    void *block = NULL;
    enter(state);
    return cudaMalloc(&block, bytes) == cudaSuccess ? block : NULL;
}

static void gpu_free(void *state, void *block, size_t bytes)
{
    (void)bytes;
    enter(state);
    cudaFree(block);
}

static mcsa_allocator gpu_memory(void *state)
{
    return (mcsa_allocator){ gpu_alloc, gpu_free, state };
}

/* Page-locked: 6 MiB take 0.12 ms instead of 0.5 to the GPU and 0.6 back. */
static void *gpu_host_alloc(void *state, size_t bytes)
{
    void *block = NULL;
    enter(state);
    return cudaMallocHost(&block, bytes) == cudaSuccess ? block : NULL;
}

static void gpu_host_free(void *state, void *block, size_t bytes)
{
    (void)bytes;
    enter(state);
    cudaFreeHost(block);
}

static mcsa_allocator gpu_host_memory(void *state)
{
    return (mcsa_allocator){ gpu_host_alloc, gpu_host_free, state };
}

/* Pageable memory has been copied out of `host` when cudaMemcpyAsync returns; pinned memory has not. */
static void gpu_put(void *state, void *to, const void *host, size_t bytes)
{
    gpu *g = enter(state);
    note(g, cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, g->stream));
    note(g, cudaStreamSynchronize(g->stream));
}

static mcsa_status gpu_get(void *state, void *host, const void *from, size_t bytes, mcsa_error *error)
{
    gpu *g = enter(state);
    note(g, cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, g->stream));
    note(g, cudaStreamSynchronize(g->stream));
    note(g, stage_clock_read(lt_engine_clock(g->linear)));
    const cudaError_t failure = g->failure;
    g->failure = cudaSuccess;
    if (failure == cudaSuccess) return MCSA_OK;
    return mcsa_fail(error, MCSA_EDEVICE, "GPU %d failed: %s", g->index, cudaGetErrorString(failure));
}

static mcsa_status gpu_linear_create(dit_linear **out, void *state, const dit_linear_shape *shape, const float *weight,
                                     const float *bias, mcsa_error *error)
{
    return lt_linear_create(out, enter(state)->linear, shape, weight, bias, error);
}

static mcsa_status gpu_linear_random(dit_linear **out, void *state, const dit_linear_shape *shape, uint64_t seed,
                                     mcsa_error *error)
{
    return lt_linear_random(out, enter(state)->linear, shape, seed, error);
}

static double gpu_linear_seconds(void *state)
{
    return lt_engine_clock(((gpu *)state)->linear)->seconds;
}

static void gpu_norm_rows(void *state, const dit_norm *job, int64_t N)
{
    gpu *g = enter(state);
    note(g, dit_cuda_norm_rows(job, N, g->stream));
}

static void gpu_rms_rope_rows(void *state, const dit_rms_rope *job, int64_t N)
{
    gpu *g = enter(state);
    note(g, dit_cuda_rms_rope_rows(job, N, g->stream));
}

static void gpu_gather(void *state, const dit_patches *p, const float *latent, float *rows)
{
    gpu *g = enter(state);
    note(g, dit_cuda_gather(p, latent, rows, g->stream));
}

static void gpu_scatter(void *state, const dit_patches *p, const float *rows, float *latent)
{
    gpu *g = enter(state);
    note(g, dit_cuda_scatter(p, rows, latent, g->stream));
}

static void gpu_silu(void *state, const float *x, float *out, int count)
{
    gpu *g = enter(state);
    note(g, dit_cuda_silu(x, out, count, g->stream));
}

static void gpu_modulate(void *state, const dit_modulation *job)
{
    gpu *g = enter(state);
    note(g, dit_cuda_modulate(job, g->stream));
}

__attribute__((visibility("default"))) extern const dit_device dit_device_cuda;

const dit_device dit_device_cuda = {
    .version = MCSA_VERSION,
    .open = gpu_open,
    .close = gpu_close,
    .arithmetic = gpu_arithmetic,
    .memory = gpu_memory,
    .host_memory = gpu_host_memory,
    .put = gpu_put,
    .get = gpu_get,
    .linear_create = gpu_linear_create,
    .linear_random = gpu_linear_random,
    .linear_free = lt_linear_free,
    .linear_apply = lt_linear_apply,
    .linear_seconds = gpu_linear_seconds,
    .norm_rows = gpu_norm_rows,
    .rms_rope_rows = gpu_rms_rope_rows,
    .gather = gpu_gather,
    .scatter = gpu_scatter,
    .silu = gpu_silu,
    .modulate = gpu_modulate,
};
