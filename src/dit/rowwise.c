/* rowwise.c - rows over threads, and the choice of the kernels; see rowwise.h. */
#include "rowwise.h"

dit_row_kernels dit_row_kernels_for(mcsa_isa isa)
{
#ifdef MCSA_X86
    if (isa >= MCSA_ISA_AVX512BF16) return dit_row_kernels_avx512bf16();
    if (isa >= MCSA_ISA_AVX2) return dit_row_kernels_avx2();
#else
    (void)isa;
#endif
    return dit_row_kernels_scalar();
}

void dit_norm_rows(const dit_row_kernels *kernels, const dit_norm *job, int64_t N)
{
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < N; row++) kernels->norm(job, row);
}

void dit_rms_rope_rows(const dit_row_kernels *kernels, const dit_rms_rope *job, int64_t N)
{
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < N; row++) kernels->rms_rope(job, row);
}
