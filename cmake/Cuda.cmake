# libmcsa_cuda: the CUDA backend as a module that libmcsa loads at run time, so that nothing else needs CUDA.
#
#     MCSA_CUDA=AUTO   build it when nvcc 13.0 or newer and a C++ compiler for its host code are found
#               ON     stop when they are not
#               OFF    leave it out
#
# nvcc is that of the machine, or the one that scripts/dependencies.sh --cuda puts into build/cuda.  It is called here
# as a plain command, so that what ptxas says about each file (registers, spills, serialised wgmma) is kept beside the
# object as FILE.o.ptxas, for scripts/check_cuda.sh.  Directories are globbed: kernels (.cu) and host code (.c) of
# src/cuda need no line here.

set(MCSA_CUDA OFF CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set(mcsa_cuda_found FALSE)

set(mcsa_nvcc_flags -std=c++17 -gencode=arch=compute_90a,code=sm_90a -O3 -lineinfo
    -Xptxas -v,-warn-spills -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra)
if(MCSA_WERROR)
    list(APPEND mcsa_nvcc_flags -Xcompiler -Werror)
endif()

# Sets mcsa_nvcc and mcsa_cuda_root, or mcsa_cuda_missing to what is missing.
function(mcsa_find_cuda)
    set(fetched ${PROJECT_SOURCE_DIR}/build/cuda/nvidia/cu13)
    set(missing "no nvcc on PATH, in /usr/local/cuda or from scripts/dependencies.sh --cuda")
    find_program(MCSA_NVCC nvcc PATHS /usr/local/cuda/bin)
    foreach(nvcc ${MCSA_NVCC} ${fetched}/bin/nvcc)
        if(NOT EXISTS ${nvcc})
            continue()
        endif()
        file(REAL_PATH ${nvcc} nvcc)
        set(probe ${PROJECT_BINARY_DIR}/cuda_probe)
        file(WRITE ${probe}.cu "__global__ void probe() {}\nint main() { probe<<<1, 1>>>(); }\n")
        execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE version ERROR_QUIET)
        string(REGEX MATCH "release ([0-9.]+)" version "${version}")
        if(NOT CMAKE_MATCH_1 OR CMAKE_MATCH_1 VERSION_LESS 13.0)
            set(missing "${nvcc} is ${version}; 13.0 or newer is needed")
            continue()
        endif()
        execute_process(COMMAND ${nvcc} ${mcsa_nvcc_flags} -c ${probe}.cu -o ${probe}.o
                        RESULT_VARIABLE failed OUTPUT_VARIABLE words ERROR_VARIABLE words)
        if(failed)
            set(missing "${nvcc} cannot compile; it says: ${words}")
            continue()
        endif()
        cmake_path(GET nvcc PARENT_PATH bin)
        cmake_path(GET bin PARENT_PATH root)
        find_library(MCSA_CUDART cudart_static PATHS ${root}/lib64 ${root}/lib NO_DEFAULT_PATH)
        if(NOT MCSA_CUDART)
            set(missing "${root} has no libcudart_static.a")
            continue()
        endif()
        message(STATUS "CUDA: ${nvcc}, ${version}")
        set(mcsa_nvcc ${nvcc} PARENT_SCOPE)
        set(mcsa_cuda_root ${root} PARENT_SCOPE)
        set(mcsa_cuda_found TRUE PARENT_SCOPE)
        return()
    endforeach()
    if(MCSA_CUDA STREQUAL "ON")
        message(FATAL_ERROR "MCSA_CUDA is ON: ${missing}")
    endif()
    message(STATUS "CUDA: not built: ${missing}")
endfunction()

if(NOT MCSA_CUDA MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "MCSA_CUDA is ${MCSA_CUDA}; it must be AUTO, ON or OFF")
elseif(NOT MCSA_CUDA STREQUAL "OFF")
    mcsa_find_cuda()
endif()

# Sets `objects` to the objects of the .cu files that follow.
function(mcsa_cuda_objects objects)
    set(made "")
    foreach(source ${ARGN})
        file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${source})
        set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
        cmake_path(GET object PARENT_PATH directory)
        file(MAKE_DIRECTORY ${directory})
        add_custom_command(OUTPUT ${object} BYPRODUCTS ${object}.ptxas
            COMMAND sh ${PROJECT_SOURCE_DIR}/scripts/nvcc.sh ${object}.ptxas ${mcsa_nvcc} ${mcsa_nvcc_flags}
                    -I ${PROJECT_SOURCE_DIR}/include -I ${PROJECT_SOURCE_DIR}/src -I ${PROJECT_SOURCE_DIR}/tests/cuda
                    -MD -MF ${object}.d -c ${source} -o ${object}
            DEPENDS ${source} DEPFILE ${object}.d COMMENT "nvcc ${name}" VERBATIM)
        list(APPEND made ${object})
    endforeach()
    set(${objects} ${made} PARENT_SCOPE)
endfunction()

# Gives a target the CUDA runtime, linked statically, and what the host code that nvcc makes needs of C++.
function(mcsa_link_cuda target)
    target_include_directories(${target} SYSTEM PRIVATE ${mcsa_cuda_root}/include)
    target_link_libraries(${target} PRIVATE ${MCSA_CUDART} pthread rt ${CMAKE_DL_LIBS} stdc++)
endfunction()

# lib${name}.so from .cu and .c files; it exports `symbol` alone.
function(mcsa_cuda_library name symbol)
    set(kernels ${ARGN})
    set(host ${ARGN})
    list(FILTER kernels INCLUDE REGEX "\\.cu$")
    list(FILTER host INCLUDE REGEX "\\.c$")
    mcsa_cuda_objects(objects ${kernels})
    add_library(${name} MODULE ${host} ${objects})
    set_target_properties(${name} PROPERTIES LINKER_LANGUAGE C)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${name} PRIVATE mcsa_flags m)
    mcsa_link_cuda(${name})
    set(map ${PROJECT_BINARY_DIR}/cuda/${name}.map)
    file(WRITE ${map} "{ global: ${symbol}; local: *; };\n")
    target_link_options(${name} PRIVATE -Wl,--version-script=${map} -Wl,--no-undefined)
    install(TARGETS ${name} DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()

if(mcsa_cuda_found)
    file(GLOB cuda_sources CONFIGURE_DEPENDS src/cuda/*.cu src/cuda/*.c)
    mcsa_cuda_library(mcsa_cuda mcsa_backend_cuda ${cuda_sources}
                      ${PROJECT_SOURCE_DIR}/src/base/status.c ${PROJECT_SOURCE_DIR}/src/base/memory.c)
endif()
