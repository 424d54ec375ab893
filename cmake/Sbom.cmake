# A list of the code of others that is compiled in, of what this build really uses: CycloneDX, put into
# the wheel's metadata (PEP 770). scripts/sbom.py writes it.
include(CheckCXXSymbolExists)
check_cxx_symbol_exists(_LIBCPP_VERSION cstddef posenc_has_libcxx)

set(posenc_sbom ${CMAKE_CURRENT_BINARY_DIR}/posenc_native.cdx.json)
get_target_property(highway_headers Highway::headers INTERFACE_INCLUDE_DIRECTORIES)
list(GET highway_headers 0 highway_headers)
if(posenc_has_libcxx)
  set(posenc_runtime libc++)
else()
  set(posenc_runtime libstdc++)
endif()
set(posenc_parts
    --version ${PROJECT_VERSION} --highway ${highway_headers} --pybind11 ${pybind11_INCLUDE_DIR}
    --runtime ${posenc_runtime} --compiler ${CMAKE_CXX_COMPILER_VERSION})
if(TARGET _torch_ops)
  list(APPEND posenc_parts --torch ${TorchStable_INCLUDE_DIR})
  if(TARGET posenc_cuda)
    find_path(posenc_cuda_headers cuda_runtime_api.h
      PATHS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} NO_DEFAULT_PATH REQUIRED)
    list(APPEND posenc_parts --cuda ${posenc_cuda_headers})
  endif()
elseif(POSENC_TORCH_LIBRARY)
  # The build that made the library says what is in it: scripts/wheels.sh puts the one beside the other.
  cmake_path(REPLACE_EXTENSION POSENC_TORCH_LIBRARY LAST_ONLY cdx.json OUTPUT_VARIABLE ready)
  if(NOT EXISTS "${ready}")
    message(FATAL_ERROR "POSENC_TORCH_LIBRARY: no file ${ready}, the posenc_native.cdx.json of its wheel")
  endif()
  list(APPEND posenc_parts --operators ${ready})
endif()
set(posenc_sbom_script ${CMAKE_CURRENT_SOURCE_DIR}/scripts/sbom.py)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${posenc_sbom_script})
execute_process(
  COMMAND ${Python_EXECUTABLE} ${posenc_sbom_script} ${posenc_sbom} ${posenc_parts}
  COMMAND_ERROR_IS_FATAL ANY)
if(SKBUILD_METADATA_DIR)
  install(FILES ${posenc_sbom} DESTINATION ${SKBUILD_METADATA_DIR}/sboms)
endif()
