#include "ejkernel/runtime/config_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>

#include "ejkernel/core/dims.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/version.h"
#include "ejkernel/platform/cuda/cubin_store.h"
#include "ejkernel/platform/cuda/driver.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/json.h"
#include "ejkernel/runtime/kernel_sources.h"
#include "ejkernel/runtime/problem.h"

namespace ejk {
namespace {

using Json = nlohmann::ordered_json;

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::optional<ConfigValues> parsed(const std::string& group, const Record& record) try {
  return config_values_from_json(group, record.value);
} catch (const InvalidArgument&) {
  return std::nullopt;
}

/// What `put_stored_config` wrote about a config, and an import after it, in a line. Whoever made the record may have
/// written anything.
std::string told(const std::string& provenance) try {
  const Json json = Json::parse(provenance);
  const double took = json.at("microseconds"), before = json.at("heuristic_microseconds");
  std::string how = fmt::format("{} {}", json.at("how").get<std::string>(), json.at("when").get<std::string>());
  if (json.contains("imported")) how += fmt::format(", imported {}", json.at("imported").get<std::string>());
  const auto is_sound = [](char c) { return c >= ' ' && c <= '~'; };
  if (how.size() > 96 || !std::all_of(how.begin(), how.end(), is_sound)) return "";
  return fmt::format("{}: {:.4g} us, {:.3f} of the heuristic's time", how, took, took / before);
} catch (const Json::exception&) {
  return "";
}

/// The seconds that a search took whose budget ended before anything beat the heuristic's config; nullopt: it is of
/// another.
std::optional<double> unfinished_after(const Record& record) try {
  const Json json = Json::parse(record.provenance);
  if (json.at("how") != kUnfinished) return std::nullopt;
  return json.at("search_seconds").get<double>();
} catch (const Json::exception&) {
  return std::nullopt;
}

// ---- how near two records' keys are ----

constexpr std::string_view kFor = " for ";
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The text of a record's key without the digest at its end.
std::string_view without_digest(std::string_view text) { return text.substr(0, text.rfind(" (")); }

/// "q_len<=4096" into name and number; nullopt for a word that names no bucket.
struct Length {
  std::string_view name;
  double value;
};
std::optional<Length> length_of(std::string_view word) {
  const size_t sign = word.find_first_of("<=");
  if (sign == std::string_view::npos || !is_bucketed(word.substr(0, sign))) return std::nullopt;
  const std::string_view digits = word.substr(word.find('=') + 1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return Length{word.substr(0, sign), static_cast<double>(std::max<int64_t>(value, 1))};
}

std::string_view next_word(std::string_view& text, char separator = ' ') {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

/// Powers of two between their lengths; infinite when anything else differs.
double distance(std::string_view a, std::string_view b) {
  double apart = 0;
  while (!a.empty() || !b.empty()) {
    const std::string_view x = next_word(a), y = next_word(b);
    if (x == y) continue;
    const std::optional<Length> p = length_of(x), q = length_of(y);
    if (!p || !q || p->name != q->name) return kInfinity;
    apart += std::abs(std::log2(p->value / q->value));
  }
  return apart;
}

/// Between devices: 0 for the same, 1 for another of its kind and architecture.
double distance_of_devices(std::string_view a, std::string_view b) {
  if (a == b) return 0;
  const std::string_view kind_a = next_word(a, '|'), kind_b = next_word(b, '|');
  next_word(a, '|'), next_word(b, '|');  // products
  return kind_a == kind_b && next_word(a, '|') == next_word(b, '|') ? 1 : kInfinity;
}

double distance(const RecordKey& a, const RecordKey& b) {
  return distance_of_devices(a.environment, b.environment) + distance(without_digest(a.text), without_digest(b.text));
}

/// With what a key's text begins; the problem follows.
std::string kernel_text(const KernelInfo& kernel) {
  const std::string_view mark = kernel.backend == Backend::gpu ? "" : mark_of_this_build();
  return fmt::format("config of {}@{}{} for ", kernel.name, revision_of(kernel), mark);
}

/// Of the compiler for GPUs; empty where there is no GPU, and so no kernel of it was measured.
std::string nvrtc_version() try {
  return cuda::num_devices() > 0 ? cuda::compiler_version() : "";
} catch (const Unsupported&) {
  return "";
}

}  // namespace

std::string_view mark_of_this_build() {
#if defined(NDEBUG) && defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  return "";
#else
  return ", a checked build,";
#endif
}

RecordKey config_record_key(const ChooseRequest& request, const KernelInfo& kernel) {
  return config_record_key(request, kernel, device_fingerprint(request.device));
}

RecordKey config_record_key(const ChooseRequest& request, const KernelInfo& kernel, const std::string& device) {
  const Operation& op = *request.operation->declaration;
  const Digest digest = digest_of(problem_key(op, request.inputs, *request.params, *request.checked, device));
  return {.environment = device,
          .group = std::string(op.name),
          .text = fmt::format("{}{} ({})", kernel_text(kernel),
                              problem_text(op, request.inputs, *request.params, *request.checked), to_string(digest))};
}

bool is_config_key(const RecordKey& key) { return key.text.starts_with("config of "); }

bool is_of_this_build(const RecordKey& key) {
  const KernelRegistry& registry = KernelRegistry::instance();
  const std::vector<std::string> names = registry.names();
  if (std::find(names.begin(), names.end(), key.group) == names.end()) return false;
  const auto operation = registry.find(key.group);
  const std::string problem = fmt::format("{}@{} ", operation->declaration->name, operation->declaration->revision);
  return std::any_of(operation->kernels.begin(), operation->kernels.end(),
                     [&](const auto& kernel) { return key.text.starts_with(kernel_text(*kernel) + problem); });
}

bool is_unfinished(const Record& record) { return unfinished_after(record).has_value(); }

std::optional<StoredConfig> find_stored_config(const RecordKey& key) {
  const std::optional<Record> record = store().find(key, [](const Record& found) { return !is_unfinished(found); });
  const std::optional<ConfigValues> values = record ? parsed(key.group, *record) : std::nullopt;
  if (!values) return std::nullopt;
  return StoredConfig{*values, told(record->provenance), unfinished_after(*record)};
}

std::optional<NearConfig> find_near_config(const RecordKey& key) {
  std::optional<NearConfig> nearest;
  double least = std::log2(kNearFactor);
  const auto look_at = [&](const StoredRecord& there) {
    if (there.state != RecordState::good || there.key.group != key.group || there.key == key) return;
    const double apart = distance(there.key, key);
    if (apart > least || (nearest && apart == least)) return;
    const std::optional<ConfigValues> values = parsed(there.key.group, there.record);
    if (!values || values->empty()) return;
    least = apart;
    const std::string problem(without_digest(there.key.text));
    nearest = {*values, problem.substr(std::min(problem.size(), problem.find(kFor) + kFor.size()))};
  };
  store().for_each_found(look_at, key.group);  // compiled kernels stand in other groups, and are large
  return nearest;
}

bool put_stored_config(const RecordKey& key, const ConfigValues& values, const ConfigProvenance& provenance) {
  Json config = Json::object();
  for (const auto& [field, value] : values) config[field] = value;
  Json how = {{"how", provenance.how},
              {"when", now_utc()},
              {"library", kVersion},
              {"compiler", kCompiler},
              {"microseconds", provenance.seconds * 1e6},
              {"heuristic_microseconds", provenance.heuristic_seconds * 1e6},
              {"ratio_high", provenance.ratio_high},
              {"samples", provenance.num_samples},
              {"candidates", provenance.num_candidates},
              {"search_seconds", provenance.search_seconds}};
  if (!provenance.transferred_from.empty()) how["transferred_from"] = provenance.transferred_from;
  if (key.environment.starts_with("cuda")) {
    how["driver"] = cuda::driver_report().version;
    how["nvrtc"] = nvrtc_version();
  }
  return store().put(key, {.value = config.dump(), .provenance = how.dump()});
}

}  // namespace ejk
