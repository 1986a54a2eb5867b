#include "ejkernel/platform/cuda/cubin_store.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <ctime>
#include <vector>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/version.h"
#include "ejkernel/platform/cuda/sources.h"

namespace ejk::cuda {
namespace {

/// In front of the lowered name and the cubin. Kernels with warnings are not kept: they would be told once and then
/// never again.
struct Head {
  int32_t registers, stack_bytes, spill_store_bytes, spill_load_bytes, shared_bytes;
  uint32_t name_bytes;
};

std::string encode(const Compiled& compiled) {
  const Report& report = compiled.report;
  const Head head = {report.registers,        report.stack_bytes,  report.spill_store_bytes,
                     report.spill_load_bytes, report.shared_bytes, static_cast<uint32_t>(compiled.lowered_name.size())};
  std::string value(sizeof(head), '\0');
  std::memcpy(value.data(), &head, sizeof(head));
  value += compiled.lowered_name;
  return value.append(reinterpret_cast<const char*>(compiled.cubin.data()), compiled.cubin.size());
}

// A key's text is six lines: the kind, what is compiled and how, and the compiler that made the code or the driver that
// takes it.
constexpr std::string_view kCompiledHere = "cubin", kCompiledAhead = "program", kDriver = "CUDA ";

RecordKey key_of(std::string_view kind, const ProgramSpec& spec, std::string_view architecture, std::string last) {
  return {.environment = std::string(architecture),
          .group = std::string(spec.file.substr(spec.file.rfind('/') + 1)),
          .text = fmt::format("{}\n{}\n{}\n{}\n{}\n{}", kind, to_string(digest_of(reachable_sources(spec.file))),
                              spec.file, spec.instance, fmt::join(compile_options(architecture), " "), last)};
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  lines.push_back(text);
  return lines;
}

bool is_carried(std::string_view file) {
  return std::ranges::any_of(sources(), [&](const Source& source) { return source.path == file; });
}

/// Empty without one.
std::string compiler_here() {
  try {
    return compiler_version();
  } catch (const Unsupported&) {
    return "";
  }
}

std::string when_and_by_whom(std::string_view compiler_version) {
  return fmt::format("compiled {:%Y-%m-%dT%H:%M:%SZ} by ejkernel {} with NVRTC {}", fmt::gmtime(std::time(nullptr)),
                     kVersion, compiler_version);
}

}  // namespace

RecordKey cubin_key(const ProgramSpec& spec, std::string_view architecture, std::string_view compiler_version) {
  return key_of(kCompiledHere, spec, architecture, fmt::format("NVRTC {}", compiler_version));
}

RecordKey ahead_key(const ProgramSpec& spec, std::string_view architecture, int cuda_major) {
  return key_of(kCompiledAhead, spec, architecture, fmt::format("{}{}", kDriver, cuda_major));
}

std::optional<RecordKey> ahead_key_of(const RecordKey& key) {
  const std::vector<std::string_view> lines = lines_of(key.text);
  if (lines.size() != 6 || !is_carried(lines[2])) return std::nullopt;
  const bool is_ahead = lines[0] == kCompiledAhead;
  const std::string version =
      is_ahead ? std::string(lines[5].substr(std::min(lines[5].size(), kDriver.size()))) : compiler_here();
  int major = 0;
  std::from_chars(version.data(), version.data() + version.size(), major);
  const ProgramSpec spec = {.file = lines[2], .instance = std::string(lines[3])};
  RecordKey ahead = ahead_key(spec, key.environment, major);
  // What the lines say is written again by the same hand: any difference is another build's, or no cubin's.
  const bool is_ours = key == (is_ahead ? ahead : cubin_key(spec, key.environment, version));
  return is_ours ? std::optional(std::move(ahead)) : std::nullopt;
}

std::string compiler_version() {
  const NvrtcFile* file = nvrtc_file();
  const RecordKey key = {.environment = "nvrtc", .group = "version", .text = file != nullptr ? file->identity : ""};
  if (file != nullptr)
    if (const auto record = store().find(key)) return record->value;
  const Nvrtc& loaded = nvrtc();
  std::string version = fmt::format("{}.{}", loaded.major, loaded.minor);
  store().put(key, {.value = version, .provenance = when_and_by_whom(version)});
  return version;
}

std::optional<Compiled> cubin_of(const Record& record) {
  std::string_view value = record.value;
  Head head;
  if (value.size() < sizeof(head)) return std::nullopt;
  std::memcpy(&head, value.data(), sizeof(head));
  value.remove_prefix(sizeof(head));
  if (head.name_bytes > value.size()) return std::nullopt;
  Compiled compiled;
  compiled.lowered_name = value.substr(0, head.name_bytes);
  value.remove_prefix(head.name_bytes);
  compiled.cubin.resize(value.size());
  std::memcpy(compiled.cubin.data(), value.data(), value.size());
  compiled.report.registers = head.registers;
  compiled.report.stack_bytes = head.stack_bytes;
  compiled.report.spill_store_bytes = head.spill_store_bytes;
  compiled.report.spill_load_bytes = head.spill_load_bytes;
  compiled.report.shared_bytes = head.shared_bytes;
  return compiled;
}

std::optional<Compiled> find_cubin(const RecordKey& key) {
  const auto record = store().find(key);
  return record ? cubin_of(*record) : std::nullopt;
}

std::optional<Compiled> find_compiled_ahead(const ProgramSpec& spec, std::string_view architecture) {
  if (!environment::nvrtc().empty()) return std::nullopt;
  for (const int major : usable_majors())
    if (auto compiled = find_cubin(ahead_key(spec, architecture, major))) return compiled;
  return std::nullopt;
}

void keep_cubin(const RecordKey& key, const Compiled& compiled, std::string_view compiler_version) {
  if (!compiled.report.warnings.empty()) return;
  store().put(key, {.value = encode(compiled),
                    .provenance = fmt::format("{} in {:.3f} s", when_and_by_whom(compiler_version), compiled.seconds)});
}

}  // namespace ejk::cuda
