/* gpu.c - see gpu.h. */
#include "gpu.h"

#include <stdio.h>

#include <cuda_runtime_api.h>

/* The driver's words for an error, which is no longer the last one then. */
static const char *words(cudaError_t error)
{
    cudaGetLastError();
    return cudaGetErrorString(error);
}

static mcsa_status check_driver(const mcsa_gpu *gpu, mcsa_error *error)
{
    if (gpu->driver == 0)
        return mcsa_fail(error, MCSA_EUNSUPPORTED,
                         "no NVIDIA driver is installed: libcuda.so.1 was not found; CUDA %d.%d needs version 580 or "
                         "newer",
                         gpu->runtime / 1000, gpu->runtime % 1000 / 10);
    if (gpu->driver / 1000 < gpu->runtime / 1000)
        return mcsa_fail(error, MCSA_EUNSUPPORTED,
                         "the NVIDIA driver runs CUDA up to %d.%d and libmcsa_cuda was built with %d.%d: update the "
                         "driver to version 580 or newer",
                         gpu->driver / 1000, gpu->driver % 1000 / 10, gpu->runtime / 1000, gpu->runtime % 1000 / 10);
    return MCSA_OK;
}

mcsa_status mcsa_cuda_gpu_read(mcsa_gpu *gpu, int index, mcsa_error *error)
{
    struct cudaDeviceProp properties;
    int count = 0;
    if (cudaDriverGetVersion(&gpu->driver) != cudaSuccess) gpu->driver = 0;
    cudaRuntimeGetVersion(&gpu->runtime);
    TRY(check_driver(gpu, error));
    cudaError_t refused = cudaGetDeviceCount(&count);
    if (refused != cudaSuccess)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "the NVIDIA driver shows no GPU: %s", words(refused));
    if (index >= count)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "GPU %d was asked for; the NVIDIA driver shows %d, numbered from 0",
                         index, count);
    refused = cudaGetDeviceProperties(&properties, index);
    if (refused != cudaSuccess)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "GPU %d does not answer: %s", index, words(refused));
    snprintf(gpu->name, sizeof gpu->name, "%.127s", properties.name);
    gpu->capability = 10 * properties.major + properties.minor;
    gpu->multiprocessors = properties.multiProcessorCount;
    gpu->memory_bytes = (int64_t)properties.totalGlobalMem;
    if (gpu->capability != 90)
        return mcsa_fail(error, MCSA_EUNSUPPORTED,
                         "GPU %d, %s, has compute capability %d.%d; the kernels run on 9.0 alone (H100, H200)", index,
                         gpu->name, properties.major, properties.minor);
    return MCSA_OK;
}
