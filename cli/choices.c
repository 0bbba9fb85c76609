/* choices.c - see choices.h. */
#include "choices.h"

#include "dit/sampler.h"

/* clang-format off */
const option_choice choices_residual[] = { { "bf16", MCSA_RESIDUAL_BF16 },
                                           { "int8", MCSA_RESIDUAL_INT8 },
                                           { "int4", MCSA_RESIDUAL_INT4 },
                                           { "off", MCSA_RESIDUAL_OFF },
                                           { 0 } };
const option_choice choices_tail[] = { { "means", MCSA_TAIL_MEANS }, { "off", MCSA_TAIL_OFF }, { 0 } };
const option_choice choices_branches[] = { { "shared", MCSA_BRANCHES_SHARED },
                                           { "apart", MCSA_BRANCHES_APART },
                                           { 0 } };
const option_choice choices_sampler[] = { { "euler", DIT_EULER }, { "unipc", DIT_UNIPC }, { 0 } };
const option_choice choices_isa[] = { { "auto", MCSA_ISA_AUTO },
                                      { "scalar", MCSA_ISA_SCALAR },
                                      { "avx2", MCSA_ISA_AVX2 },
                                      { "avx512bf16", MCSA_ISA_AVX512BF16 },
                                      { 0 } };
const option_choice choices_backend[] = { { "cpu", MCSA_DEVICE_CPU }, { "cuda", MCSA_DEVICE_CUDA }, { 0 } };
const option_choice choices_precision[] = { { "auto", 0 },
                                            { "f32", MCSA_F32 },
                                            { "bf16", MCSA_BF16 },
                                            { 0 } };
/* clang-format on */

const char *choice_word(const option_choice *choices, int value)
{
    while (choices->value != value) choices++;
    return choices->word;
}
