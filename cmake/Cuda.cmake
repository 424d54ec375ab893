# Enables CUDA where there are a GPU and a compiler for it (POSENC_CUDA=AUTO), or demands the compiler
# (ON). posenc_no_cuda says why AUTO leaves the kernels out.
#
# A GPU: the driver of Linux, or that of Windows underneath one. Without one the kernels would take
# minutes to compile for nobody; who builds for another machine says POSENC_CUDA=ON.
set(posenc_no_cuda)
if(POSENC_CUDA STREQUAL AUTO AND NOT EXISTS /proc/driver/nvidia/version AND NOT EXISTS /dev/dxg)
  set(posenc_no_cuda "this machine has no NVIDIA GPU (POSENC_CUDA=ON compiles them nevertheless)")
  return()
endif()
include(CheckLanguage)
check_language(CUDA)

# Machine code for GPUs in use, as far as this compiler knows them, and PTX for later ones.
# CUDAARCHS in the environment or CMAKE_CUDA_ARCHITECTURES chooses others: `native` is quickest to
# build. posenc_cuda_architectures says what it is, in CMake's words.
#
# PTX is made once for the GPUs of a line below, which is half of the work, and only the assembler
# runs for each of them. From 9.0 on kernels wait for those before them (launch.cuh), which PTX for
# 8.0 has no instruction for; nothing else of newer ones is used. Machine code for 8.0 runs on 8.6 and
# 8.9 as well, that for 12.0 on 12.1.
if(CMAKE_CUDA_COMPILER AND NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND "$ENV{CUDAARCHS}" STREQUAL "")
  execute_process(
    COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch
    OUTPUT_VARIABLE known
    ERROR_QUIET)
  set(posenc_cuda_architectures)
  set(posenc_cuda_code)
  set(gpus_80 80)
  set(gpus_90 90 100 120)
  foreach(ptx 80 90)
    set(machines)
    foreach(gpu ${gpus_${ptx}})
      if(known MATCHES "compute_${gpu}[\r\n]")
        list(APPEND posenc_cuda_architectures ${gpu}-real)
        list(APPEND machines sm_${gpu})
      endif()
    endforeach()
    if(machines)
      list(JOIN machines "," machines)
      string(APPEND posenc_cuda_code " --generate-code=arch=compute_${ptx},code=[${machines}]")
      set(newest ${ptx})
    endif()
  endforeach()
  if(newest)
    list(APPEND posenc_cuda_architectures ${newest}-virtual)
    string(APPEND posenc_cuda_code
           " --generate-code=arch=compute_${newest},code=compute_${newest}")
    set(CMAKE_CUDA_ARCHITECTURES OFF) # CMake knows no PTX for several GPUs
  else()
    message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER} knows no GPU of compute capability 8.0 or newer")
    set(CMAKE_CUDA_COMPILER NOTFOUND)
  endif()
endif()

if(CMAKE_CUDA_COMPILER)
  # torch may bring another version of it. Ours is linked in and needs nothing but the driver.
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  enable_language(CUDA)
  if(CMAKE_CUDA_ARCHITECTURES)
    set(posenc_cuda_architectures ${CMAKE_CUDA_ARCHITECTURES})
  else()
    string(APPEND CMAKE_CUDA_FLAGS "${posenc_cuda_code}")
  endif()
  string(REPLACE "-O3" "-O2" CMAKE_CUDA_FLAGS_RELEASE "${CMAKE_CUDA_FLAGS_RELEASE}") # of the host
  # As on the CPU: multiplications and additions are fused only where the source says so. Device
  # code that calls host code is an error.
  string(APPEND CMAKE_CUDA_FLAGS " --fmad=false --Werror=cross-execution-space-call")
  string(APPEND CMAKE_CUDA_FLAGS " -Xfatbin=-compress-all")
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)
    # Older toolkits also support drivers that cannot read code in this form.
    string(APPEND CMAKE_CUDA_FLAGS " --compress-mode=size")
  endif()
  string(APPEND CMAKE_CUDA_FLAGS " -Xcompiler=-Wall,-Wextra,-Wno-unknown-pragmas")
elseif(POSENC_CUDA STREQUAL AUTO)
  set(posenc_no_cuda "there is no nvcc 11.8 or newer (CUDACXX in the environment names one)")
else()
  message(FATAL_ERROR "POSENC_CUDA=ON, but there is no CUDA compiler (nvcc 11.8 or newer): "
                      "set CUDACXX to it")
endif()
