# libmcsa_dit_cuda: what the transformer does on a GPU besides attention, a module like libmcsa_cuda (cmake/Cuda.cmake).
# cuBLASLt is linked dynamically, so that only this module asks for it.

if(mcsa_cuda_found)
    find_library(MCSA_CUBLASLT NAMES cublasLt libcublasLt.so.13
                 PATHS ${mcsa_cuda_root}/lib64 ${mcsa_cuda_root}/lib NO_DEFAULT_PATH)
    if(MCSA_CUBLASLT)
        mcsa_cuda_library(mcsa_dit_cuda dit_device_cuda src/dit/cuda)
        target_link_libraries(mcsa_dit_cuda PRIVATE ${MCSA_CUBLASLT})
    elseif(MCSA_CUDA STREQUAL "ON")
        message(FATAL_ERROR "MCSA_CUDA is ON: ${mcsa_cuda_root} has no cuBLASLt, which the transformer needs")
    else()
        message(STATUS "CUDA: the transformer runs on the CPU only: ${mcsa_cuda_root} has no cuBLASLt")
    endif()
endif()
