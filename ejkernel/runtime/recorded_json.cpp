// Recorded calls as JSON and back. What is read may come from anywhere: sizes are bounded before anything is made of
// them, and what is left to say about a call the ordinary check says.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/recorded.h"
#include "ejkernel/runtime/registry.h"

namespace ejk {
namespace {

// Written without a tree of objects: taking one of nlohmann's down allocates, and where there is no memory left that
// ends the process, which recording must not.

/// A number or text.
template <class T>
std::string scalar(const T& value) {
  return nlohmann::json(value).dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}
template <class Range>
std::string list(const Range& numbers) {
  return fmt::format("[{}]", fmt::join(numbers.begin(), numbers.end(), ","));
}

std::string value_of(const ParamValue& value) {
  if (const bool* v = std::get_if<bool>(&value)) return *v ? "true" : "false";
  if (const int64_t* v = std::get_if<int64_t>(&value)) return std::to_string(*v);
  if (const double* v = std::get_if<double>(&value)) return scalar(*v);
  if (const std::string* v = std::get_if<std::string>(&value)) return scalar(*v);
  if (const auto* v = std::get_if<std::vector<int64_t>>(&value)) return list(*v);
  return "null";
}

std::string input_json(const TensorField& field, const Tensor& t, std::span<const int64_t> sample) {
  std::string json =
      fmt::format(R"({{"name":{},"dtype":"{}","shape":{})", scalar(field.name), name(t.dtype), list(t.shape));
  if (!is_contiguous(t)) json += fmt::format(R"(,"strides":{})", list(t.strides));
  if (!sample.empty()) json += fmt::format(R"(,"values":{})", list(sample));
  return json + "}";
}

Device device_of(const Invocation& call) {
  for (const Tensor& input : call.inputs)
    if (input.present()) return input.device;
  return {};
}

/// No more than this is read of a call, which has some hundred numbers where it is recorded.
constexpr size_t kMostBytes = 1 << 20;
constexpr size_t kMostLetters = 200;
/// A window has two, and no parameter more.
constexpr size_t kMostIntegers = 16;
/// As many of them as a file holds can be added up.
constexpr int64_t kMostCount = int64_t{1} << 40;
constexpr double kMostSeconds = 1e12;

constexpr std::array<std::string_view, 9> kCallFields = {"operation", "device", "count",  "seconds", "platform",
                                                         "backend",   "kernel", "inputs", "params"};
constexpr std::array<std::string_view, 5> kInputFields = {"name", "dtype", "shape", "strides", "values"};

/// One call, field by field. It reads into a map that finds a name fast, however many there are.
class Reader {
 public:
  using Given = nlohmann::json;
  explicit Reader(const Given& json) : json_(json) {}

  Invocation run() {
    if (!json_.is_object()) refuse("it", "be a JSON object", json_);
    refuse_others(json_, "", kCallFields);
    call_.operation = text(json_, "operation");
    op_ = KernelRegistry::instance().find(call_.operation)->declaration;
    read_device();
    read_numbers();
    read_choice();
    read_inputs();
    read_params();
    check_call(*op_, call_.inputs, call_.params);
    return std::move(call_);
  }

 private:
  /// What was given, in a few letters; a list may be nested so deep that writing it down takes the stack.
  static std::string shown(const Given& got) {
    if (got.is_null()) return "nothing";
    if (got.is_discarded()) return "a text that is no JSON";
    if (got.is_structured()) return fmt::format("a JSON {}", got.type_name());
    const std::string all = got.dump(-1, ' ', /*ensure_ascii=*/true);
    return all.size() > kMostLetters ? all.substr(0, kMostLetters) + "..." : all;
  }
  [[noreturn]] static void refuse(std::string_view field, std::string_view expected, const Given& got) {
    throw_invalid("recorded call", field, expected, shown(got), "see docs/tuning.md");
  }

  static void refuse_others(const Given& object, const std::string& of, std::span<const std::string_view> known) {
    for (const auto& [field, value] : object.items())
      if (std::find(known.begin(), known.end(), field) == known.end())
        refuse(of + "fields", fmt::format("be of {}", fmt::join(known, ", ")), field);
  }

  /// Null for one that is not there.
  static const Given& field(const Given& object, std::string_view name) {
    static const Given nothing;
    const auto found = object.find(name);
    return found == object.end() ? nothing : *found;
  }
  static std::string text_of(const std::string& field, const Given& value) {
    if (!value.is_string()) refuse(field, "be a text", value);
    std::string given = value.get<std::string>();
    if (given.size() > kMostLetters) refuse(field, fmt::format("have no more than {} letters", kMostLetters), value);
    return given;
  }
  static std::string text(const Given& object, const std::string& name, const std::string& of = "") {
    return text_of(of + name, field(object, name));
  }
  static std::optional<int64_t> integer(const Given& value) {
    const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{INT64_MAX};
    return value.is_number_integer() && fits ? std::optional(value.get<int64_t>()) : std::nullopt;
  }
  static std::vector<int64_t> integers(const std::string& field, const Given& value, size_t most) {
    if (!value.is_array()) refuse(field, "be a list of integers", value);
    if (value.size() > most) refuse(field, fmt::format("have no more than {} numbers", most), value.size());
    std::vector<int64_t> numbers;
    for (const Given& element : value) {
      const auto number = integer(element);
      if (!number) refuse(field, "hold integers", element);
      numbers.push_back(*number);
    }
    return numbers;
  }

  void read_device() {
    if (field(json_, "device").is_null()) return;
    const std::optional<Device> device = parse_device(text(json_, "device"));
    if (!device) refuse("device", "be cpu or cuda:N", json_["device"]);
    device_ = *device;
  }

  void read_numbers() {
    if (const Given& count = field(json_, "count"); !count.is_null()) {
      call_.count = integer(count).value_or(0);
      if (call_.count < 1 || call_.count > kMostCount) refuse("count", "be an integer from 1 to 2^40", count);
    }
    if (const Given& seconds = field(json_, "seconds"); !seconds.is_null()) {
      call_.seconds = seconds.is_number() ? seconds.get<double>() : -1;
      if (!(call_.seconds >= 0 && call_.seconds <= kMostSeconds)) refuse("seconds", "be from 0 to 1e12", seconds);
    }
  }

  /// An enumerator by its name.
  template <class E>
  std::optional<E> enumerator(const std::string& field_name, int count) const {
    const Given& value = field(json_, field_name);
    if (value.is_null()) return std::nullopt;
    const std::string wanted = text_of(field_name, value);
    for (int i = 0; i < count; ++i)
      if (name(static_cast<E>(i)) == wanted) return static_cast<E>(i);
    refuse(field_name, fmt::format("be the name of a {}", field_name), value);
  }

  void read_choice() {
    call_.options.platform = enumerator<Platform>("platform", kNumPlatforms);
    call_.options.backend = enumerator<Backend>("backend", 4);
    if (!field(json_, "kernel").is_null()) call_.options.kernel = text(json_, "kernel");
  }

  void read_inputs() {
    call_.inputs.resize(op_->inputs.size());
    call_.samples.resize(op_->inputs.size());
    const Given& inputs = field(json_, "inputs");
    if (!inputs.is_array()) refuse("inputs", "be a list", inputs);
    for (const Given& input : inputs) {
      if (!input.is_object()) refuse("an input", "be a JSON object", input);
      const std::string of = text(input, "name", "an input's ");
      const int index = find_input(*op_, of);
      if (index < 0) refuse("an input's name", fmt::format("be one of {}'s", op_->name), input["name"]);
      Tensor& t = call_.inputs[static_cast<size_t>(index)];
      if (t.present()) refuse("inputs", "name each one once", input["name"]);
      t = read_tensor(input, of + " ");
      call_.samples[static_cast<size_t>(index)] = read_sample(input, of + " ", t);
    }
  }

  Tensor read_tensor(const Given& input, const std::string& of) const {
    refuse_others(input, of, kInputFields);
    const std::optional<DType> dtype = parse_dtype(text(input, "dtype", of));
    if (!dtype) refuse(of + "dtype", "be the name of a dtype", input["dtype"]);
    const Shape shape(integers(of + "shape", field(input, "shape"), kMaxRank));
    const Given& given = field(input, "strides");
    if (given.is_null()) return Tensor(nullptr, *dtype, shape, device_);
    return Tensor(nullptr, *dtype, shape, Shape(integers(of + "strides", given, kMaxRank)), device_);
  }

  std::vector<int64_t> read_sample(const Given& input, const std::string& of, const Tensor& t) const {
    const Given& given = field(input, "values");
    if (given.is_null()) return {};
    if ((t.dtype != DType::i32 && t.dtype != DType::i64) || device_.kind != DeviceKind::cpu)
      refuse(of + "values", "be left out but for int32 and int64 tensors on the host", given);
    std::vector<int64_t> values =
        integers(of + "values", given, static_cast<size_t>(kMaxSampleBytes * 8 / bits(t.dtype)));
    if (static_cast<int64_t>(values.size()) != t.num_elements())
      refuse(of + "values", fmt::format("be {} numbers, as its shape says", t.num_elements()), values.size());
    for (const int64_t value : values)
      if (t.dtype == DType::i32 && value != static_cast<int32_t>(value))
        refuse(of + "values", "be integers of 32 bits", value);
    return values;
  }

  void read_params() {
    call_.params = op_->default_params;
    const Given& params = field(json_, "params");
    if (params.is_null()) return;
    if (!params.is_object()) refuse("params", "be a JSON object", params);
    for (const auto& [name, value] : params.items()) {
      text_of("a parameter's name", name);
      set_param(*op_, call_.params, name, param_value(name, value));
    }
  }

  static ParamValue param_value(const std::string& name, const Given& value) {
    if (value.is_null()) return std::monostate();
    if (value.is_boolean()) return value.get<bool>();
    if (const auto number = integer(value)) return *number;
    if (value.is_number_float()) return value.get<double>();
    if (value.is_string()) return text_of("parameter " + name, value);
    return integers("parameter " + name, value, kMostIntegers);
  }

  const Given& json_;
  const Operation* op_ = nullptr;
  Device device_;
  Invocation call_;
};

}  // namespace

std::string to_json(const Invocation& call) {
  const auto registered = KernelRegistry::instance().find(call.operation);
  const Operation& op = *registered->declaration;
  std::string json = fmt::format(R"({{"operation":{},"device":"{}","count":{})", scalar(call.operation),
                                 to_string(device_of(call)), call.count);
  if (call.seconds > 0) json += fmt::format(R"(,"seconds":{})", scalar(call.seconds));
  if (call.options.platform) json += fmt::format(R"(,"platform":"{}")", name(*call.options.platform));
  if (call.options.backend) json += fmt::format(R"(,"backend":"{}")", name(*call.options.backend));
  if (!call.options.kernel.empty()) json += fmt::format(R"(,"kernel":{})", scalar(call.options.kernel));
  std::vector<std::string> inputs, params;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const auto sample =
        i < call.samples.size() ? std::span<const int64_t>(call.samples[i]) : std::span<const int64_t>();
    if (call.inputs[i].present()) inputs.push_back(input_json(op.inputs[i], call.inputs[i], sample));
  }
  for (const ParamField& field : op.params)
    params.push_back(fmt::format("{}:{}", scalar(field.name), value_of(field.get(call.params.data()))));
  return fmt::format(R"({},"inputs":[{}],"params":{{{}}}}})", json, fmt::join(inputs, ","), fmt::join(params, ","));
}

Invocation invocation_from_json(std::string_view text) {
  if (text.size() > kMostBytes)
    throw_invalid("recorded call", "it", fmt::format("take no more than {} bytes", kMostBytes),
                  std::to_string(text.size()), "see docs/tuning.md");
  const auto given = Reader::Given::parse(text, nullptr, /*allow_exceptions=*/false);
  return Reader(given).run();
}

}  // namespace ejk
