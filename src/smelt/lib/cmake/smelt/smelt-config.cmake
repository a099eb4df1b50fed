# find_package(smelt) gives the targets smelt::smelt, the shared library, and smelt::static, where it is installed.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
get_filename_component(smelt_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET smelt::smelt)
  add_library(smelt::smelt SHARED IMPORTED)
  set_target_properties(smelt::smelt PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${smelt_prefix}/include")
  if(WIN32)
    set_target_properties(smelt::smelt PROPERTIES
      IMPORTED_LOCATION "${smelt_prefix}/bin/smelt.dll" IMPORTED_IMPLIB "${smelt_prefix}/lib/smelt.lib")
  elseif(APPLE)
    set_target_properties(smelt::smelt PROPERTIES
      IMPORTED_LOCATION "${smelt_prefix}/lib/libsmelt.1.dylib" IMPORTED_SONAME "@rpath/libsmelt.1.dylib")
  else()
    set_target_properties(smelt::smelt PROPERTIES
      IMPORTED_LOCATION "${smelt_prefix}/lib/libsmelt.so.1" IMPORTED_SONAME libsmelt.so.1)
  endif()
endif()

if(NOT TARGET smelt::static AND EXISTS "${smelt_prefix}/lib/libsmelt.a")
  add_library(smelt::static STATIC IMPORTED)
  set_target_properties(smelt::static PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${smelt_prefix}/include"
    IMPORTED_LOCATION "${smelt_prefix}/lib/libsmelt.a")
  set(smelt_needs Threads::Threads)
  if(NOT WIN32)
    list(APPEND smelt_needs m ${CMAKE_DL_LIBS})
  endif()
  set_target_properties(smelt::static PROPERTIES INTERFACE_LINK_LIBRARIES "${smelt_needs}")
  unset(smelt_needs)
endif()
unset(smelt_prefix)
