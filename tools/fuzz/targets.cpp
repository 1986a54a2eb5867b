#include "tools/fuzz/targets.h"

#include "ejkernel/core/validate.h"

namespace ejk::fuzz {

std::span<const Target> targets() {
  static const std::vector<Target> all = {record_target(),        archive_target(),       config_target(),
                                          recorded_call_target(), planned_calls_target(), environment_target(),
                                          command_line_target(),  call_target()};
  return all;
}

const Target& find_target(std::string_view name) {
  static const Target magic = magic_target();
  if (magic.name == name) return magic;
  std::string known;
  for (const Target& target : targets()) {
    if (target.name == name) return target;
    known += (known.empty() ? "" : ", ") + std::string(target.name);
  }
  throw_invalid("fuzz", "the target", "be one of those", name, "known: " + known);
}

}  // namespace ejk::fuzz
