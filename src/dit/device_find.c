/* device_find.c - which table serves a device.  The GPU's is in a library of its own, so that a program on a machine
 * without one needs nothing of CUDA. */
#include "base/library.h"
#include "device.h"

#include <string.h>

mcsa_status dit_device_find(const dit_device **out, mcsa_device kind, mcsa_error *error)
{
    mcsa_error why = { "" };
    *out = &dit_device_cpu;
    if (kind == MCSA_DEVICE_CPU) return MCSA_OK;
    *out = mcsa_library_symbol("libmcsa_dit_cuda.so", "dit_device_cuda", &why);
    if (!*out)
        return mcsa_fail(error, MCSA_EUNSUPPORTED,
                         "libmcsa_dit_cuda could not be loaded (%s): it needs cuBLAS of CUDA 13 and lies beside the "
                         "program when that was configured with -DMCSA_CUDA=ON",
                         why.text);
    if (strcmp((*out)->version, MCSA_VERSION) != 0)
        return mcsa_fail(error, MCSA_EUNSUPPORTED,
                         "libmcsa_dit_cuda is version %.20s and this program " MCSA_VERSION
                         ": take both from one build",
                         (*out)->version);
    return MCSA_OK;
}
