# SPDX-License-Identifier: Apache-2.0
# What the library is made of, and what is made of that.
#
#   convoy           the library that users link: exports what is marked CONVOY_API, and nothing else
#   convoy_cpu       the CPU backend, loaded by the shared `convoy` when it is first asked for; a static
#                    `convoy` holds it
#   convoy_internal  the same objects for tests and developers' tools, which reach behind the API
#   convoy_<folder>  the objects of one folder

# Include folders, and what was built in.
add_library(convoy_headers INTERFACE)
target_compile_features(convoy_headers INTERFACE cxx_std_20)
target_include_directories(convoy_headers INTERFACE
  ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/generated)
foreach(feature CPU CUDA SM90 SM100)
  if(CONVOY_WITH_${feature})
    target_compile_definitions(convoy_headers INTERFACE CONVOY_WITH_${feature}=1)
  endif()
endforeach()

# What the CPU backend needs, for whoever holds its objects.
set(convoy_cpu_libraries DNNL::dnnl)
if(CONVOY_WITH_OPENMP)
  list(APPEND convoy_cpu_libraries OpenMP::OpenMP_CXX)
endif()

# convoy_add_objects(<name> a.cpp b.cpp): makes target convoy_<name>, whose names stay inside.
function(convoy_add_objects name)
  add_library(convoy_${name} OBJECT ${ARGN})
  target_link_libraries(convoy_${name} PUBLIC convoy_headers)
  add_dependencies(convoy_${name} convoy_git_hash)
  set_target_properties(convoy_${name} PROPERTIES
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()

# convoy_add_sources(<name> a.cpp b.cpp): the same, as a part of the library.
function(convoy_add_sources name)
  convoy_add_objects(${name} ${ARGN})
  set_property(GLOBAL APPEND PROPERTY convoy_parts convoy_${name})
endfunction()

# The libraries, once every folder has added its part.
function(convoy_make_library)
  get_property(parts GLOBAL PROPERTY convoy_parts)
  set(objects "")
  foreach(part IN LISTS parts)
    list(APPEND objects $<TARGET_OBJECTS:${part}>)
  endforeach()

  set(cpu_objects $<TARGET_OBJECTS:convoy_cpu_objects> $<TARGET_OBJECTS:convoy_onednn>)

  add_library(convoy ${objects})
  add_library(convoy::convoy ALIAS convoy)
  target_compile_features(convoy PUBLIC cxx_std_20)
  target_include_directories(convoy PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  set(libraries "")
  if(CONVOY_WITH_CUDA)
    list(APPEND libraries CUDA::cudart)
  endif()
  if(NOT BUILD_SHARED_LIBS)
    if(CONVOY_WITH_CPU)
      target_sources(convoy PRIVATE ${cpu_objects})
      list(APPEND libraries ${convoy_cpu_libraries})
    endif()
    add_library(convoy_internal INTERFACE)
    target_link_libraries(convoy_internal INTERFACE convoy convoy_headers)
  else()
    list(APPEND libraries ${CMAKE_DL_LIBS})
    set(map ${PROJECT_SOURCE_DIR}/cmake/convoy.map)
    target_link_options(convoy PRIVATE -Wl,--version-script=${map} -Wl,--gc-sections)
    set_property(TARGET convoy APPEND PROPERTY LINK_DEPENDS ${map})
    add_library(convoy_internal STATIC ${objects})
    target_link_libraries(convoy_internal PUBLIC convoy_headers ${libraries})
    if(CONVOY_WITH_CPU)
      convoy_make_cpu_library()
    endif()
  endif()
  target_link_libraries(convoy PRIVATE ${libraries})
  # NOTE: objects alone do not say in which language to link; nothing is left to link for the device.
  set_target_properties(convoy convoy_internal PROPERTIES LINKER_LANGUAGE CXX)
  set_target_properties(convoy PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
endfunction()

# The CPU backend with a core of its own: it needs no name of libconvoy.so.
function(convoy_make_cpu_library)
  add_library(convoy_cpu SHARED ${cpu_objects} $<TARGET_OBJECTS:convoy_core>)
  target_link_libraries(convoy_cpu PRIVATE ${convoy_cpu_libraries})
  set(map ${PROJECT_SOURCE_DIR}/cmake/convoy_cpu.map)
  target_link_options(convoy_cpu PRIVATE -Wl,--version-script=${map} -Wl,--gc-sections)
  set_target_properties(convoy_cpu PROPERTIES LINKER_LANGUAGE CXX
    LINK_DEPENDS ${map} VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  # Whoever uses the library of this build finds this beside it, tests by their run path.
  add_dependencies(convoy convoy_cpu)
  add_dependencies(convoy_internal convoy_cpu)
  target_link_options(convoy_internal INTERFACE -Wl,-rpath,$<TARGET_FILE_DIR:convoy_cpu>)
endfunction()
