# Writes OUTPUT, a C++ file with a digest of the sources behind each kernel: its .cpp, what that includes below ops/ and
# platform/, the .cpp beside each header reached, and the device sources named. LIST names the files among which those
# that make kernels are looked for. What lies in core/ and runtime/ calls kernels and does not make them faster or slower.

cmake_minimum_required(VERSION 3.25)

# reach(PATH): adds PATH, relative to ROOT, and everything behind it to `reached`.
function(reach path)
  if(path IN_LIST reached OR NOT EXISTS ${ROOT}/${path})
    return()
  endif()
  list(APPEND reached ${path})
  string(REGEX REPLACE "(_internal)?\\.h$" ".cpp" beside ${path})
  set(next ${beside})
  file(STRINGS ${ROOT}/${path} lines REGEX "\"ejkernel/(ops|platform)/[^\"]*\\.(h|cuh|cu)\"")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "\"(ejkernel/(ops|platform)/[^\"]*)\"" matched "${line}")
    list(APPEND next ${CMAKE_MATCH_1})
  endforeach()
  foreach(file IN LISTS next)
    reach(${file})
  endforeach()
  set(reached ${reached} PARENT_SCOPE)
endfunction()

file(STRINGS ${LIST} files)
set(entries "")
foreach(path IN LISTS files)
  file(STRINGS ${path} kernels REGEX "make_kernel<" LIMIT_COUNT 1)
  if(NOT kernels)
    continue()
  endif()
  file(RELATIVE_PATH file ${ROOT} ${path})
  set(reached "")
  reach(${file})
  list(SORT reached)
  set(all "")
  foreach(path IN LISTS reached)
    file(SHA256 ${ROOT}/${path} digest)
    string(APPEND all "${path} ${digest}\n")
  endforeach()
  string(SHA256 digest "${all}")
  string(SUBSTRING ${digest} 0 12 digest)
  string(APPEND entries "    {\"${file}\", \"${digest}\"},\n")
endforeach()
file(WRITE ${OUTPUT}.new "// Made by cmake/digest_sources.cmake.\n#include \"ejkernel/runtime/kernel_sources.h\"\n\n"
     "namespace ejk {\nnamespace {\n\nconstexpr KernelSources kAll[] = {\n${entries}};\n\n}  // namespace\n\n"
     "std::span<const KernelSources> kernel_sources() { return kAll; }\n\n}  // namespace ejk\n")
file(RENAME ${OUTPUT}.new ${OUTPUT})
