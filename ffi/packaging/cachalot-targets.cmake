# Declares the targets of cachalot, for the installed package and for CMakeLists.txt in the repository.

# cachalot_declare_targets(LIBDIR INCLUDEDIR VERSION [GLOBAL]) declares cachalot::static, cachalot::shared, and
# cachalot::cachalot, which is the static library, or the shared one if CACHALOT_SHARED is true.
function(cachalot_declare_targets libdir includedir version)
  if(TARGET cachalot::cachalot)
    return()
  endif()
  # Before 1.0 a minor version has a SONAME of its own, afterwards a major one.
  if(version MATCHES "^0\\.[0-9]+")
    set(compatible "${CMAKE_MATCH_0}")
  else()
    string(REGEX MATCH "^[0-9]+" compatible "${version}")
  endif()

  add_library(cachalot::static STATIC IMPORTED ${ARGN})
  set_target_properties(cachalot::static PROPERTIES
    IMPORTED_LOCATION "${libdir}/libcachalot.a"
    INTERFACE_INCLUDE_DIRECTORIES "${includedir}"
    # The archive is one object with a section for each function: without this, a program has all of them.
    INTERFACE_LINK_OPTIONS "LINKER:--gc-sections"
    INTERFACE_LINK_LIBRARIES "-lgcc_s;-lutil;-lrt;-lpthread;-lm;-ldl;-lc")
  add_library(cachalot::shared SHARED IMPORTED ${ARGN})
  set_target_properties(cachalot::shared PROPERTIES
    IMPORTED_LOCATION "${libdir}/libcachalot.so"
    IMPORTED_SONAME "libcachalot.so.${compatible}"
    INTERFACE_INCLUDE_DIRECTORIES "${includedir}")
  add_library(cachalot::cachalot INTERFACE IMPORTED ${ARGN})
  if(CACHALOT_SHARED)
    set_target_properties(cachalot::cachalot PROPERTIES INTERFACE_LINK_LIBRARIES cachalot::shared)
  else()
    set_target_properties(cachalot::cachalot PROPERTIES INTERFACE_LINK_LIBRARIES cachalot::static)
  endif()
endfunction()
