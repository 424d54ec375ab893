# Highway: the system's (libhwy-dev on Debian 12 and Ubuntu 24.04), or else a pinned download, since
# older systems have none that is new enough. Without a network, set FETCHCONTENT_SOURCE_DIR_HIGHWAY
# to an unpacked release.
#
# Defines Highway::headers. Its library is neither built nor linked: it chooses among targets, which
# csrc/cpu/targets.cc does here, and would be one more file to ship with every wheel.
find_package(hwy 1.0.3 QUIET CONFIG)
if(hwy_FOUND)
  get_target_property(highway_include_directories hwy::hwy INTERFACE_INCLUDE_DIRECTORIES)
else()
  message(STATUS "Highway >= 1.0.3 is not installed: downloading 1.2.0")
  include(FetchContent)
  FetchContent_Declare(highway
    URL https://github.com/google/highway/archive/457c891775a7397bdb0376bb1031e6e027af1c48.tar.gz
    URL_HASH SHA256=5124b0501c98d9930dbb065bfa1a5bbbd59ce0f12facb7e1e33aaef01a5f1f1a
    SOURCE_SUBDIR none) # there is no such directory: unpacked, not built
  FetchContent_MakeAvailable(highway)
  set(highway_include_directories ${highway_SOURCE_DIR})
endif()
add_library(Highway::headers INTERFACE IMPORTED)
target_include_directories(Highway::headers INTERFACE ${highway_include_directories})
