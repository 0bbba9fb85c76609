/* peak.c - see peak.h.  The best of several rounds, since other work on the machine only ever lowers the rate. */
#include "peak.h"

#include "base/clock.h"
#include "features.h"
#include "kernels.h"

#include <omp.h>

double mcsa_cpu_peak(mcsa_isa isa, int threads)
{
    if (isa == MCSA_ISA_AUTO) isa = mcsa_cpu_isa();
    if (isa > mcsa_cpu_isa()) return 0;
    mcsa_kernel_set set;
    mcsa_kernels_fill(&set, isa);
    const mcsa_kernels *kernels = isa == MCSA_ISA_AVX512BF16 ? &set.bf16 : &set.f32;
    double best = 0;
    int64_t rounds = 1000;
    for (double begin = mcsa_seconds(); mcsa_seconds() - begin < 0.2; rounds = best > 0 ? rounds : rounds * 2) {
        int64_t operations = 0;
        double from = mcsa_seconds();
#pragma omp parallel num_threads(threads) reduction(+ : operations)
        operations += kernels->peak(rounds);
        double seconds = mcsa_seconds() - from;
        if (seconds > 5e-3 && (double)operations / seconds > best) best = (double)operations / seconds;
    }
    return best;
}
