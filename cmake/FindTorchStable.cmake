# The stable ABI of libtorch: its headers and libtorch_cpu, nothing else. find_package(Torch) would
# bring the CUDA toolkit, libtorch_cuda and compiler flags along.
#
# Defines TorchStable::TorchStable. torch is located, not imported.
execute_process(
  COMMAND
    ${Python_EXECUTABLE} -c
    "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
  OUTPUT_VARIABLE torch_directory
  OUTPUT_STRIP_TRAILING_WHITESPACE)
# Found anew each time: the directory of an isolated build is gone by the next one.
unset(TorchStable_INCLUDE_DIR CACHE)
unset(TorchStable_LIBRARY CACHE)
if(torch_directory)
  find_path(TorchStable_INCLUDE_DIR torch/csrc/stable/library.h
    PATHS ${torch_directory}/include NO_DEFAULT_PATH)
  find_library(TorchStable_LIBRARY torch_cpu PATHS ${torch_directory}/lib NO_DEFAULT_PATH)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  TorchStable REQUIRED_VARS TorchStable_LIBRARY TorchStable_INCLUDE_DIR)
if(TorchStable_FOUND AND NOT TARGET TorchStable::TorchStable)
  add_library(TorchStable::TorchStable SHARED IMPORTED)
  set_target_properties(
    TorchStable::TorchStable
    PROPERTIES IMPORTED_LOCATION ${TorchStable_LIBRARY}
               INTERFACE_INCLUDE_DIRECTORIES ${TorchStable_INCLUDE_DIR}
               # The oldest torch that the library will load into: 2.10.
               INTERFACE_COMPILE_DEFINITIONS "TORCH_TARGET_VERSION=0x020a000000000000ULL")
endif()
