/* kernels.c - which kernels serve a device, and loading those that are not part of this library. */
#include "kernels.h"

#include "base/library.h"

#include <string.h>

mcsa_status rival_kernels_find(const rival_kernels **out, mcsa_device device, mcsa_error *error)
{
    mcsa_error why = { "" };
    *out = &rival_kernels_cpu;
    if (device == MCSA_DEVICE_CPU) return MCSA_OK;
    *out = mcsa_library_symbol("libmcsa_rivals_cuda.so", "rival_kernels_cuda", &why);
    if (!*out)
        return mcsa_fail(error, MCSA_EUNSUPPORTED,
                         "libmcsa_rivals_cuda could not be loaded (%s): install it beside the command, or configure "
                         "with -DMCSA_CUDA=ON, which needs nvcc 13.0 or newer",
                         why.text);
    if (strcmp((*out)->version, MCSA_VERSION) != 0)
        return mcsa_fail(error, MCSA_EUNSUPPORTED,
                         "libmcsa_rivals_cuda is version %.20s and this program " MCSA_VERSION
                         ": install both from one build",
                         (*out)->version);
    return MCSA_OK;
}
