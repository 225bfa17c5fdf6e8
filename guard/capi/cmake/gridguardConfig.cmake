# find_package(gridguard) defines the target gridguard::gridguard, which links the shared library, and
# gridguard::static, which links the static one. This file lies in PREFIX/share/gridguard.
get_filename_component(_gridguard_prefix "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
find_path(GRIDGUARD_INCLUDE_DIR gridguard.h HINTS "${_gridguard_prefix}/include" NO_DEFAULT_PATH)
find_library(GRIDGUARD_LIBRARY NAMES gridguard
    HINTS "${_gridguard_prefix}" PATH_SUFFIXES lib lib64 "lib/${CMAKE_LIBRARY_ARCHITECTURE}"
    NO_DEFAULT_PATH)
find_library(GRIDGUARD_STATIC_LIBRARY NAMES libgridguard.a
    HINTS "${_gridguard_prefix}" PATH_SUFFIXES lib lib64 "lib/${CMAKE_LIBRARY_ARCHITECTURE}"
    NO_DEFAULT_PATH)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(gridguard
    REQUIRED_VARS GRIDGUARD_LIBRARY GRIDGUARD_INCLUDE_DIR)
if(gridguard_FOUND AND NOT TARGET gridguard::gridguard)
    add_library(gridguard::gridguard SHARED IMPORTED)
    set_target_properties(gridguard::gridguard PROPERTIES
        IMPORTED_LOCATION "${GRIDGUARD_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${GRIDGUARD_INCLUDE_DIR}")
endif()
if(gridguard_FOUND AND GRIDGUARD_STATIC_LIBRARY AND NOT TARGET gridguard::static)
    find_package(Threads REQUIRED)
    add_library(gridguard::static STATIC IMPORTED)
    set_target_properties(gridguard::static PROPERTIES
        IMPORTED_LOCATION "${GRIDGUARD_STATIC_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${GRIDGUARD_INCLUDE_DIR}"
        INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
endif()
