# Says at the start of a build what it compiles, how long this takes on this machine, and the variables
# that shorten it. `pip install -v .` and scripts/setup.sh show it; `pip install .` hides what builds
# say.
#
# Seconds of one core, measured while another one was as busy, on a machine of the pace below: an AMD
# EPYC (Zen 5), GCC 12. Those of the module, of the targets and of the longest file were measured at a
# pace of 690, on Zen 3, and converted. The pace is what scripts/pace.py prints.
set(posenc_reference_pace 200)
set(posenc_seconds_module 16)
set(posenc_seconds_AVX3 46)
set(posenc_seconds_AVX2 38)
set(posenc_seconds_SSE4 36)
set(posenc_seconds_operators 12)
set(posenc_seconds_gpu 130) # for one compute capability
set(posenc_seconds_next_gpu 40) # the assembler; the compiler proper runs twice in all
set(posenc_seconds_next_ptx 60) # the part of the compiler proper in the first
set(posenc_seconds_on_host 85)
set(posenc_seconds_longest 20) # of one file, which more cores do not shorten
set(posenc_words_AVX3 AVX-512)
set(posenc_words_AVX2 AVX2)
set(posenc_words_SSE4 SSE4)

execute_process(
  COMMAND ${Python_EXECUTABLE} -c
    "import os; print(len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count())"
  OUTPUT_VARIABLE posenc_cores
  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
execute_process(
  COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/../scripts/pace.py ${CMAKE_CXX_COMPILER} ${posenc_cores}
  OUTPUT_VARIABLE posenc_pace
  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
if(NOT posenc_pace) # a compiler with other options
  set(posenc_pace ${posenc_reference_pace})
endif()

# Seconds of one core at the reference pace, as time on all cores at this pace: "2 min 30 s".
function(as_time seconds result)
  math(EXPR seconds "${seconds} * ${posenc_pace} / ${posenc_reference_pace} / ${posenc_cores}")
  math(EXPR seconds "(${seconds} + 9) / 10 * 10")
  math(EXPR minutes "${seconds} / 60")
  math(EXPR seconds "${seconds} % 60")
  set(words)
  if(minutes)
    list(APPEND words "${minutes} min")
  endif()
  if(seconds)
    list(APPEND words "${seconds} s")
  endif()
  list(JOIN words " " words)
  set(${result} "${words}" PARENT_SCOPE)
endfunction()

set(posenc_total 0)
set(posenc_announced)
# announce(seconds words): a part, and what shortens it.
function(announce seconds words)
  as_time(${seconds} time)
  math(EXPR total "${posenc_total} + ${seconds}")
  set(posenc_total ${total} PARENT_SCOPE)
  set(posenc_announced ${posenc_announced} "${time}: ${words}" PARENT_SCOPE)
endfunction()

if(posenc_targets)
  set(seconds ${posenc_seconds_module})
  set(names)
  foreach(target ${posenc_targets})
    math(EXPR seconds "${seconds} + ${posenc_seconds_${target}}")
    list(APPEND names ${posenc_words_${target}})
  endforeach()
  list(JOIN names ", " names)
  set(shorter "")
  list(LENGTH posenc_targets number)
  if(number GREATER 1)
    set(shorter " (POSENC_TARGETS=native compiles for this processor alone)")
  endif()
  announce(${seconds} "CPU kernels and the NumPy module, for ${names}${shorter}")
else()
  math(EXPR seconds "${posenc_seconds_module} + ${posenc_seconds_AVX2}")
  announce(${seconds} "CPU kernels and the NumPy module")
endif()
set(posenc_no_operators)
if(TARGET _torch_ops)
  announce(${posenc_seconds_operators} "operators for torch (POSENC_TORCH=OFF leaves them out)")
elseif(NOT POSENC_TORCH STREQUAL OFF AND NOT POSENC_TORCH_LIBRARY)
  set(posenc_no_operators "this build sees no torch >= 2.10 (pip install --no-build-isolation . shows it yours)")
endif()
if(TARGET posenc_cuda)
  set(seconds ${posenc_seconds_gpu})
  set(gpus ${posenc_cuda_architectures})
  list(FILTER gpus EXCLUDE REGEX virtual)
  list(LENGTH gpus number)
  if(number GREATER 1)
    math(EXPR seconds "${seconds} + (${number} - 1) * ${posenc_seconds_next_gpu} + ${posenc_seconds_next_ptx}")
  endif()
  list(TRANSFORM gpus REPLACE "^([0-9]+).*" "sm_\\1")
  list(JOIN gpus ", " gpus)
  announce(${seconds} "CUDA kernels, for ${gpus} (CUDAARCHS=native compiles for the GPU here, \
POSENC_CUDA=OFF for none)")
endif()
if(POSENC_CUDA_ON_HOST)
  announce(${posenc_seconds_on_host} "CUDA kernels as host code, for tests (POSENC_CUDA_ON_HOST=OFF \
leaves them out)")
endif()
math(EXPR posenc_longest "${posenc_seconds_longest} * ${posenc_cores}")
if(posenc_total LESS posenc_longest)
  set(posenc_total ${posenc_longest})
endif()
as_time(${posenc_total} posenc_total)
message(STATUS "posenc_native: compiling from nothing takes about ${posenc_total} on ${posenc_cores} cores:")
foreach(part ${posenc_announced})
  message(STATUS "  ${part}")
endforeach()
if(posenc_no_operators)
  message(STATUS "  no operators for torch: ${posenc_no_operators}")
elseif(posenc_no_cuda)
  message(STATUS "  no CUDA kernels: ${posenc_no_cuda}")
endif()
