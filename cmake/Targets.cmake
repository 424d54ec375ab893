# The SIMD targets of the CPU's kernels: posenc_targets, in Highway's words, each of which is compiled by
# itself. On x86-64 SSE4 (x86-64-v2, the least that NumPy runs on too), AVX2 and AVX3 (AVX-512; what
# Highway has above it has nothing more that the kernels could use). Elsewhere one, the compiler's own:
# NEON on Arm.
set(POSENC_TARGETS "" CACHE STRING
  "On x86-64: some of AVX3;AVX2;SSE4, or native, the best that this processor runs; else all")
set(posenc_targets)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(posenc_targets ${POSENC_TARGETS})
  if(POSENC_TARGETS STREQUAL "native")
    execute_process(
      COMMAND ${CMAKE_CXX_COMPILER} -march=native -dM -E -x c++ /dev/null
      OUTPUT_VARIABLE macros COMMAND_ERROR_IS_FATAL ANY)
    # As csrc/cpu/targets.cc asks the processor.
    set(posenc_targets AVX3)
    foreach(feature AVX512F AVX512VL AVX512BW AVX512DQ AVX512CD)
      if(NOT macros MATCHES "#define __${feature}__ ")
        set(posenc_targets AVX2)
      endif()
    endforeach()
    foreach(feature AVX2 FMA BMI BMI2 F16C)
      if(NOT macros MATCHES "#define __${feature}__ ")
        set(posenc_targets SSE4)
      endif()
    endforeach()
  elseif(NOT POSENC_TARGETS)
    set(posenc_targets AVX3 AVX2 SSE4)
  endif()
  foreach(target ${posenc_targets})
    if(NOT target MATCHES "^(AVX3|AVX2|SSE4)$")
      message(FATAL_ERROR "POSENC_TARGETS: expected some of AVX3;AVX2;SSE4, or native, got ${POSENC_TARGETS}")
    endif()
  endforeach()
endif()
