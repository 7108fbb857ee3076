# The CUDA plugin: everything in kernels/cuda as one shared object that the executable opens at run time.
# MOEBATCH_CUDA=AUTO leaves it out where nvcc or NCCL is missing; ON makes that an error.
set(MOEBATCH_HAS_CUDA OFF)
if(NOT MOEBATCH_CUDA STREQUAL "OFF")
  set(why "")
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND)
    # Looks beyond PATH, where check_language would stop.
    if(NOT DEFINED ENV{CUDACXX} AND CUDAToolkit_NVCC_EXECUTABLE)
      set(ENV{CUDACXX} ${CUDAToolkit_NVCC_EXECUTABLE})
    endif()
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 90a-real CACHE STRING "CUDA architectures, e.g. 90a-real;80-virtual")
    endif()
    include(CheckLanguage)
    check_language(CUDA)
    find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV NCCL_HOME PATH_SUFFIXES include)
    find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ENV NCCL_HOME PATH_SUFFIXES lib lib64)
    if(NOT CMAKE_CUDA_COMPILER)
      set(why "nvcc does not work here")
    elseif(NOT NCCL_INCLUDE_DIR OR NOT NCCL_LIBRARY)
      set(why "NCCL was not found (set NCCL_HOME)")
    else()
      set(MOEBATCH_HAS_CUDA ON)
    endif()
  else()
    set(why "the CUDA Toolkit was not found")
  endif()
  if(MOEBATCH_HAS_CUDA)
    message(STATUS "CUDA plugin: CUDA ${CUDAToolkit_VERSION}, NCCL in ${NCCL_LIBRARY}, for ${CMAKE_CUDA_ARCHITECTURES}")
  elseif(MOEBATCH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "MOEBATCH_CUDA=ON, but ${why}")
  else()
    message(STATUS "CUDA plugin: left out, ${why}; the CPU build is complete without it")
  endif()
endif()

if(MOEBATCH_HAS_CUDA)
  set(CMAKE_CUDA_STANDARD 17)
  enable_language(CUDA)
  file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu)
  # What the sampler computes is what the CPU computes, which fuses nothing either.
  set_source_files_properties(${CMAKE_SOURCE_DIR}/kernels/cuda/sample.cu ${CMAKE_SOURCE_DIR}/kernels/cuda/sample_scan.cu
    PROPERTIES COMPILE_OPTIONS "-fmad=false")
  # Objects of their own: the plugin and the benchmarks of tests/bench/gpu are made of the same.
  add_library(moebatch_kernels OBJECT ${cuda_sources})
  set_target_properties(moebatch_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON CUDA_VISIBILITY_PRESET hidden)
  if(MOEBATCH_WERROR)
    set_target_properties(moebatch_kernels PROPERTIES CUDA_COMPILER_LAUNCHER "sh;${CMAKE_SOURCE_DIR}/cmake/check_wgmma.sh")
  endif()
  target_include_directories(moebatch_kernels PRIVATE ${CMAKE_SOURCE_DIR} ${NCCL_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_options(moebatch_kernels PRIVATE
    "SHELL:-Xcompiler -Wall,-Wextra" $<$<BOOL:${MOEBATCH_WERROR}>:-Werror=all-warnings>)
  add_library(moebatch_cuda MODULE $<TARGET_OBJECTS:moebatch_kernels>)
  # Shared: with the static runtime the link line would hold both, and the program might end up with two.
  # The loader does not search the toolkit's folder everywhere, and CMake takes it for a system folder.
  set_target_properties(moebatch_cuda PROPERTIES
    PREFIX "" CUDA_RUNTIME_LIBRARY Shared LINKER_LANGUAGE CUDA
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
    BUILD_RPATH ${CUDAToolkit_LIBRARY_DIR} INSTALL_RPATH ${CUDAToolkit_LIBRARY_DIR})
  target_link_libraries(moebatch_cuda PRIVATE CUDA::cudart ${NCCL_LIBRARY} ${CMAKE_DL_LIBS})
  install(TARGETS moebatch_cuda LIBRARY DESTINATION lib/moebatch)
endif()
