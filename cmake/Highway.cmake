# Highway: the system's (libhwy-dev on Debian 12 and Ubuntu 24.04), or else a pinned download, since
# older systems have none that is new enough. Without a network, set FETCHCONTENT_SOURCE_DIR_HIGHWAY
# to an unpacked release.
find_package(hwy 1.0.3 QUIET CONFIG)
if(NOT hwy_FOUND)
  message(STATUS "Highway >= 1.0.3 is not installed: downloading 1.2.0")
  include(FetchContent)
  set(HWY_ENABLE_CONTRIB OFF)
  set(HWY_ENABLE_EXAMPLES OFF)
  set(HWY_ENABLE_INSTALL OFF)
  set(HWY_ENABLE_TESTS OFF)
  set(HWY_FORCE_STATIC_LIBS ON)
  FetchContent_Declare(
    highway
    URL https://github.com/google/highway/archive/457c891775a7397bdb0376bb1031e6e027af1c48.tar.gz
    URL_HASH SHA256=5124b0501c98d9930dbb065bfa1a5bbbd59ce0f12facb7e1e33aaef01a5f1f1a)
  FetchContent_MakeAvailable(highway)
  add_library(hwy::hwy ALIAS hwy)
endif()
