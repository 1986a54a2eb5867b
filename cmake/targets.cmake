# How this project makes its targets: which files belong to one, and the flags all of them share.

# The flags live on our own targets, never in CMAKE_CXX_FLAGS, so that a parent project keeps its own.
add_library(ejkernel_flags INTERFACE)
target_compile_features(ejkernel_flags INTERFACE cxx_std_20)
# No contraction: a*b+c means the same on every instruction set and compiler; kernels ask for fused steps by name.
target_compile_options(ejkernel_flags INTERFACE -ffp-contract=off)
# Files are called by their paths in the tree, wherever that lies.
target_compile_options(ejkernel_flags INTERFACE -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 warns of overflows in byte loops that it vectorised itself, where there are none.
  target_compile_options(ejkernel_flags INTERFACE -Wno-stringop-overflow)
endif()
if(EJK_STRICT)
  target_compile_options(ejkernel_flags INTERFACE -Wall -Wextra -Wconversion -Werror)
endif()
if(EJK_SANITIZE)
  # Left out is what AddressSanitizer finds itself, and of the harness and the tests what costs a third of their compile
  # time: the library is what undefined behaviour is looked for in.
  set(sanitize -fsanitize=${EJK_SANITIZE} -fno-sanitize=null,object-size,vptr -fno-sanitize-recover=all
      $<$<BOOL:$<TARGET_PROPERTY:EJK_TEST_CODE>>:-fno-sanitize=alignment,pointer-overflow> -fno-omit-frame-pointer)
  target_compile_options(ejkernel_flags INTERFACE ${sanitize})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12 sees uninitialised std::optional and std::regex in instrumented code that has none.
    target_compile_options(ejkernel_flags INTERFACE -Wno-maybe-uninitialized)
  endif()
  target_link_options(ejkernel_flags INTERFACE ${sanitize})
endif()

file(RELATIVE_PATH EJK_LIBDIR_FROM_BINDIR ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})

# ejk_compile(TARGET): the include path and the shared flags.
function(ejk_compile target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:ejkernel_flags>)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
endfunction()

# ejk_link(TARGET): what the shared flags mean at link time; an undefined symbol is an error now, not at load.
function(ejk_link target)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:ejkernel_flags>)
  if(NOT EJK_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
endfunction()

# What an operation's folder gives to the harness instead of to the library (ejkernel/testing/operation.h).
set(EJK_HARNESS_FILES "_(cases|oracle|relations)\\.(cpp|h)$")

# ejk_sources(VARIABLE FOLDER...): every .cpp under ejkernel/FOLDER that is no test and not the harness's.
function(ejk_sources variable)
  set(globs ${ARGN})
  list(TRANSFORM globs REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/ejkernel/\\1/*.cpp")
  file(GLOB_RECURSE files CONFIGURE_DEPENDS ${globs})
  list(FILTER files EXCLUDE REGEX "_test\\.cpp$")
  list(FILTER files EXCLUDE REGEX "${EJK_HARNESS_FILES}")
  set(${variable} ${files} PARENT_SCOPE)
endfunction()

# ejk_harness_sources(VARIABLE): the harness itself, and what the operations' folders give to it.
function(ejk_harness_sources variable)
  ejk_sources(files testing)
  file(GLOB_RECURSE given CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/ejkernel/ops/*.cpp)
  list(FILTER given INCLUDE REGEX "${EJK_HARNESS_FILES}")
  set(${variable} ${files} ${given} PARENT_SCOPE)
endfunction()

# ejk_test_sources(VARIABLE FOLDER...): every *_test.cpp under ejkernel/FOLDER that EJK_TEST_FILES takes, but those that
# need a GPU; always the two that set up the program itself.
function(ejk_test_sources variable)
  set(globs ${ARGN})
  list(TRANSFORM globs REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/ejkernel/\\1/*_test.cpp")
  file(GLOB_RECURSE files CONFIGURE_DEPENDS ${globs})
  list(FILTER files EXCLUDE REGEX "_device_test\\.cpp$")
  list(FILTER files INCLUDE REGEX "${EJK_TEST_FILES}|/testing/(policy|allocation_counter)_test")
  set(${variable} ${files} PARENT_SCOPE)
endfunction()

# ejk_device_test_sources(VARIABLE): every *_device_test.cpp under ejkernel, which needs a GPU.
function(ejk_device_test_sources variable)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/ejkernel/*_device_test.cpp)
  set(${variable} ${files} PARENT_SCOPE)
endfunction()

# ejk_public_headers(VARIABLE): what users may include: core, runtime, ops and the three at the top.
function(ejk_public_headers variable)
  set(root ${PROJECT_SOURCE_DIR}/ejkernel)
  file(GLOB top CONFIGURE_DEPENDS ${root}/*.h)
  file(GLOB_RECURSE nested CONFIGURE_DEPENDS ${root}/core/*.h ${root}/runtime/*.h ${root}/ops/*.h)
  # Some belong to the harness, and *-inl.h, *_internal.h and *_config.h to kernels.
  list(FILTER nested EXCLUDE REGEX "${EJK_HARNESS_FILES}")
  list(FILTER nested EXCLUDE REGEX "(-inl|_internal|_config)\\.h$")
  set(${variable} ${top} ${nested} PARENT_SCOPE)
endfunction()

# ejk_program(NAME SOURCES folder-or-files... LINK libraries...): an executable in build/<preset>/bin.
function(ejk_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  set(files ${arg_SOURCES})
  if(NOT "${arg_SOURCES}" MATCHES "\\.cpp(;|$)")
    file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${arg_SOURCES}/*.cpp)
  endif()
  add_executable(${name} ${files})
  ejk_compile(${name})
  target_link_libraries(${name} PRIVATE ${arg_LINK} Threads::Threads ${CMAKE_DL_LIBS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# ejk_compile_quickly(PROGRAM HEADER...): for code that tests and tools are made of, most of whose compile time is these
# headers. In a checked build its own code has no -O1 either: what runs for long is the library's and the harness's.
function(ejk_compile_quickly program)
  target_precompile_headers(${program} PRIVATE ${ARGN})
  set_target_properties(${program} PROPERTIES EJK_TEST_CODE ON)
  if(NOT CMAKE_CROSSCOMPILING)
    target_compile_options(${program} PRIVATE $<$<CONFIG:Debug>:-O0>)
  endif()
endfunction()

# ejk_compile_around_loops(TARGET): what a sanitizer build spends on all but kernels, references, oracles and what those and
# the harness do for each element: no -O1, and the standard's headers once. That every file includes what it uses is for the
# other builds to say.
function(ejk_compile_around_loops target)
  if(NOT EJK_SANITIZE)
    return()
  endif()
  get_target_property(loops ${target} SOURCES)
  list(FILTER loops INCLUDE REGEX "/platform/cpu/|_(cpu|kernels|reference|oracle|problem)[^/]*\\.cpp|/core/(dtype|tensor)|/testing/(emulated_tiles|judge|mirror|problem)")
  set_source_files_properties(${loops} PROPERTIES COMPILE_OPTIONS -O1 SKIP_PRECOMPILE_HEADERS ON)
  target_compile_options(${target} PRIVATE -O0)
  target_precompile_headers(${target} PRIVATE <algorithm> <array> <atomic> <cmath> <functional> <memory> <mutex> <numeric>
                            <optional> <ostream> <span> <string> <string_view> <unordered_map> <utility> <variant> <vector>
                            <fmt/format.h>)
endfunction()

# ejk_test_plugins(PROGRAM FOLDER): every .cpp in it is a plug-in of its own, build/<preset>/plugins/<name>.so.
function(ejk_test_plugins program folder)
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cpp)
  if(NOT TARGET nvtx)
    list(FILTER files EXCLUDE REGEX "/nvtx_")
  endif()
  foreach(file ${files})
    get_filename_component(name ${file} NAME_WE)
    add_library(plugin_${name} MODULE ${file})
    ejk_compile(plugin_${name})
    target_link_libraries(plugin_${name} PRIVATE ejkernel)
    set_target_properties(plugin_${name} PROPERTIES PREFIX "" OUTPUT_NAME ${name} CXX_VISIBILITY_PRESET hidden
                                                    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/plugins)
    add_dependencies(${program} plugin_${name})
  endforeach()
endfunction()

# ejk_discover_tests(PROGRAM): ctest asks the program for its tests when it starts (cmake/discover_tests.cmake).
# On a cross build each test runs once per entry of EJK_EMULATED_CPUS ("name=cpu"), in the emulator.
function(ejk_discover_tests program)
  set(variants "native=")
  if(EJK_EMULATED_CPUS)
    set(variants ${EJK_EMULATED_CPUS})
  endif()
  get_filename_component(preset ${PROJECT_BINARY_DIR} NAME)
  foreach(variant ${variants})
    string(REGEX MATCH "^([^=]+)=(.*)$" matched ${variant})
    set(file ${PROJECT_BINARY_DIR}/${program}_${CMAKE_MATCH_1}_ctest.cmake)
    set(prefix ${preset})
    if(CMAKE_MATCH_2)
      set(emulator ${CMAKE_CROSSCOMPILING_EMULATOR} -cpu ${CMAKE_MATCH_2})
      string(APPEND prefix ".${CMAKE_MATCH_1}")
    endif()
    file(GENERATE OUTPUT ${file} CONTENT
         "set(EJK_TEST_COMMAND \"${emulator};$<TARGET_FILE:${program}>\")
set(EJK_TEST_PREFIX \"${prefix}.\")
set(EJK_TEST_FILTER \"${EJK_TEST_FILTER}\")
set(EJK_TEST_SANITIZE \"${EJK_SANITIZE}\")
set(EJK_TEST_FOLDER \"${PROJECT_SOURCE_DIR}\")
include(\"${PROJECT_SOURCE_DIR}/cmake/discover_tests.cmake\")
")
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${file})
  endforeach()
endfunction()

# ejk_python_tests(FOLDER): its test_*.py in each Python environment that `./dev setup python` made, in few processes, which
# share what they import and compile. CI runs all of them in the newest environment; in the oldest every function, with
# each value of its parameters once (tests/python/conftest.py), and of the platform xla's numbers those of each operation.
# All of them there are labelled `long`, and so are torch's, in the environment of `./dev setup peers`.
function(ejk_python_tests folder)
  file(GLOB all CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/test_*.py)
  set(files ${all})
  foreach(group xla transformations)
    set(${group} ${files})
    list(FILTER ${group} INCLUDE REGEX "/test_${group}")
    list(FILTER files EXCLUDE REGEX "/test_${group}")
  endforeach()
  ejk_python_test(python/newest newest.package ${files})
  ejk_python_test(python/newest newest.transformations ${transformations})
  ejk_python_test(python/newest newest.xla ${xla})
  ejk_python_test(python/oldest oldest.each_once ${all} -k "not test_xla or equals_the_reference or traces")
  ejk_python_test(python/oldest oldest.all ${all})
  ejk_python_test(peers torch ${all} -k torch)
endfunction()

# ejk_python_test(ENVIRONMENT NAME ARGS...): one test of ctest, if that environment is in .deps.
function(ejk_python_test environment name)
  set(python ${PROJECT_SOURCE_DIR}/.deps/${environment}/bin/python)
  if(NOT EXISTS ${python})
    return()
  endif()
  get_filename_component(preset ${PROJECT_BINARY_DIR} NAME)
  set(part all)
  if(name STREQUAL "oldest.each_once")
    set(part each_once)
  endif()
  set(test ${preset}.python_${name})
  add_test(NAME ${test} COMMAND ${python} -m pytest -q ${ARGN} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # The same as in verb_pytest of ./dev. Programs are small: most of the time is XLA's, which optimises less here and keeps
  # what it compiled: the other tests and the next run find it by the program's text, XLA's version and the flags.
  set_tests_properties(${test} PROPERTIES TIMEOUT 900 ENVIRONMENT
    "EJKERNEL_TEST_PART=${part};PYTHONPATH=${PROJECT_SOURCE_DIR}/python;EJKERNEL_LIBRARY=$<TARGET_FILE:ejkernel>;\
EJKERNEL_AUTOTUNE_POLICY=heuristics;EJKERNEL_CONFIG_PATH=none;EJKERNEL_CACHE_DIR=${PROJECT_BINARY_DIR}/python_cache;\
JAX_PLATFORMS=cpu;XLA_FLAGS=--xla_backend_optimization_level=0;JAX_COMPILATION_CACHE_DIR=${PROJECT_BINARY_DIR}/xla_cache;\
JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0;JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1")
  if(name MATCHES "^(oldest.all|torch)$")
    set_tests_properties(${test} PROPERTIES LABELS long)
  endif()
endfunction()

# ejk_example_test(EXAMPLE [ARGUMENT...]): the example runs, and exits with 1 where its answers are not what they must be.
function(ejk_example_test example)
  get_filename_component(preset ${PROJECT_BINARY_DIR} NAME)
  add_test(NAME ${preset}.example.${example} COMMAND ${example} ${ARGN})
  set_tests_properties(${preset}.example.${example} PROPERTIES TIMEOUT 60 ENVIRONMENT "EJKERNEL_CONFIG_PATH=none")
endfunction()

# ejk_model_test(EXAMPLE PIN FILE [LABEL]): the same on its real model, which `./dev setup` fetched, against golden.json.
function(ejk_model_test example pin file)
  set(model ${PROJECT_SOURCE_DIR}/.deps/models/${EJK_PIN_${pin}_NAME})
  if(EXISTS ${model}/${file})
    ejk_example_test(${example} ${model} ${PROJECT_SOURCE_DIR}/examples/${example})
    get_filename_component(preset ${PROJECT_BINARY_DIR} NAME)
    set_tests_properties(${preset}.example.${example} PROPERTIES LABELS "${ARGN}")
  endif()
endfunction()
