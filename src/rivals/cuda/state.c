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

static mcsa_status reserve_landing(rival_cuda *cuda, size_t bytes, mcsa_error *error)
{
    if (bytes <= cuda->landing_bytes) return MCSA_OK;
    cudaFreeHost(cuda->landing);
    cuda->landing = NULL;
    cuda->landing_bytes = 0;
    TRY(rival_cuda_judge(cuda, "page-locking memory", cudaMallocHost(&cuda->landing, bytes), error));
    cuda->landing_bytes = bytes;
    return MCSA_OK;
}

static mcsa_status reserve_results(rival_cuda *cuda, rival_room *room, size_t bytes, mcsa_error *error)
{
    if (bytes <= room->results_bytes) return MCSA_OK;
    cudaFree(room->results);
    room->results = NULL;
    room->results_bytes = 0;
    TRY(rival_cuda_judge(cuda, "allocating scratch", cudaMalloc(&room->results, bytes), error));
    room->results_bytes = bytes;
    return MCSA_OK;
}

static void release_mirror(rival_mirror *mirror)
{
    cudaFreeHost(mirror->host);
    cudaFree(mirror->device);
    *mirror = (rival_mirror){ 0 };
}

static mcsa_status reserve_mirror(rival_cuda *cuda, rival_mirror *mirror, size_t bytes, mcsa_error *error)
{
    if (bytes <= mirror->bytes) return MCSA_OK;
    release_mirror(mirror);
    TRY(rival_cuda_judge(cuda, "page-locking memory", cudaMallocHost(&mirror->host, bytes), error));
    TRY(rival_cuda_judge(cuda, "allocating memory", cudaMalloc(&mirror->device, bytes), error));
    mirror->bytes = bytes;
    return MCSA_OK;
}

void rival_cuda_release(rival_cuda *cuda)
{
    for (int i = 0; i < ROOMS; i++) {
        release_mirror(&cuda->rooms[i].uploads);
        cudaFree(cuda->rooms[i].results);
    }
    cudaFreeHost(cuda->landing);
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

/* The array to its place in the mirror, unless it is there.  What pads it goes along, so that both sides stay equal. */
static mcsa_status send(rival_cuda *cuda, rival_mirror *mirror, size_t at, const rival_array *array, mcsa_error *error)
{
    char *host = (char *)mirror->host + at;
    if (at + array->bytes <= mirror->equal && memcmp(host, array->host, array->bytes) == 0) return MCSA_OK;
    copy(cuda, host, array->host, array->bytes);
    return rival_cuda_judge(cuda, "an upload",
                            cudaMemcpyAsync((char *)mirror->device + at, host, aligned(array->bytes),
                                            cudaMemcpyHostToDevice, cuda->stream),
                            error);
}

mcsa_status rival_cuda_lay(rival_cuda *cuda, int number, rival_array *arrays, int count, mcsa_error *error)
{
    rival_room *room = &cuda->rooms[number];
    rival_mirror *uploads = &room->uploads;
    size_t up = 0, space = 0;
    for (int i = 0; i < count; i++) *(arrays[i].host ? &up : &space) += aligned(arrays[i].bytes);
    TRY(rival_cuda_enter(cuda, error));
    TRY(reserve_mirror(cuda, uploads, up, error));
    TRY(reserve_results(cuda, room, space, error));
    const size_t equal = uploads->equal;
    size_t next_up = 0, next_space = 0;
    for (int i = 0; i < count; i++) {
        size_t *next = arrays[i].host ? &next_up : &next_space;
        arrays[i].device = (char *)(arrays[i].host ? uploads->device : room->results) + *next;
        if (arrays[i].host) {
            mcsa_status sent = send(cuda, uploads, *next, &arrays[i], error);
            uploads->equal = sent == MCSA_OK ? equal : 0;
            TRY(sent);
        }
        *next += aligned(arrays[i].bytes);
    }
    uploads->equal = equal > up ? equal : up;
    return MCSA_OK;
}

mcsa_status rival_cuda_finish(rival_cuda *cuda, const char *what, cudaError_t launched, mcsa_error *error)
{
    cudaError_t ended = cudaStreamSynchronize(cuda->stream);
    return rival_cuda_judge(cuda, what, launched == cudaSuccess ? ended : launched, error);
}

mcsa_status rival_cuda_fetch(rival_cuda *cuda, const char *what, cudaError_t launched, const rival_array *from,
                             void *to, mcsa_error *error)
{
    if (launched == cudaSuccess) TRY(reserve_landing(cuda, from->bytes, error));
    if (launched == cudaSuccess)
        launched = cudaMemcpyAsync(cuda->landing, from->device, from->bytes, cudaMemcpyDeviceToHost, cuda->stream);
    TRY(rival_cuda_finish(cuda, what, launched, error));
    copy(cuda, to, cuda->landing, from->bytes);
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
