// Configs and recorded calls as JSON, planned calls in programs, and values of environment variables.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "ejkernel/core/environment.h"
#include "ejkernel/runtime/json.h"
#include "ejkernel/runtime/planned_call.h"
#include "ejkernel/runtime/recorded.h"
#include "tools/fuzz/targets.h"

namespace ejk::fuzz {
namespace {

void run_config(const std::string& input) {
  const ConfigValues values = config_values_from_json("fuzz", input);
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [field, value] : values) json[field] = value;
  if (config_values_from_json("fuzz", json.dump()) != values)
    throw std::logic_error("a config that was read is written and read again as the same");
}

void run_recorded_call(const std::string& input) {
  const std::string line = to_json(invocation_from_json(input));
  if (to_json(invocation_from_json(line)) != line)
    throw std::logic_error("a call that was read is written and read again as the same");
}

void run_planned_calls(const std::string& input) {
  for (const PlannedCall& planned : planned_calls_in(input))
    if (to_json(invocation_from_json(to_json(planned.call))) != to_json(planned.call))
      throw std::logic_error("a call that was read is written and read again as the same");
}

/// The first byte says which variable has the rest as its value.
void run_environment(const std::string& input) {
  if (input.empty()) return;
  const auto variables = environment::variables();
  const environment::Variable& variable = variables[static_cast<unsigned char>(input[0]) % variables.size()];
  const std::string entry = input.substr(1);
  const char* const entries[] = {entry.c_str(), nullptr};
  for (const std::string& unknown : environment::unknown_names(entries))
    if (!unknown.starts_with("EJKERNEL_")) throw std::logic_error("another's variable is called unknown");
  environment::parse([&](const char* name) { return variable.name == name ? entry.c_str() : nullptr; });
}

}  // namespace

Target config_target() {
  return {.name = "config",
          .seeds = {R"({"block_q": 64, "block_k": 128, "bf16_dot": 2})", "{}", R"({"a": -9223372036854775808})",
                    R"({"a": 9223372036854775807, "a": 1})", R"({"a": 1.5})", R"({"a": [1, {"b": null}], "c": true})",
                    R"("text \u00e9 \ud83d\ude42 \n")", "[1e300, -0, 0.1]"},
          .words = {"{", "}", "[", "]", "\"", ":", ",", "null", "true", "false", "\\u", "\\ud83d", "1e9", "-",
                    "18446744073709551615", "\xef\xbb\xbf", "\xc3\xa9"},
          .run = run_config};
}

Target recorded_call_target() {
  return {.name = "recorded_call",
          .seeds =
              {R"({"operation":"mean_pooling","inputs":[{"name":"x","dtype":"f32","shape":[2,3,4]}]})",
               R"({"operation":"mean_pooling","device":"cpu","count":3,"seconds":0.5,"platform":"cpu","inputs":[)"
               R"({"name":"x","dtype":"f32","shape":[6,4],"strides":[8,1]},)"
               R"({"name":"cu_seqlens","dtype":"i32","shape":[3],"values":[0,2,6]}],"params":{}})",
               R"({"operation":"flash_attention","device":"cuda:1","inputs":[)"
               R"({"name":"query","dtype":"bf16","shape":[1,8,4,64]},{"name":"key","dtype":"bf16","shape":[1,8,2,64]},)"
               R"({"name":"value","dtype":"bf16","shape":[1,8,2,64]}],"params":{"causal":true,)"
               R"("sliding_window":[4,0],"softmax_scale":0.5}})"},
          .words = {"{",     "}",         "[",     "]",     "\"",      ":",
                    ",",     "null",      "true",  "-1",    "0",       "9223372036854775807",
                    "1e308", "name",      "dtype", "shape", "strides", "values",
                    "count", "operation", "f16",   "i64",   "kernel",  "backend"},
          .run = run_recorded_call};
}

Target planned_calls_target() {
  const std::string call =
      R"(call = "{\22version\22:1,\22label\22:\22l\22,\22config\22:{\22block_q\22:16},\22call\22:{\22operation\22:)"
      R"(\22mean_pooling\22,\22inputs\22:[{\22name\22:\22x\22,\22dtype\22:\22f32\22,\22shape\22:[2,3,4]}]}}")";
  const std::string nested =
      R"("{call = \"{\\22version\\22:1,\\22config\\22:{},\\22call\\22:{\\22operation\\22:\\22mean_pooling\\22,)"
      R"(\\22inputs\\22:[{\\22name\\22:\\22x\\22,\\22dtype\\22:\\22f32\\22,\\22shape\\22:[2,3,4]}]}}\"}")";
  return {.name = "planned_calls",
          .seeds = {call, call + " " + call, nested,
                    R"(backend_config="{\"version\":1,\"config\":{},\"call\":{},\"outputs\":[\"out\"]}")"},
          .words = {"\"", "\\22", "\\\"", "\\\\22", "{", "}", "[", "version", "label", "config", "call", "outputs",
                    "problem", "\\7B", "\\5C", "\\", ":", ",", "1"},
          .run = run_planned_calls};
}

Target environment_target() {
  const std::vector<std::string> values = {"cpu",        "auto",  "debug",      "4096",      "sync,guard,poison", "1",
                                           "heuristics", "60000", "/a/b:/c.so", "/a folder", "1048576",           "0"};
  Target target{.name = "environment", .seeds = {}, .words = values, .run = run_environment};
  for (size_t n = 0; n < environment::variables().size(); ++n)
    for (const std::string& value : values) target.seeds.push_back(static_cast<char>(n) + value);
  target.seeds.push_back(
      "\x01"
      "EJKERNEL_NO_SUCH_NAME=1");
  target.words.insert(target.words.end(), {":", ",", "/", "=", "EJKERNEL_", "-1", "99999999999999999999"});
  return target;
}

}  // namespace ejk::fuzz
