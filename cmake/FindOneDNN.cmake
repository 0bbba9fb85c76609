# Defines OneDNN::dnnl.  Debian's own dnnl-config.cmake asks for the OpenCL headers, which nothing here uses.

find_path(OneDNN_INCLUDE_DIR oneapi/dnnl/dnnl.h)
find_library(OneDNN_LIBRARY dnnl)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDNN REQUIRED_VARS OneDNN_LIBRARY OneDNN_INCLUDE_DIR
    REASON_FAILURE_MESSAGE "install libdnnl-dev (Debian) or oneDNN, or configure with -DMCSA_BUILD_CLI=OFF")

if(OneDNN_FOUND AND NOT TARGET OneDNN::dnnl)
    add_library(OneDNN::dnnl UNKNOWN IMPORTED)
    set_target_properties(OneDNN::dnnl PROPERTIES
        IMPORTED_LOCATION ${OneDNN_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${OneDNN_INCLUDE_DIR})
endif()
mark_as_advanced(OneDNN_INCLUDE_DIR OneDNN_LIBRARY)
