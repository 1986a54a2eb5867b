#include "ejkernel/runtime/config_store.h"

#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "ejkernel/core/error.h"
#include "ejkernel/core/version.h"
#include "ejkernel/platform/cuda/driver.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/json.h"
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

}  // namespace

RecordKey config_record_key(const ChooseRequest& request, const KernelInfo& kernel) {
  const Operation& op = *request.operation->declaration;
  const std::string& device = device_fingerprint(request.device);
  const Digest digest = digest_of(problem_key(op, request.inputs, *request.params, *request.checked, device));
  return {.environment = device,
          .group = std::string(op.name),
          .text = fmt::format("config of {}@{} for {} ({})", kernel.name, kernel.revision,
                              problem_text(op, request.inputs, *request.params, *request.checked), to_string(digest))};
}

std::optional<ConfigValues> find_stored_config(const RecordKey& key) {
  const std::optional<Record> record = store().find(key);
  if (!record) return std::nullopt;
  try {
    return config_values_from_json(key.group, record->value);
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
}

bool put_stored_config(const RecordKey& key, const ConfigValues& values, const ConfigProvenance& provenance) {
  Json config = Json::object();
  for (const auto& [field, value] : values) config[field] = value;
  Json how = {{"how", provenance.how},
              {"when", now_utc()},
              {"library", kVersion},
              {"microseconds", provenance.seconds * 1e6},
              {"heuristic_microseconds", provenance.heuristic_seconds * 1e6},
              {"ratio_high", provenance.ratio_high},
              {"samples", provenance.num_samples},
              {"candidates", provenance.num_candidates},
              {"search_seconds", provenance.search_seconds}};
  if (key.environment.starts_with("cuda")) how["driver"] = cuda::driver_report().version;
  return store().put(key, {.value = config.dump(), .provenance = how.dump()});
}

}  // namespace ejk
