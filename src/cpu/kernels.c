/* kernels.c - binds tables to levels, by falling through. */
#include "kernels.h"

void mcsa_kernels_fill(mcsa_kernel_set *set, mcsa_isa isa)
{
    set->isa = isa;
    mcsa_kernels_scalar(&set->f32);
    set->bf16 = set->f32;
#ifdef MCSA_X86
    if (isa < MCSA_ISA_AVX2) return;
    mcsa_kernels_avx2(&set->f32);
    set->bf16 = set->f32;

    if (isa < MCSA_ISA_AVX512BF16) return;
    mcsa_kernels_avx512bf16(&set->f32, &set->bf16);
#endif
}
