# The install tree: headers, library, CMake package and pkg-config file, all relocatable.
include(CMakePackageConfigHelpers)

if(BUILD_SHARED_LIBS AND NOT EJK_INSTALL_LINKS)
  # One file, under the name that programs are linked to, and for the linker a script that leads there.
  set_target_properties(ejkernel PROPERTIES VERSION ${PROJECT_VERSION_MAJOR})
  set(EJK_NAMELINK NAMELINK_SKIP)
  file(WRITE ${PROJECT_BINARY_DIR}/linker_script/libejkernel.so "INPUT(libejkernel.so.${PROJECT_VERSION_MAJOR})\n")
  install(FILES ${PROJECT_BINARY_DIR}/linker_script/libejkernel.so DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(TARGETS ejkernel EXPORT ejkernelTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ${EJK_NAMELINK} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET ejk)
  install(TARGETS ejk RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# Tuned configs of named devices, found beside the library (ejkernel/core/installation.h): here and where it is built.
file(GLOB tables CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tables/*.ejk)
install(FILES ${tables} DESTINATION ${CMAKE_INSTALL_DATADIR}/ejkernel/tables)
foreach(table ${tables})  # unlike file(COPY), again when one changes
  cmake_path(GET table FILENAME name)
  configure_file(${table} ${PROJECT_BINARY_DIR}/share/ejkernel/tables/${name} COPYONLY)
endforeach()

# Kernels for the GPUs that EJK_PROGRAMS names, compiled here: who installs them waits for no compiler, and needs none. The
# problems are the operations' named ones, and attention's grid; of the latter and of mean_pooling, for which tables/ has
# configs that were tuned, all that the tuner may try. The store that they come from stays, so that a later build compiles
# those alone whose sources changed.
if(EJK_PROGRAMS AND NOT TARGET ejk)
  message(FATAL_ERROR "EJK_PROGRAMS is ${EJK_PROGRAMS}, which ejk compiles: set EJK_BUILD_TOOLS, or leave it out")
endif()
add_custom_target(ejkernel_programs ALL)
foreach(architecture ${EJK_PROGRAMS})
  set(programs ${PROJECT_BINARY_DIR}/share/ejkernel/tables/programs_${architecture}.ejk)
  set(grid ${PROJECT_SOURCE_DIR}/benchmarks/grids/cuda_attention.jsonl)
  set(ejk ${CMAKE_COMMAND} -E env EJKERNEL_CACHE_DIR=${PROJECT_BINARY_DIR}/programs/${architecture}
          EJKERNEL_CACHE_QUOTA_MB=0 EJKERNEL_CONFIG_PATH=none $<TARGET_FILE:ejk>)
  add_custom_command(
    OUTPUT ${programs}
    COMMAND ${ejk} compile --arch ${architecture}
    COMMAND ${ejk} compile --arch ${architecture} --recorded ${grid} --candidates
    COMMAND ${ejk} compile mean_pooling --arch ${architecture} --candidates
    COMMAND ${ejk} compile mean_pooling_backward --arch ${architecture} --candidates
    COMMAND ${CMAKE_COMMAND} -E rm -f ${programs}
    COMMAND ${ejk} cache export ${programs} --programs
    DEPENDS ejk ${grid}
    COMMENT "Compiling CUDA kernels for ${architecture}"
    VERBATIM)
  target_sources(ejkernel_programs PRIVATE ${programs})
  install(FILES ${programs} DESTINATION ${CMAKE_INSTALL_DATADIR}/ejkernel/tables)
endforeach()

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/ejkernel)
install(EXPORT ejkernelTargets NAMESPACE ejkernel:: DESTINATION ${package_folder})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/ejkernelConfig.cmake.in ejkernelConfig.cmake
                              INSTALL_DESTINATION ${package_folder} NO_SET_AND_CHECK_MACRO)
# Before 1.0 every minor version may change the interface.
write_basic_package_version_file(ejkernelConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ejkernelConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/ejkernelConfigVersion.cmake
        DESTINATION ${package_folder})

# A shared libejkernel carries all it needs; a static one asks its user's linker for Highway and the C++ runtime.
if(BUILD_SHARED_LIBS)
  set(EJK_PC_STATIC)
else()
  set(EJK_PC_STATIC "Requires: libhwy\nLibs.private: -lstdc++ -lm -ldl -pthread\n")
endif()
file(RELATIVE_PATH EJK_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" EJK_PC_PREFIX "${EJK_PC_PREFIX}")
foreach(folder LIBDIR INCLUDEDIR)
  set(EJK_PC_${folder} "\${prefix}/${CMAKE_INSTALL_${folder}}")
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${folder}}")
    set(EJK_PC_${folder} "${CMAKE_INSTALL_${folder}}")
  endif()
endforeach()
configure_file(${PROJECT_SOURCE_DIR}/cmake/ejkernel.pc.in ejkernel.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ejkernel.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# What the library holds of others' code (headers and templates compiled in), as a software bill of materials.
set(EJK_SBOM_HIGHWAY ${hwy_VERSION})
set(EJK_SBOM_FMT ${fmt_VERSION})
set(EJK_SBOM_JSON ${nlohmann_json_VERSION})
set(EJK_SBOM_XXHASH ${EJK_XXHASH_VERSION})
foreach(name HIGHWAY FMT JSON XXHASH)
  if(NOT EJK_SBOM_${name})
    set(EJK_SBOM_${name} NOASSERTION)  # a parent project brought it and did not say
  endif()
endforeach()
configure_file(${PROJECT_SOURCE_DIR}/cmake/ejkernel.spdx.json.in ejkernel.spdx.json @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ejkernel.spdx.json DESTINATION ${CMAKE_INSTALL_DOCDIR})
