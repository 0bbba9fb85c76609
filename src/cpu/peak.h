/* peak.h - the multiply rate that the arithmetic of a level reaches with everything in registers: what kernels are
 * measured against. */
#ifndef MCSA_CPU_PEAK_H
#define MCSA_CPU_PEAK_H

#include "mcsa.h"

/* Floating-point operations per second over `threads` threads in the arithmetic that tensors of `dtype` get at `isa`:
 * vdpbf16ps for BF16 at avx512bf16, FMA otherwise.  Takes about 0.2 s; 0 when this machine lacks the level. */
double mcsa_cpu_peak(mcsa_isa isa, mcsa_dtype dtype, int threads);

#endif
