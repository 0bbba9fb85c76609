/* features.c - see features.h.  The compiler's cpuid support also asks the operating system for the wide registers. */
#include "features.h"

#include <string.h>

#include <omp.h>

mcsa_isa mcsa_cpu_isa(void)
{
#ifdef MCSA_X86
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return MCSA_ISA_SCALAR;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512bf16"))
        return MCSA_ISA_AVX2;
    return MCSA_ISA_AVX512BF16;
#else
    return MCSA_ISA_SCALAR;
#endif
}

const char *mcsa_isa_name(mcsa_isa isa)
{
    switch (isa) {
    case MCSA_ISA_AUTO: return "auto";
    case MCSA_ISA_SCALAR: return "scalar";
    case MCSA_ISA_AVX2: return "avx2";
    case MCSA_ISA_AVX512BF16: return "avx512bf16";
    }
    return "unknown";
}

mcsa_status mcsa_machine_read(mcsa_machine *machine)
{
    if (!machine) return MCSA_EINVAL;
    static const char *const features[] = { "", "", "avx2 fma f16c",
                                            "avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512bf16" };
    mcsa_isa best = mcsa_cpu_isa();
    mcsa_machine now = { sizeof now, best, omp_get_max_threads(), features[best] };
    now.size = machine->size && machine->size < sizeof now ? machine->size : sizeof now;
    memcpy(machine, &now, now.size);
    return MCSA_OK;
}
