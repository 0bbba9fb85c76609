/* rows.c - single rows and plain memory to the host and back, and the cached residual. */
#include "state.h"

mcsa_status rival_cuda_read_rows(void *state, const mcsa_tensor *x, const int32_t *index, int count, float *rows,
                                 mcsa_error *error)
{
    rival_cuda *cuda = state;
    rival_rows from;
    TRY(rival_cuda_rows_of(&from, x, "x", error));
    rival_array a[] = { rival_up(index, sizeof *index * (size_t)count),
                        rival_space(sizeof *rows * (size_t)from.H * (size_t)count * (size_t)from.D) };
    TRY(rival_cuda_lay(cuda, ROOM_FIRST, a, 2, error));
    cudaError_t launched = rival_launch_read_rows(&from, a[0].device, count, a[1].device, cuda->stream);
    return rival_cuda_fetch(cuda, "reading rows", launched, &a[1], rows, error);
}

mcsa_status rival_cuda_read(void *state, const void *from, size_t bytes, void *to, mcsa_error *error)
{
    TRY(rival_cuda_enter(state, error));
    const rival_array array = { .bytes = bytes, .device = (void *)(uintptr_t)from };
    return rival_cuda_fetch(state, "reading memory", cudaSuccess, &array, to, error);
}

mcsa_status rival_cuda_write(void *state, const void *from, size_t bytes, void *to, mcsa_error *error)
{
    rival_cuda *cuda = state;
    TRY(rival_cuda_enter(cuda, error));
    cudaError_t launched = cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, cuda->stream);
    return rival_cuda_finish(cuda, "writing memory", launched, error);
}

mcsa_status rival_cuda_subtract(void *state, const mcsa_tensor *dense, const mcsa_tensor *sparse, void *residual,
                                mcsa_error *error)
{
    rival_cuda *cuda = state;
    rival_rows from, less;
    TRY(rival_cuda_rows_of(&from, dense, "dense", error));
    TRY(rival_cuda_rows_of(&less, sparse, "sparse", error));
    TRY(rival_cuda_enter(cuda, error));
    return rival_cuda_finish(cuda, "recording the residual",
                             rival_launch_subtract(&from, &less, residual, cuda->stream), error);
}

mcsa_status rival_cuda_add(void *state, const mcsa_tensor *out, const void *residual, mcsa_error *error)
{
    rival_cuda *cuda = state;
    rival_rows to;
    TRY(rival_cuda_rows_of(&to, out, "out", error));
    TRY(rival_cuda_enter(cuda, error));
    return rival_cuda_finish(cuda, "adding the residual", rival_launch_add(&to, residual, cuda->stream), error);
}
