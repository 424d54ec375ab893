# Enables CUDA where there is a compiler for it (POSENC_CUDA=AUTO), or demands it (ON).
include(CheckLanguage)
check_language(CUDA)

# Machine code for what is in use, as far as this compiler knows it, and PTX of the newest for what
# comes after. CUDAARCHS in the environment or CMAKE_CUDA_ARCHITECTURES chooses others: `native` is
# quickest to build.
if(CMAKE_CUDA_COMPILER AND NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND "$ENV{CUDAARCHS}" STREQUAL "")
  execute_process(
    COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch
    OUTPUT_VARIABLE known
    ERROR_QUIET)
  foreach(architecture 80 86 89 90 100 120)
    if(known MATCHES "compute_${architecture}[\r\n]")
      list(APPEND CMAKE_CUDA_ARCHITECTURES ${architecture}-real)
      set(newest ${architecture})
    endif()
  endforeach()
  if(newest)
    list(APPEND CMAKE_CUDA_ARCHITECTURES ${newest}-virtual)
  else()
    message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER} knows no GPU of compute capability 8.0 or newer")
    set(CMAKE_CUDA_COMPILER NOTFOUND)
  endif()
endif()

if(CMAKE_CUDA_COMPILER)
  # torch may have another version of it: ours is inside, and needs nothing but the driver.
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  enable_language(CUDA)
  # As on the CPU: multiplications and additions are fused only where the source says so. Device
  # code that calls host code is an error.
  string(APPEND CMAKE_CUDA_FLAGS " --fmad=false --Werror=cross-execution-space-call")
  string(APPEND CMAKE_CUDA_FLAGS " -Xfatbin=-compress-all")
  string(APPEND CMAKE_CUDA_FLAGS " -Xcompiler=-Wall,-Wextra,-Wno-unknown-pragmas")
elseif(POSENC_CUDA STREQUAL ON)
  message(FATAL_ERROR "POSENC_CUDA=ON, but there is no CUDA compiler (nvcc 11.8 or newer): "
                      "set CUDACXX to it")
endif()
