/* backend.c - which backend serves a device, and loading the one that is not part of this library. */
#include "backend.h"

#include "base/library.h"

#include <stdio.h>
#include <string.h>

mcsa_status mcsa_backend_find(const mcsa_backend **backend, mcsa_device device, mcsa_error *error)
{
    mcsa_error why = { "" };
    *backend = &mcsa_backend_cpu;
    if (device == MCSA_DEVICE_CPU) return MCSA_OK;
    *backend = mcsa_library_symbol("libmcsa_cuda.so", "mcsa_backend_cuda", &why);
    if (!*backend)
        return mcsa_fail(error, MCSA_EUNSUPPORTED,
                         "libmcsa_cuda could not be loaded (%s): install it beside libmcsa, or configure with "
                         "-DMCSA_CUDA=ON, which needs nvcc 13.0 or newer",
                         why.text);
    if (strcmp((*backend)->version, MCSA_VERSION) != 0)
        return mcsa_fail(error, MCSA_EUNSUPPORTED,
                         "libmcsa_cuda is version %.20s and libmcsa " MCSA_VERSION ": install both from one build",
                         (*backend)->version);
    return MCSA_OK;
}

mcsa_status mcsa_gpu_read(mcsa_gpu *gpu, int index)
{
    if (!gpu || index < 0) return MCSA_EINVAL;
    const mcsa_backend *backend;
    mcsa_gpu now = { .size = gpu->size && gpu->size < sizeof now ? gpu->size : sizeof now };
    mcsa_error error = { "" };
    mcsa_status status = mcsa_backend_find(&backend, MCSA_DEVICE_CUDA, &error);
    if (status == MCSA_OK) status = backend->gpu_read(&now, index, &error);
    snprintf(now.missing, sizeof now.missing, "%s", error.text);
    memcpy(gpu, &now, now.size);
    return status;
}
