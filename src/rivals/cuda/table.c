/* table.c - the GPU's state from its opening to its end, and the table that binds the verbs. */
#include "state.h"

#include <stdlib.h>

#include <omp.h>

static mcsa_status check_gpu(rival_cuda *cuda, mcsa_error *error)
{
    int major = 0, minor = 0;
    TRY(rival_cuda_enter(cuda, error));
    cudaError_t result = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, cuda->device);
    if (result == cudaSuccess) result = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, cuda->device);
    if (result == cudaSuccess)
        result = cudaDeviceGetAttribute(&cuda->processors, cudaDevAttrMultiProcessorCount, cuda->device);
    TRY(rival_cuda_judge(cuda, "asking about the GPU", result, error));
    if (major == 9 && minor == 0) return MCSA_OK;
    return mcsa_fail(error, MCSA_EUNSUPPORTED,
                     "GPU %d has compute capability %d.%d; these kernels are for 9.0 (H100, H200)", cuda->device, major,
                     minor);
}

static mcsa_status open_cuda(void **state, const mcsa_config *config, mcsa_error *error)
{
    rival_cuda *cuda = calloc(1, sizeof *cuda);
    if (!cuda) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the state of a GPU");
    cuda->device = config->device_index;
    cuda->stream = config->stream;
    cuda->threads = config->threads ? config->threads : omp_get_max_threads();
    mcsa_status status = check_gpu(cuda, error);
    if (status != MCSA_OK) {
        free(cuda);
        return status;
    }
    *state = cuda;
    return MCSA_OK;
}

static void close_cuda(void *state)
{
    rival_cuda *cuda = state;
    cudaSetDevice(cuda->device);
    cudaStreamSynchronize(cuda->stream);
    rival_cuda_release(cuda);
    free(cuda);
}

static void *device_alloc(void *user, size_t bytes)
{
    void *block = NULL;
    rival_cuda *cuda = user;
    cudaSetDevice(cuda->device);
    if (cudaMalloc(&block, bytes ? bytes : 1) == cudaSuccess) return block;
    cudaGetLastError();
    return NULL;
}

static void device_free(void *user, void *block, size_t bytes)
{
    (void)bytes;
    rival_cuda *cuda = user;
    cudaSetDevice(cuda->device);
    cudaFree(block);
}

static mcsa_allocator memory(void *state)
{
    return (mcsa_allocator){ device_alloc, device_free, state };
}

static mcsa_status wait_for_stream(void *state, mcsa_error *error)
{
    TRY(rival_cuda_enter(state, error));
    return rival_cuda_finish(state, "what was enqueued", cudaSuccess, error);
}

__attribute__((visibility("default"))) extern const rival_kernels rival_kernels_cuda;

const rival_kernels rival_kernels_cuda = {
    .name = "cuda",
    .version = MCSA_VERSION,
    .open = open_cuda,
    .close = close_cuda,
    .memory = memory,
    .wait = wait_for_stream,
    .pool = rival_cuda_pool,
    .cosine = rival_cuda_cosine,
    .assign = rival_cuda_assign,
    .mass = rival_cuda_mass,
    .outer = rival_cuda_outer,
    .error = rival_cuda_error,
    .diagonal = rival_cuda_diagonal,
    .attend = rival_cuda_attend,
    .tail = rival_cuda_tail,
    .read_rows = rival_cuda_read_rows,
    .read = rival_cuda_read,
    .write = rival_cuda_write,
    .subtract = rival_cuda_subtract,
    .add = rival_cuda_add,
};
