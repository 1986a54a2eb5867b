# Run by ctest: lists a GoogleTest program's tests and makes ctest entries of them.
#
# A plain test is one entry. The instances of a parametrised test (there are thousands: every kernel with every case)
# share entries of at most 64, because starting a process for each would take longer than the tests themselves; a
# failure still names its instance. Under a sanitizer, where a start takes 0.1 s, so do all tests of a suite. Suites whose
# name ends in `Long` carry the label `long` (./dev test --all).

set(instances_per_entry 64)

# An entry's pattern must not bring back what EJK_TEST_FILTER leaves out.
string(REGEX MATCH "-.*$" left_out "${EJK_TEST_FILTER}")

# Entries for one test: PATTERN is what --gtest_filter takes, COUNT how many instances it stands for.
function(ejk_add_entries suite pattern count)
  math(EXPR shards "(${count} + ${instances_per_entry} - 1) / ${instances_per_entry}")
  foreach(shard RANGE 1 ${shards})
    set(name "${EJK_TEST_PREFIX}${pattern}")
    math(EXPR index "${shard} - 1")
    if(shards GREATER 1)
      string(APPEND name " (${shard} of ${shards})")
    endif()
    add_test("${name}" ${EJK_TEST_COMMAND} "--gtest_filter=${pattern}${left_out}")
    set_tests_properties("${name}" PROPERTIES TIMEOUT 600 WORKING_DIRECTORY "${EJK_TEST_FOLDER}"
                         ENVIRONMENT "GTEST_TOTAL_SHARDS=${shards};GTEST_SHARD_INDEX=${index}")
    if(count EQUAL 1)
      set_tests_properties("${name}" PROPERTIES SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
    endif()
    if(suite MATCHES "Long(/[0-9]+)?$")
      set_tests_properties("${name}" PROPERTIES LABELS long)
    endif()
  endforeach()
endfunction()

# ThreadSanitizer of GCC 12 cannot place its shadow memory when the kernel randomises more than 28 bits of an address.
if(EJK_TEST_SANITIZE MATCHES "thread")
  execute_process(COMMAND setarch --addr-no-randomize true RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
  if(result EQUAL 0)
    list(PREPEND EJK_TEST_COMMAND setarch --addr-no-randomize)
  endif()
endif()

execute_process(COMMAND ${EJK_TEST_COMMAND} --gtest_list_tests "--gtest_filter=${EJK_TEST_FILTER}"
                OUTPUT_VARIABLE listing RESULT_VARIABLE result ERROR_VARIABLE errors)
if(NOT result EQUAL 0)
  list(JOIN EJK_TEST_COMMAND " " command)
  message(FATAL_ERROR "ctest: could not list the tests of '${command}' (${result}): build first, or see why it fails.\n"
                      "${errors}")
endif()
string(REGEX REPLACE " *#[^\n]*" "" listing "${listing}")   # drops the values of parameters
string(REGEX REPLACE "\n" ";" listing "${listing}")

set(suite "")
set(pattern "")
set(count 0)
foreach(line IN LISTS listing)
  if(line MATCHES "^([^ ].*)\\.$")
    set(suite "${CMAKE_MATCH_1}")
  elseif(NOT "${suite}${line}" MATCHES "DISABLED_" AND line MATCHES "^  ([^/]+)(/?)")
    if(EJK_TEST_SANITIZE)
      set(next "${suite}.*")
    elseif(CMAKE_MATCH_2)
      set(next "${suite}.${CMAKE_MATCH_1}/*")
    else()
      set(next "${suite}.${CMAKE_MATCH_1}")
    endif()
    if(NOT next STREQUAL pattern)
      if(count GREATER 0)
        ejk_add_entries("${pattern_suite}" "${pattern}" ${count})
      endif()
      set(pattern "${next}")
      set(pattern_suite "${suite}")
      set(count 0)
    endif()
    math(EXPR count "${count} + 1")
  endif()
endforeach()
if(count GREATER 0)
  ejk_add_entries("${pattern_suite}" "${pattern}" ${count})
endif()
