# libmcsa_cuda: the CUDA backend as a module that libmcsa loads at run time, so that nothing else needs CUDA.
#
#     MCSA_CUDA=AUTO   build it when nvcc 13.0 or newer and a C++ compiler for its host code are found
#               ON     stop when they are not
#               OFF    leave it out
#
# nvcc is that of the machine, or the one that scripts/dependencies.sh --cuda puts into build/cuda.  It is called here
# as a plain command, so that what ptxas says about each file (registers, spills, serialised wgmma) is kept beside the
# object as FILE.o.ptxas, for scripts/check_cuda.sh.  Directories are globbed: kernels (.cu) and host code (.c) need no
# line here.

set(MCSA_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set(mcsa_cuda_found FALSE)

set(mcsa_nvcc_flags -std=c++17 -gencode=arch=compute_90a,code=sm_90a -O3 -lineinfo
    -Xptxas -v,-warn-spills
    -Xcompiler -fPIC,-fopenmp,-fvisibility=hidden,-Wall,-Wextra,-Wno-missing-field-initializers)
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
        execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE version ERROR_QUIET)
        string(REGEX MATCH "release ([0-9.]+)" version "${version}")
        if(NOT CMAKE_MATCH_1 OR CMAKE_MATCH_1 VERSION_LESS 13.0)
            set(missing "${nvcc} is ${version}; 13.0 or newer is needed")
            continue()
        endif()
        if(NOT MCSA_NVCC_COMPILES STREQUAL nvcc)
            set(probe ${PROJECT_BINARY_DIR}/cuda_probe)
            file(WRITE ${probe}.cu "__global__ void probe() {}\nint main() { probe<<<1, 1>>>(); }\n")
            execute_process(COMMAND ${nvcc} ${mcsa_nvcc_flags} -c ${probe}.cu -o ${probe}.o
                            RESULT_VARIABLE failed OUTPUT_VARIABLE words ERROR_VARIABLE words)
            if(failed)
                set(missing "${nvcc} cannot compile; it says: ${words}")
                continue()
            endif()
            set(MCSA_NVCC_COMPILES ${nvcc} CACHE INTERNAL "this nvcc and its host compiler work")
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

# The module lib${name}.so of the kernels and host code in `directory`; it exports `symbol` alone.  Tests link its parts,
# ${name}_kernels and ${name}_host.
function(mcsa_cuda_library name symbol directory)
    file(GLOB kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${directory}/*.cu)
    file(GLOB host CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${directory}/*.c)
    mcsa_cuda_objects(objects ${kernels})
    add_library(${name}_kernels STATIC ${objects})
    set_target_properties(${name}_kernels PROPERTIES LINKER_LANGUAGE C)
    add_library(${name}_host OBJECT ${host})
    target_link_libraries(${name}_host PUBLIC mcsa_static)
    target_include_directories(${name}_host SYSTEM PUBLIC ${mcsa_cuda_root}/include)
    add_library(${name} MODULE $<TARGET_OBJECTS:${name}_host>)
    target_link_libraries(${name} PRIVATE ${name}_kernels mcsa_static)
    mcsa_link_cuda(${name})
    set(map ${PROJECT_BINARY_DIR}/cuda/${name}.map)
    file(WRITE ${map} "{ global: ${symbol}; local: *; };\n")
    target_link_options(${name} PRIVATE -Wl,--version-script=${map} -Wl,--no-undefined)
    install(TARGETS ${name} DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()

if(mcsa_cuda_found)
    mcsa_cuda_library(mcsa_cuda mcsa_backend_cuda src/cuda)
endif()
