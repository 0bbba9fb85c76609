/* state.c - see state.h. */
#include "state.h"

#include <string.h>

static size_t aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

mcsa_status rival_cuda_judge(const rival_cuda *cuda, const char *what, cudaError_t result, mcsa_error *error)
{
    if (result == cudaSuccess) return MCSA_OK;
    cudaGetLastError();
    return mcsa_fail(error, result == cudaErrorMemoryAllocation ? MCSA_ENOMEM : MCSA_EDEVICE,
                     "%s failed on GPU %d: %s (%s)", what, cuda->device, cudaGetErrorString(result),
                     cudaGetErrorName(result));
}

mcsa_status rival_cuda_enter(rival_cuda *cuda, mcsa_error *error)
{
    cudaGetLastError(); /* what others left is not this call's */
    return rival_cuda_judge(cuda, "choosing the GPU", cudaSetDevice(cuda->device), error);
}

static mcsa_status reserve_staging(rival_cuda *cuda, size_t bytes, mcsa_error *error)
{
    if (bytes <= cuda->staging_bytes) return MCSA_OK;
    cudaFreeHost(cuda->staging);
    cuda->staging = NULL;
    cuda->staging_bytes = 0;
    TRY(rival_cuda_judge(cuda, "page-locking memory", cudaMallocHost(&cuda->staging, bytes), error));
    cuda->staging_bytes = bytes;
    return MCSA_OK;
}

static mcsa_status reserve_scratch(rival_cuda *cuda, size_t bytes, mcsa_error *error)
{
    if (bytes <= cuda->scratch_bytes) return MCSA_OK;
    cudaFree(cuda->scratch);
    cuda->scratch = NULL;
    cuda->scratch_bytes = 0;
    TRY(rival_cuda_judge(cuda, "allocating scratch", cudaMalloc(&cuda->scratch, bytes), error));
    cuda->scratch_bytes = bytes;
    return MCSA_OK;
}

/* Page-locked memory to or from the caller's: one core copies 10 GB/s, and masses of single tokens are many. */
static void copy(const rival_cuda *cuda, void *to, const void *from, size_t bytes)
{
    enum { PIECE = 1 << 20 };
    const int64_t pieces = (int64_t)((bytes + PIECE - 1) / PIECE);
#pragma omp parallel for schedule(static) num_threads(cuda->threads) if (pieces > 2)
    for (int64_t i = 0; i < pieces; i++) {
        size_t at = (size_t)i * PIECE, left = bytes - at;
        memcpy((char *)to + at, (const char *)from + at, left < PIECE ? left : (size_t)PIECE);
    }
}

mcsa_status rival_cuda_lay(rival_cuda *cuda, rival_array *arrays, int count, mcsa_error *error)
{
    size_t up = 0, all;
    for (int i = 0; i < count; i++) up += arrays[i].host ? aligned(arrays[i].bytes) : 0;
    all = up;
    for (int i = 0; i < count; i++) all += arrays[i].host ? 0 : aligned(arrays[i].bytes);
    TRY(rival_cuda_enter(cuda, error));
    TRY(reserve_staging(cuda, up, error));
    TRY(reserve_scratch(cuda, all, error));
    size_t next_up = 0, next_room = up;
    for (int i = 0; i < count; i++) {
        size_t *next = arrays[i].host ? &next_up : &next_room;
        arrays[i].device = (char *)cuda->scratch + *next;
        if (arrays[i].host) copy(cuda, (char *)cuda->staging + *next, arrays[i].host, arrays[i].bytes);
        *next += aligned(arrays[i].bytes);
    }
    if (up == 0) return MCSA_OK;
    return rival_cuda_judge(cuda, "an upload",
                            cudaMemcpyAsync(cuda->scratch, cuda->staging, up, cudaMemcpyHostToDevice, cuda->stream),
                            error);
}

mcsa_status rival_cuda_finish(rival_cuda *cuda, const char *what, cudaError_t launched, mcsa_error *error)
{
    cudaError_t ended = cudaStreamSynchronize(cuda->stream);
    return rival_cuda_judge(cuda, what, launched == cudaSuccess ? ended : launched, error);
}

mcsa_status rival_cuda_fetch(rival_cuda *cuda, const char *what, cudaError_t launched, const rival_array *from,
                             void *to, mcsa_error *error)
{
    if (launched != cudaSuccess || from->bytes > cuda->staging_bytes)
        TRY(rival_cuda_finish(cuda, what, launched, error));
    TRY(reserve_staging(cuda, from->bytes, error));
    launched = cudaMemcpyAsync(cuda->staging, from->device, from->bytes, cudaMemcpyDeviceToHost, cuda->stream);
    TRY(rival_cuda_finish(cuda, what, launched, error));
    copy(cuda, to, cuda->staging, from->bytes);
    return MCSA_OK;
}

mcsa_status rival_cuda_rows_of(rival_rows *rows, const mcsa_tensor *x, const char *name, mcsa_error *error)
{
    int uneven = x->stride[2] != 1 || (uintptr_t)x->data % 16 != 0;
    for (int i = 0; i < 2; i++) uneven |= x->shape[i] > 1 && x->stride[i] % 8 != 0;
    if (x->dtype == MCSA_F32)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "%s has dtype F32; on a GPU it must be BF16 or F16", name);
    if (x->shape[2] != 64 && x->shape[2] != 128)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "%s has head dimension %lld; on a GPU it must be 64 or 128", name,
                         (long long)x->shape[2]);
    if (uneven)
        return mcsa_fail(error, MCSA_EUNSUPPORTED,
                         "%s has strides %lld, %lld, %lld; on a GPU rows must be whole and start on multiples of 16 "
                         "bytes",
                         name, (long long)x->stride[0], (long long)x->stride[1], (long long)x->stride[2]);
    *rows = (rival_rows){ .data = x->data,
                          .head = x->stride[0],
                          .row = x->stride[1],
                          .H = (int)x->shape[0],
                          .N = (int)x->shape[1],
                          .D = (int)x->shape[2],
                          .dtype = x->dtype };
    return MCSA_OK;
}

mcsa_status rival_cuda_check_call(const mcsa_qkv *x, mcsa_error *error)
{
    rival_rows rows;
    TRY(rival_cuda_rows_of(&rows, x->q, "q", error));
    TRY(rival_cuda_rows_of(&rows, x->k, "k", error));
    TRY(rival_cuda_rows_of(&rows, x->v, "v", error));
    return x->out ? rival_cuda_rows_of(&rows, x->out, "out", error) : MCSA_OK;
}
