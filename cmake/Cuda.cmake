# Enables CUDA where there is a compiler for it (POSENC_CUDA=AUTO), or demands it (ON).
include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  # Machine code for what is in use, PTX of the newest for what comes after. CUDAARCHS in the
  # environment or CMAKE_CUDA_ARCHITECTURES chooses others: `native` is quickest to build.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND "$ENV{CUDAARCHS}" STREQUAL "")
    set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90-real 100-real 120)
  endif()
  # Torch may have another version of it: ours is inside, and needs nothing but the driver.
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  enable_language(CUDA)
  # As on the CPU: multiplications and additions are fused only where the source says so. Device
  # code that calls host code is an error.
  string(APPEND CMAKE_CUDA_FLAGS " --fmad=false --Werror=cross-execution-space-call -Xfatbin=-compress-all")
  string(APPEND CMAKE_CUDA_FLAGS " -Xcompiler=-Wall,-Wextra,-Wno-unknown-pragmas")
elseif(POSENC_CUDA STREQUAL ON)
  message(FATAL_ERROR "POSENC_CUDA=ON, but there is no CUDA compiler (nvcc): set CUDACXX to it")
endif()
