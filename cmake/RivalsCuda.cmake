# libmcsa_rivals_cuda: the kernels of other methods on a GPU, a module like libmcsa_cuda (cmake/Cuda.cmake), from which it
# takes the mass of tokens.

if(mcsa_cuda_found)
    mcsa_cuda_library(mcsa_rivals_cuda rival_kernels_cuda src/rivals/cuda)
    target_link_libraries(mcsa_rivals_cuda PRIVATE mcsa_cuda_kernels)
endif()
