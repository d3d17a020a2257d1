# The CUDA language, and which GPUs are compiled for: those of CMAKE_CUDA_ARCHITECTURES if it is set, else
# machine code for sm_80, sm_90 and sm_100 and, for all later GPUs, code that the driver compiles. What
# sm_100 runs is made of the intermediate code for sm_90: that is the code that has been measured, the
# compiler for sm_100 puts arrays of the kernels on the stack instead of in registers, and a third of its
# work is saved.
set(TUTTI_GENCODE)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  foreach(code 80,code=compute_80 80,code=sm_80 90,code=sm_90 90,code=sm_100)
    list(APPEND TUTTI_GENCODE --generate-code=arch=compute_${code})
  endforeach()
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 17)
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-Xfatbin=-compress-all;${TUTTI_GENCODE}>")
if(TUTTI_GENCODE)
  message(STATUS "tutti: CUDA ${CMAKE_CUDA_COMPILER_VERSION}: GPUs from sm_80 on "
                 "(CMAKE_CUDA_ARCHITECTURES for others)")
else()
  message(STATUS "tutti: CUDA ${CMAKE_CUDA_COMPILER_VERSION}: GPUs ${CMAKE_CUDA_ARCHITECTURES}")
endif()
