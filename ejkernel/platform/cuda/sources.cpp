#include "ejkernel/platform/cuda/sources.h"

#include <fmt/format.h>

#include <algorithm>

#include "ejkernel/core/error.h"

namespace ejk::cuda {
namespace {

const Source& find_source(std::string_view path, std::string_view wanted_by) {
  const auto all = sources();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Source& source) { return source.path == path; });
  if (found == all.end())
    throw Internal(fmt::format("cuda: the library carries no device source {}, which {} asks for", path, wanted_by));
  return *found;
}

/// Calls visit(path) for each #include "path" at the beginning of a line; device code has no other kind.
template <class Visit>
void for_each_include(std::string_view text, Visit visit) {
  constexpr std::string_view kInclude = "#include \"";
  for (size_t at = text.find(kInclude); at != std::string_view::npos; at = text.find(kInclude, at + 1)) {
    if (at > 0 && text[at - 1] != '\n') continue;
    const std::string_view rest = text.substr(at + kInclude.size());
    visit(rest.substr(0, rest.find('"')));
  }
}

}  // namespace

std::vector<Source> reachable_sources(std::string_view path) {
  std::vector<Source> found = {find_source(path, "a kernel")};
  for (size_t i = 0; i < found.size(); ++i) {
    const Source from = found[i];  // a copy: the list grows
    for_each_include(from.text, [&](std::string_view include) {
      const auto is_include = [&](const Source& source) { return source.path == include; };
      if (std::none_of(found.begin(), found.end(), is_include)) found.push_back(find_source(include, from.path));
    });
  }
  return found;
}

Digest digest_of(std::span<const Source> sources) {
  std::string all;
  for (const Source& source : sources) all += fmt::format("{} {}\n{}", source.path, source.text.size(), source.text);
  return ejk::digest_of(std::string_view(all));
}

}  // namespace ejk::cuda
