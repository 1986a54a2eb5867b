#include "tools/ejk/call_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/registry.h"

namespace ejk::tool {
namespace {

bool is_param(const Operation& op, std::string_view name) {
  return std::any_of(op.params.begin(), op.params.end(), [&](const ParamField& f) { return f.name == name; });
}

std::string placeholder_of(const ParamField& field) {
  if (!field.choices.empty()) return fmt::format("{}", fmt::join(field.choices, "|"));
  switch (field.type) {
    case ParamType::integer:
      return "INT";
    case ParamType::real:
      return "NUMBER";
    case ParamType::integers:
      return "INT[,INT]";
    default:
      return "TEXT";
  }
}

/// "query, key, ...": the inputs that have this dimension.
std::string users_of(const Operation& op, std::string_view dim) {
  std::string users;
  int count = 0;
  for (const TensorField& field : op.inputs) {
    const bool has = std::any_of(field.contract.begin(), field.contract.end(), [&](const Alternative& alternative) {
      return std::any_of(alternative.dims.begin(), alternative.dims.begin() + alternative.rank,
                         [&](const Dim& d) { return d.name == dim; });
    });
    if (!has) continue;
    if (++count > 3) return users + ", ...";
    users += fmt::format("{}{}", users.empty() ? "" : ", ", field.name);
  }
  return users;
}

/// The dimensions that no parameter says.
std::vector<std::string> free_dims(const Operation& op) {
  std::vector<std::string> names = dim_names(op, std::nullopt);
  std::erase_if(names, [&](const std::string& name) { return is_param(op, name); });
  return names;
}

int64_t parse_extent(std::string_view argument, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    throw_invalid("ejk", argument, "be an extent of at least 0", fmt::format("'{}'", text), "write it in digits");
  return value;
}

void declare_problem(Options& options, const Operation& op, CallFlags& flags, std::vector<std::string>* cases) {
  options.group("Problem");
  if (cases != nullptr)
    options.values("case", *cases, "NAME", "a named problem (repeat for more)");
  else
    options.value("case", flags.case_name, "NAME", "a named problem; parameters may be changed");
  if (!op.forms.empty())
    options.value("form", flags.form, fmt::format("{}", fmt::join(op.forms, "|")),
                  "default: the one that the given dimensions belong to");
  options.value("dtype", flags.dtype, "DTYPE", "of every input that may have it (default: f32)");
  options.values("input", flags.inputs, "NAME[=DTYPE[SHAPE]]", "give an optional input");
  options.value("seed", flags.seed, "N", "of random data (default: 0)");
  options.values("shape", flags.shapes, "NAME=N[,NAME=N]", "dimensions, those below, in one word");
  for (const std::string& name : free_dims(op))
    options.value(
        name, [&flags, name](const std::string& text) { flags.dims[name] = parse_extent("--" + name, text); }, "N",
        "of " + users_of(op, name));
  options.group("Parameters");
  for (const ParamField& field : op.params) {
    const std::string name(field.name), doc(field.doc);
    if (field.type == ParamType::boolean)
      options.flag(
          name, [&flags, name](bool on) { flags.params.emplace_back(name, on ? "true" : "false"); }, doc);
    else
      options.value(
          name, [&flags, name](const std::string& text) { flags.params.emplace_back(name, text); },
          placeholder_of(field), doc);
  }
}

template <class E>
E parse_name(std::string_view flag, std::string_view text, int count) {
  std::string known;
  for (int i = 0; i < count; ++i) {
    if (name(static_cast<E>(i)) == text) return static_cast<E>(i);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", name(static_cast<E>(i)));
  }
  throw_invalid("ejk", flag, fmt::format("be one of {}", known), fmt::format("'{}'", text), "see --help");
}

}  // namespace

Device parse_device(const std::string& text) {
  if (const std::optional<Device> device = ejk::parse_device(text)) return *device;
  throw_invalid("ejk", "--device", "be cpu, cuda or cuda:N", fmt::format("'{}'", text), "for example cuda:0");
}

void declare_device(Options& options, Device& device) {
  options.value(
      "device", [&device](const std::string& text) { device = parse_device(text); }, "cpu|cuda:N",
      "where it runs (default: cpu)");
}

void declare_choice(Options& options, CallFlags& flags) {
  options.group("Choice");
  declare_device(options, flags.device);
  options.value("platform", flags.platform, "NAME", "a platform: works or fails, never falls back")
      .value("kernel", flags.kernel, "NAME", "a kernel by name")
      .values("config", flags.config, "FIELD=VALUE", "a value of the kernel's config (repeat for more)")
      .value("policy", flags.policy, "autotune|heuristics|cached",
             "which tiers may answer; cached: only what is known already");
}

void declare_operations(Options& verb, CallFlags& flags, std::vector<std::string>* cases) {
  const KernelRegistry& registry = KernelRegistry::instance();
  for (const std::string& name : registry.names()) {
    const Operation* op = registry.find(name)->declaration;
    const std::string forward = forward_of(name);
    const bool backward = !forward.empty();
    if (backward) op = registry.find(forward)->declaration;
    Options options = verb.command(name, std::string(registry.find(name)->declaration->summary));
    options.on_given([&flags, op, backward] {
      flags.operation = std::string(op->name);
      flags.backward = flags.backward || backward;
      for (const std::string& text : flags.shapes) set_shape(*op, text, flags);
    });
    declare_problem(options, *op, flags, cases);
    declare_choice(options, flags);
    if (!backward && !op->gradient.empty())
      options.flag("backward", flags.backward, fmt::format("its gradient, {}, for this call", op->gradient));
  }
}

void set_shape(const Operation& op, std::string_view text, CallFlags& flags) {
  const std::vector<std::string> known = free_dims(op);
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view pair = text.substr(begin, end - begin);
    const size_t equals = std::min(pair.find('='), pair.size());
    const std::string name(pair.substr(0, equals));
    if (equals == pair.size() || std::find(known.begin(), known.end(), name) == known.end())
      throw_invalid("ejk", "--shape", "be NAME=N[,NAME=N]", fmt::format("'{}'", text),
                    fmt::format("{} has {}", op.name, fmt::join(known, ", ")));
    const int64_t value = parse_extent("--shape's " + name, pair.substr(equals + 1));
    if (!flags.dims.emplace(name, value).second)
      throw_invalid("ejk", "--shape's " + name, "be given once", std::to_string(value), "leave one of them out");
    begin = end + 1;
  }
}

std::string forward_of(std::string_view operation) {
  const KernelRegistry& registry = KernelRegistry::instance();
  for (const std::string& name : registry.names())
    if (registry.find(name)->declaration->gradient == operation) return name;
  return "";
}

ConfigValues parse_config(const std::vector<std::string>& texts) {
  ConfigValues values;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    int64_t value = 0;
    const char *end = text.data() + text.size(), *begin = equals == std::string::npos ? end : text.data() + equals + 1;
    const auto [stopped, error] = std::from_chars(begin, end, value);
    if (error != std::errc() || stopped != end)
      throw_invalid("ejk", "--config", "be FIELD=VALUE with an integer value", fmt::format("'{}'", text),
                    "for example block_q=64");
    values.emplace_back(text.substr(0, equals), value);
  }
  return values;
}

PlanOptions plan_options(const CallFlags& flags) {
  PlanOptions options;
  options.kernel = flags.kernel;
  if (!flags.platform.empty()) options.platform = parse_name<Platform>("--platform", flags.platform, kNumPlatforms);
  if (!flags.policy.empty()) {
    if (flags.policy != "autotune" && flags.policy != "heuristics" && flags.policy != "cached")
      throw_invalid("ejk", "--policy", "be autotune, heuristics or cached", fmt::format("'{}'", flags.policy),
                    "see --help");
    options.policy = Policy{.autotune = flags.policy == "autotune", .heuristics = flags.policy != "cached"};
  }
  if (!flags.config.empty()) options.config = parse_config(flags.config);
  return options;
}

void require_operation(std::string_view verb, const CallFlags& flags) {
  if (!flags.operation.empty()) return;
  throw_invalid("ejk", "the operation", "be named", "nothing",
                fmt::format("for example ejk {} {}", verb, KernelRegistry::instance().names().front()));
}

bool names_a_shape(const CallFlags& flags) {
  return !flags.dims.empty() || !flags.dtype.empty() || !flags.inputs.empty() || !flags.form.empty();
}

bool names_a_problem(const CallFlags& flags) { return names_a_shape(flags) || !flags.params.empty(); }

}  // namespace ejk::tool
