/* rowwise_avx512bf16.c - the row kernels of rowwise_kernels.h, compiled for this file's instruction set. */
#include "rowwise_kernels.h"

dit_row_kernels dit_row_kernels_avx512bf16(void)
{
    return (dit_row_kernels){ .norm = norm, .rms_rope = rms_rope };
}
