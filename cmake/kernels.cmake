# Device code travels inside the library as text and is compiled at run time (ejkernel/platform/cuda/sources.h).

# ejk_embed_device_sources(TARGET): every *.cu and *.cuh, and the headers that both halves of a kernel include.
function(ejk_embed_device_sources target)
  set(root ${PROJECT_SOURCE_DIR}/ejkernel)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS ${root}/*.cu ${root}/*.cuh ${root}/ops/*_config.h
                                            ${root}/ops/*_cuda_problem.h)
  list(SORT files)
  set(generated ${PROJECT_BINARY_DIR}/embedded_sources.cpp)
  # A list of its own, because a command line does not hold any number of files.
  set(list ${PROJECT_BINARY_DIR}/embedded_sources.txt)
  list(JOIN files "\n" lines)
  file(GENERATE OUTPUT ${list} CONTENT "${lines}\n")
  add_custom_command(
    OUTPUT ${generated}
    COMMAND ${CMAKE_COMMAND} -D ROOT=${PROJECT_SOURCE_DIR} -D LIST=${list} -D OUTPUT=${generated} -P
            ${PROJECT_SOURCE_DIR}/cmake/embed_sources.cmake
    DEPENDS ${files} ${list} ${PROJECT_SOURCE_DIR}/cmake/embed_sources.cmake
    COMMENT "Embedding device sources"
    VERBATIM)
  target_sources(${target} PRIVATE ${generated})
endfunction()

# ejk_digest_kernel_sources(TARGET): what records of tuned configs know a kernel's sources by
# (ejkernel/runtime/kernel_sources.h).
function(ejk_digest_kernel_sources target)
  set(root ${PROJECT_SOURCE_DIR}/ejkernel)
  file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${root}/ops/*.cpp)
  list(FILTER kernels EXCLUDE REGEX "_test\\.cpp$")
  file(GLOB_RECURSE files CONFIGURE_DEPENDS ${root}/ops/*.h ${root}/ops/*.cu ${root}/ops/*.cuh ${root}/platform/*)
  list(SORT kernels)
  set(generated ${PROJECT_BINARY_DIR}/kernel_sources.cpp)
  set(list ${PROJECT_BINARY_DIR}/kernel_sources.txt)
  list(JOIN kernels "\n" lines)
  file(GENERATE OUTPUT ${list} CONTENT "${lines}\n")
  add_custom_command(
    OUTPUT ${generated}
    COMMAND ${CMAKE_COMMAND} -D ROOT=${PROJECT_SOURCE_DIR} -D LIST=${list} -D OUTPUT=${generated} -P
            ${PROJECT_SOURCE_DIR}/cmake/digest_sources.cmake
    DEPENDS ${kernels} ${files} ${list} ${PROJECT_SOURCE_DIR}/cmake/digest_sources.cmake
    COMMENT "Digesting the kernels' sources"
    VERBATIM)
  target_sources(${target} PRIVATE ${generated})
endfunction()
