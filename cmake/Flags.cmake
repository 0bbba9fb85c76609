# Compiler flags.  mcsa_flags carries what every target shares; mcsa_isa_flags gives each source file what its name
# says:
#
#   *_avx2.c         AVX2, FMA and F16C           called only after the run-time check of src/cpu, so that one build
#   *_avx512bf16.c   AVX-512 F BW VL DQ and BF16  runs on every x86-64; never -march=native.  Needs gcc 10 or clang 9.
#   *_scalar.c and src/base, src/core             no contraction of a * b + c: gcc and clang differ by default there,
#                                                 and references must give the same bits from both
#
# Never -ffast-math: masks are infinities and tests look for NaN.

include(CheckCSourceCompiles)
check_c_source_compiles("#ifndef __x86_64__\n#error\n#endif\nint main(void) { return 0; }" MCSA_X86)

add_library(mcsa_flags INTERFACE)
target_compile_definitions(mcsa_flags INTERFACE _POSIX_C_SOURCE=200809L $<$<BOOL:${MCSA_X86}>:MCSA_X86=1>)
target_compile_options(mcsa_flags INTERFACE
    -fno-math-errno -fno-trapping-math
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wvla -Wstrict-prototypes -Wmissing-prototypes
    $<$<BOOL:${MCSA_WERROR}>:-Werror>)

if(MCSA_SANITIZE)
    add_compile_options(-fsanitize=${MCSA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    add_link_options(-fsanitize=${MCSA_SANITIZE})
endif()

# Sets the flags of the files in the list named `list`, and drops x86 files from it on other machines.
function(mcsa_isa_flags list)
    if(NOT MCSA_X86)
        list(FILTER ${list} EXCLUDE REGEX "_(avx2|avx512bf16)\\.c$")
        set(${list} ${${list}} PARENT_SCOPE)
    endif()
    foreach(file IN LISTS ${list})
        set(flags "")
        if(file MATCHES "_avx512bf16\\.c$")
            set(flags -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16)
        elseif(file MATCHES "_avx2\\.c$")
            set(flags -mavx2 -mfma -mf16c)
        elseif(file MATCHES "_scalar\\.c$|/src/(base|core)/")
            set(flags -ffp-contract=off)
        endif()
        set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${flags}")
    endforeach()
endfunction()
