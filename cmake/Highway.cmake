# Highway: the copy that POSENC_HIGHWAY names, or else the system's (libhwy-dev on Debian 12 and Ubuntu
# 24.04), a copy unpacked into .hwy, or a pinned download, since older systems have none that is new
# enough. A copy is a directory in which hwy/highway.h lies; `make gpu-kit` leaves one in its folder.
#
# Defines Highway::headers. Its library is neither built nor linked: it chooses among targets, which
# csrc/cpu/targets.cc does here, and would be one more file to ship with every wheel.
set(POSENC_HIGHWAY "" CACHE PATH "A directory with hwy/highway.h, Highway >= 1.0.3; else it is looked for")
set(highway_include_directories)
if(POSENC_HIGHWAY)
  if(NOT EXISTS "${POSENC_HIGHWAY}/hwy/highway.h")
    message(FATAL_ERROR "POSENC_HIGHWAY: no file ${POSENC_HIGHWAY}/hwy/highway.h")
  endif()
  set(highway_include_directories ${POSENC_HIGHWAY})
else()
  find_package(hwy 1.0.3 QUIET CONFIG)
  if(hwy_FOUND)
    get_target_property(highway_include_directories hwy::hwy INTERFACE_INCLUDE_DIRECTORIES)
  elseif(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/.hwy/hwy/highway.h)
    set(highway_include_directories ${CMAKE_CURRENT_SOURCE_DIR}/.hwy)
  else()
    message(STATUS "Highway >= 1.0.3 is not installed: downloading 1.2.0. Without a network, unpack it "
                   "into .hwy, or set POSENC_HIGHWAY")
    include(FetchContent)
    FetchContent_Declare(highway
      URL https://github.com/google/highway/archive/457c891775a7397bdb0376bb1031e6e027af1c48.tar.gz
      URL_HASH SHA256=5124b0501c98d9930dbb065bfa1a5bbbd59ce0f12facb7e1e33aaef01a5f1f1a
      SOURCE_SUBDIR none) # there is no such directory: unpacked, not built
    FetchContent_MakeAvailable(highway)
    set(highway_include_directories ${highway_SOURCE_DIR})
  endif()
endif()
list(GET highway_include_directories 0 posenc_highway_headers)
set(posenc_highway_headers ${posenc_highway_headers} CACHE INTERNAL "For scripts/gpu_kit.sh")
message(STATUS "Highway: ${posenc_highway_headers}")
add_library(Highway::headers INTERFACE IMPORTED)
target_include_directories(Highway::headers INTERFACE ${highway_include_directories})
