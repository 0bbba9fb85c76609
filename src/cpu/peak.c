/* peak.c - see peak.h.  The best of several rounds, since other work on the machine only ever lowers the rate. */
#include "peak.h"

#include "base/clock.h"
#include "features.h"
#include "kernels.h"

#include <omp.h>

double mcsa_cpu_peak(mcsa_isa isa, mcsa_dtype dtype, int threads)
{
    if (isa == MCSA_ISA_AUTO) isa = mcsa_cpu_isa();
    if (isa > mcsa_cpu_isa()) return 0;
    mcsa_kernel_set set;
    mcsa_kernels_fill(&set, isa);
    const mcsa_kernels *kernels = dtype == MCSA_BF16 ? &set.bf16 : &set.f32;
    double best = 0;
    int64_t rounds = 1 << 20; /* about 3 ms */
    for (double begin = mcsa_seconds(); mcsa_seconds() - begin < 0.2;) {
        int64_t operations = 0;
        double from = mcsa_seconds();
#pragma omp parallel num_threads(threads) reduction(+ : operations)
        operations += kernels->peak(rounds);
        double seconds = mcsa_seconds() - from;
        if ((double)operations > best * seconds) best = (double)operations / seconds;
        if (seconds < 0.01) rounds *= 2; /* long enough for the start of threads not to count */
    }
    return best;
}
