# Writes the files that LIST names into one C++ file of raw strings, OUTPUT, under their paths below ROOT.
file(STRINGS ${LIST} files)
set(entries "")
set(total 0)
foreach(file IN LISTS files)
  file(SIZE ${file} size)
  math(EXPR total "${total} + ${size}")
endforeach()
if(total GREATER 3000000)
  message(FATAL_ERROR "ejkernel: the device sources take ${total} bytes; at most 3,000,000 travel with the library")
endif()
file(WRITE ${OUTPUT}.new "// Made by cmake/embed_sources.cmake.\n"
     "#include <initializer_list>\n\n#include \"ejkernel/platform/cuda/sources.h\"\n\n"
     "namespace ejk::cuda {\nnamespace {\n\nusing namespace std::string_view_literals;\n\n"
     "constexpr std::initializer_list<Source> kSources = {\n")
foreach(file IN LISTS files)
  file(RELATIVE_PATH path ${ROOT} ${file})
  file(READ ${file} text)
  file(APPEND ${OUTPUT}.new "    {\"${path}\"sv, R\"ejk_source(${text})ejk_source\"sv},\n")
endforeach()
file(APPEND ${OUTPUT}.new "};\n\n}  // namespace\n\n"
     "std::span<const Source> sources() { return {kSources.begin(), kSources.size()}; }\n\n}  // namespace ejk::cuda\n")
file(RENAME ${OUTPUT}.new ${OUTPUT})
