# mcsa_add_test(LABEL NAME COMMAND...) adds the test LABEL/NAME with the label, time limit and environment of this build.

enable_testing()

set(mcsa_test_seconds 300)
# Threads that wait should sleep: where other programs want the cores too, spinning made a run three times as slow.
set(mcsa_test_environment OMP_WAIT_POLICY=passive)
if(MCSA_SANITIZE)
    set(mcsa_test_seconds 1800)
endif()
if(MCSA_SANITIZE MATCHES thread)
    # Archer tells ThreadSanitizer where OpenMP synchronises; without it every barrier looks like a race.  It has to be
    # that of the OpenMP runtime in use.  oneDNN, libav and the runtime are not instrumented, so what happens inside
    # them cannot be judged.
    get_filename_component(runtime ${OpenMP_omp_LIBRARY} REALPATH)
    get_filename_component(runtime_dir ${runtime} DIRECTORY)
    find_library(ARCHER_LIBRARY archer HINTS ${runtime_dir} REQUIRED)
    list(APPEND mcsa_test_environment TSAN_OPTIONS=ignore_noninstrumented_modules=1 OMP_TOOL_LIBRARIES=${ARCHER_LIBRARY})
endif()

function(mcsa_add_test label name)
    add_test(NAME ${label}/${name} COMMAND ${ARGN})
    set_tests_properties(${label}/${name} PROPERTIES LABELS ${label} TIMEOUT ${mcsa_test_seconds}
                                                     ENVIRONMENT "${mcsa_test_environment}")
endfunction()
