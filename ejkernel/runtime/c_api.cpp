// The C ABI over the runtime. Every function is one call into it inside `guarded`, where exceptions become codes.
#include "ejkernel/c_api.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ejkernel/core/dlpack.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/log.h"
#include "ejkernel/core/out_of_memory.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/core/version.h"
#include "ejkernel/runtime/executor.h"
#include "ejkernel/runtime/field_tensors_internal.h"
#include "ejkernel/runtime/json.h"
#include "ejkernel/runtime/plan.h"
#include "ejkernel/runtime/registry.h"
#include "ejkernel/runtime/tuner.h"
#include "ejkernel/runtime/xla_handlers.h"

struct ejk_params_t {
  std::shared_ptr<const ejk::RegisteredOperation> operation;
  ejk::ParamsBlock values;
};

struct ejk_plan_t {
  ejk::Plan plan;
};

namespace ejk {
namespace {

static_assert(EJK_VERSION == kVersion);
static_assert(EJK_INVALID_ARGUMENT == static_cast<int>(ErrorCode::invalid_argument) &&
              EJK_UNSUPPORTED == static_cast<int>(ErrorCode::unsupported) &&
              EJK_INTERNAL == static_cast<int>(ErrorCode::internal) &&
              EJK_NO_CONFIG == static_cast<int>(ErrorCode::no_config) &&
              EJK_OUT_OF_MEMORY == static_cast<int>(ErrorCode::out_of_memory));
static_assert(EJK_LOG_DEBUG == static_cast<int>(LogLevel::debug));

// ---- errors ----

/// Without a destructor: calls may come when the thread's objects are gone, from exit handlers.
struct LastError {
  ejk_status code = EJK_OK;
  const char* shown = "";
  bool has_place = true;  ///< for its text
};
thread_local LastError last_error;

struct ErrorText {
  std::string text;
  ~ErrorText() {
    last_error.shown = "ejkernel: an error at the end of a thread, where its text has no place any more";
    last_error.has_place = false;
  }
};
thread_local ErrorText error_text;

ejk_status fail(ErrorCode code, const char* text) noexcept {
  last_error.code = static_cast<ejk_status>(code);
  if (!last_error.has_place) return last_error.code;
  try {
    error_text.text = text;
    last_error.shown = error_text.text.c_str();
  } catch (...) {
    last_error.shown = "ejkernel: out of memory while an error was being reported";
  }
  return last_error.code;
}

/// The one place where exceptions end.
template <class Body>
ejk_status guarded(Body body) noexcept {
  try {
    body();
    return EJK_OK;
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::out_of_memory, kOutOfMemory);
  } catch (const std::exception& error) {
    return fail(ErrorCode::internal, error.what());
  } catch (...) {
    return fail(ErrorCode::internal, "ejkernel: an exception of unknown type; please report it");
  }
}

/// A required pointer.
template <class T>
T& required(T* pointer, std::string_view function, std::string_view argument) {
  if (pointer == nullptr) throw_invalid(function, argument, "not be NULL", "NULL", "pass a valid pointer");
  return *pointer;
}
std::string_view required_text(const char* text, std::string_view function, std::string_view argument) {
  return &required(text, function, argument);
}

// ---- what is handed out ----

/// Stands in front of everything that ejk_free takes.
struct alignas(16) Header {
  void (*destroy)(Header* self);
};

template <class T>
struct Owned {
  Header header;
  T value;
};

template <class T>
T* hand_out(T value) {
  static_assert(alignof(T) <= alignof(Header), "the value follows its header without a gap");
  const auto destroy = [](Header* self) { delete reinterpret_cast<Owned<T>*>(self); };
  return &(new Owned<T>{{destroy}, std::move(value)})->value;
}

char* hand_out_text(std::string_view text) {
  void* block = ::operator new(sizeof(Header) + text.size() + 1);
  new (block) Header{[](Header* self) { ::operator delete(self); }};
  char* copy = static_cast<char*>(block) + sizeof(Header);
  std::copy(text.begin(), text.end(), copy);
  copy[text.size()] = '\0';
  return copy;
}

// ---- what is handed in ----

/// A size-tagged struct of this or another version. All fields are plain, so that a shorter one is a prefix.
template <class T>
T read_struct(const T* given, std::string_view function, std::string_view argument) {
  constexpr size_t kFirstVersion = sizeof(T);  // stays when fields are added
  constexpr size_t kAbsurd = 4096;             // an uninitialised size rather than a newer header
  T copy = {};
  if (given == nullptr) return copy;
  const size_t size = given->size;
  if (size < kFirstVersion || size > kAbsurd)
    throw_invalid(function, std::string(argument) + ".size", "be the struct's size, " + std::to_string(sizeof(T)),
                  std::to_string(size), "set it to sizeof the struct before anything else");
  std::memcpy(&copy, given, std::min(size, sizeof(T)));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (!std::all_of(bytes + std::min(size, sizeof(T)), bytes + size, [](unsigned char byte) { return byte == 0; }))
    throw_invalid(function, argument, "use only fields that version " EJK_VERSION " knows", "a newer one that is set",
                  "leave it zero, or run with the library of that header");
  return copy;
}

/// The enumerator of that name, for enumerations that count from 0 and have name().
template <class E>
std::optional<E> parse_name(const char* text, int count, std::string_view function, std::string_view argument) {
  if (text == nullptr) return std::nullopt;
  std::string known;
  for (int i = 0; i < count; ++i) {
    if (name(static_cast<E>(i)) == text) return static_cast<E>(i);
    known += (known.empty() ? "be one of " : ", ") + std::string(name(static_cast<E>(i)));
  }
  throw_invalid(function, argument, known, "'" + std::string(text) + "'", "leave it NULL for any");
}

std::optional<Policy> parse_policy(const char* text, std::string_view function) {
  if (text == nullptr) return std::nullopt;
  const std::string_view policy = text;
  if (policy == "autotune") return Policy{.autotune = true, .heuristics = true};
  if (policy == "heuristics") return Policy{.autotune = false, .heuristics = true};
  if (policy == "cached") return Policy{.autotune = false, .heuristics = false};
  throw_invalid(function, "options.policy", "be one of autotune, heuristics, cached", "'" + std::string(policy) + "'",
                "leave it NULL for the environment's");
}

PlanOptions read_options(const ejk_plan_options* given, std::string_view function) {
  const auto options = read_struct(given, function, "options");
  PlanOptions result;
  result.platform = parse_name<Platform>(options.platform, kNumPlatforms, function, "options.platform");
  result.backend = parse_name<Backend>(options.backend, 4, function, "options.backend");
  if (options.kernel != nullptr) result.kernel = options.kernel;
  if (options.config != nullptr) result.config = config_values_from_json(function, options.config);
  result.policy = parse_policy(options.policy, function);
  return result;
}

[[noreturn]] void refuse_name(const Operation& op, std::span<const TensorField> fields, std::string_view kind,
                              std::string_view given) {
  std::string known;
  for (const TensorField& field : fields) known += (known.empty() ? "" : ", ") + std::string(field.name);
  throw_invalid(op.name, std::string(kind) + " name '" + std::string(given) + "'", "be a declared one",
                "an unknown name", std::string(kind) + "s are " + known);
}

/// Puts named tensors into their fields' places. Names in declared order are each found at the first look.
void place(const Operation& op, std::span<const TensorField> fields, std::string_view kind, const ejk_tensor* given,
           size_t count, FieldTensors& to) {
  if (count > 0) required(given, op.name, std::string_view(kind == "input" ? "the inputs" : "the outputs"));
  size_t at = 0;
  for (size_t n = 0; n < count; ++n) {
    const std::string_view name = required_text(given[n].name, op.name, "a tensor's name");
    size_t looked = 0;
    while (looked < fields.size() && fields[at].name != name) {
      at = at + 1 == fields.size() ? 0 : at + 1;
      ++looked;
    }
    if (looked == fields.size()) refuse_name(op, fields, kind, name);
    if (to[at].present()) throw_invalid(op.name, fields[at].name, "be given once", "it twice", "remove one of the two");
    if (given[n].tensor == nullptr)
      throw_invalid(op.name, fields[at].name, "point at a DLTensor", "NULL", "leave absent ones out of the list");
    to[at] = from_dlpack(*given[n].tensor, op.name, name);
  }
}

void check_device(const Operation& op, const ejk_plan_options* given, std::span<const Tensor> inputs) {
  if (given == nullptr || given->device == nullptr) return;
  const DLTensor nothing = {.data = nullptr,
                            .device = *given->device,
                            .ndim = 0,
                            .dtype = to_dlpack(DType::u8),
                            .shape = nullptr,
                            .strides = nullptr,
                            .byte_offset = 0};
  const Device device = from_dlpack(nothing, op.name, "options.device").device;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].present() && !(inputs[i].device == device))
      throw_invalid(op.name, op.inputs[i].name, "be on " + to_string(device) + ", which the call asks for",
                    to_string(inputs[i].device), "copy it there, or leave options.device NULL");
}

/// `now`: of a call that runs right away.
Plan make_plan(std::string_view function, const char* operation, const ejk_tensor* inputs, size_t num_inputs,
               const ejk_params_t* params, const ejk_plan_options* options, const ejk_run_options* now = nullptr) {
  auto registered = KernelRegistry::instance().find(required_text(operation, function, "operation"));
  const Operation& op = *registered->declaration;
  const PlanOptions plan_options = read_options(options, function);
  FieldTensors tensors(op.inputs.size());
  place(op, op.inputs, "input", inputs, num_inputs, tensors);
  check_device(op, options, tensors);
  if (params != nullptr && params->operation->declaration != &op)
    throw_invalid(op.name, "params", "be this operation's",
                  "those of " + std::string(params->operation->declaration->name), "make them with ejk_params_new");
  std::optional<CallAtHand> call;
  if (now != nullptr) call.emplace(tensors, now->stream);
  return Plan::make(std::move(registered), tensors, params != nullptr ? params->values : op.default_params,
                    plan_options);
}

void run_plan(const Plan& plan, const ejk_tensor* inputs, size_t num_inputs, const ejk_tensor* outputs,
              size_t num_outputs, const ejk_run_options& options, bool may_allocate) {
  const Operation& op = plan.operation();
  FieldTensors in(op.inputs.size()), out(op.outputs.size());
  place(op, op.inputs, "input", inputs, num_inputs, in);
  place(op, op.outputs, "output", outputs, num_outputs, out);
  if (may_allocate && options.workspace == nullptr)
    return run_with_workspace(plan, in, out, {.stream = options.stream, .status = options.status});
  plan.run(in, out,
           {.stream = options.stream,
            .workspace = {static_cast<std::byte*>(options.workspace), options.workspace_bytes},
            .status = options.status});
}

/// `make_value` may throw, so it runs inside.
template <class MakeValue>
ejk_status set_one(const char* function, ejk_params_t* params, const char* name, MakeValue make_value) {
  return guarded([&] {
    ejk_params_t& to = required(params, function, "params");
    const std::string_view parameter = required_text(name, function, "name");
    set_param(*to.operation->declaration, to.values, parameter, ParamValue(make_value()));
  });
}

// ---- the log ----

struct CSink {
  ejk_log_sink sink;
  void* user;
};

void forward(LogLevel level, const char* text, void* user) {
  const auto* to = static_cast<const CSink*>(user);
  to->sink(static_cast<int32_t>(level), text, to->user);
}

/// Lives as long as the process: one of each pair, so that nothing grows where a few sinks take turns.
CSink* remembered(ejk_log_sink sink, void* user) {
  static auto* sinks = new std::list<CSink>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for (CSink& known : *sinks)
    if (known.sink == sink && known.user == user) return &known;
  return &sinks->emplace_back(CSink{sink, user});
}

}  // namespace
}  // namespace ejk

using namespace ejk;  // NOLINT: the functions below cannot stand in a namespace

const char* ejk_version(void) { return EJK_VERSION; }

ejk_status ejk_operations(char** json) {
  return guarded([&] {
    required(json, "ejk_operations", "json") = nullptr;
    *json = hand_out_text(operations_json());
  });
}

ejk_status ejk_params_new(const char* operation, ejk_params_t** params) {
  return guarded([&] {
    required(params, "ejk_params_new", "params") = nullptr;
    auto registered = KernelRegistry::instance().find(required_text(operation, "ejk_params_new", "operation"));
    const ParamsBlock& defaults = registered->declaration->default_params;
    *params = hand_out<ejk_params_t>({std::move(registered), defaults});
  });
}

ejk_status ejk_params_set_i64(ejk_params_t* params, const char* name, int64_t value) {
  return set_one("ejk_params_set_i64", params, name, [&] { return value; });
}

ejk_status ejk_params_set_f64(ejk_params_t* params, const char* name, double value) {
  return set_one("ejk_params_set_f64", params, name, [&] { return value; });
}

ejk_status ejk_params_set_bool(ejk_params_t* params, const char* name, int value) {
  return set_one("ejk_params_set_bool", params, name, [&] { return value != 0; });
}

ejk_status ejk_params_set_str(ejk_params_t* params, const char* name, const char* value) {
  return set_one("ejk_params_set_str", params, name,
                 [&] { return value == nullptr ? ParamValue() : ParamValue(std::string(value)); });
}

ejk_status ejk_params_set_i64s(ejk_params_t* params, const char* name, const int64_t* values, size_t count) {
  return set_one("ejk_params_set_i64s", params, name, [&] {
    if (count > 16)
      throw_invalid("ejk_params_set_i64s", "count", "be at most 16", std::to_string(count),
                    "pass the number of values");
    if (count > 0) required(values, "ejk_params_set_i64s", "values");
    return std::vector<int64_t>(values, values + count);
  });
}

void ejk_params_free(ejk_params_t* params) { ejk_free(params); }

ejk_status ejk_plan(const char* operation, const ejk_tensor* inputs, size_t num_inputs, const ejk_params_t* params,
                    const ejk_plan_options* options, ejk_plan_t** plan) {
  return guarded([&] {
    required(plan, "ejk_plan", "plan") = nullptr;
    *plan = hand_out<ejk_plan_t>({make_plan("ejk_plan", operation, inputs, num_inputs, params, options)});
  });
}

ejk_status ejk_plan_run(const ejk_plan_t* plan, const ejk_tensor* inputs, size_t num_inputs, const ejk_tensor* outputs,
                        size_t num_outputs, const ejk_run_options* options) {
  return guarded([&] {
    run_plan(required(plan, "ejk_plan_run", "plan").plan, inputs, num_inputs, outputs, num_outputs,
             read_struct(options, "ejk_plan_run", "options"), /*may_allocate=*/false);
  });
}

ejk_status ejk_plan_info(const ejk_plan_t* plan, char** json) {
  return guarded([&] {
    required(json, "ejk_plan_info", "json") = nullptr;
    *json = hand_out_text(plan_json(required(plan, "ejk_plan_info", "plan").plan));
  });
}

ejk_status ejk_execute(const char* operation, const ejk_tensor* inputs, size_t num_inputs, const ejk_tensor* outputs,
                       size_t num_outputs, const ejk_params_t* params, const ejk_plan_options* plan,
                       const ejk_run_options* run) {
  return guarded([&] {
    const auto options = read_struct(run, "ejk_execute", "run");
    run_plan(make_plan("ejk_execute", operation, inputs, num_inputs, params, plan, &options), inputs, num_inputs,
             outputs, num_outputs, options, /*may_allocate=*/true);
  });
}

ejk_status ejk_config_get(const ejk_plan_t* plan, char** json) {
  return guarded([&] {
    required(json, "ejk_config_get", "json") = nullptr;
    *json = hand_out_text(choice_json(required(plan, "ejk_config_get", "plan").plan.choice()));
  });
}

ejk_status ejk_config_set(const ejk_plan_t* plan, const char* config) {
  return guarded([&] {
    const Plan& of = required(plan, "ejk_config_set", "plan").plan;
    const ConfigValues values =
        config_values_from_json("ejk_config_set", required_text(config, "ejk_config_set", "config"));
    set_memory_config(of, values);
  });
}

ejk_status ejk_tune(const ejk_plan_t* plan, double seconds, char** json) {
  return guarded([&] {
    required(json, "ejk_tune", "json") = nullptr;
    const Plan& of = required(plan, "ejk_tune", "plan").plan;
    if (!(seconds > 0 && seconds <= 86400))
      throw_invalid("ejk_tune", "seconds", "be above 0, at most a day", std::to_string(seconds), "2 is usual");
    *json = hand_out_text(to_json(tune(of, {.budget_seconds = seconds})));
  });
}

ejk_status ejk_xla_handlers(const char* platform, ejk_xla* handlers) {
  return guarded([&] {
    ejk_xla& to = required(handlers, "ejk_xla_handlers", "handlers");
    read_struct(handlers, "ejk_xla_handlers", "handlers");
    required_text(platform, "ejk_xla_handlers", "platform");
    const std::string_view wanted = platform;
    if (wanted != name(Platform::cpu) && wanted != name(Platform::cuda))
      throw Unsupported("ejk_xla_handlers: there are handlers for cpu and cuda, not for '" + std::string(wanted) + "'");
    const XlaHandlers found = xla_handlers(wanted == name(Platform::cpu) ? Platform::cpu : Platform::cuda);
    to = {.size = to.size, .instantiate = found.instantiate, .initialize = found.initialize, .execute = found.execute};
  });
}

ejk_status ejk_last_error(const char** text) {
  if (text != nullptr) *text = last_error.shown;
  return last_error.code;
}

ejk_status ejk_set_log(ejk_log_sink sink, void* user, int32_t level) {
  return guarded([&] {
    if (level < EJK_LOG_OFF || level > EJK_LOG_DEBUG)
      throw_invalid("ejk_set_log", "level", "be EJK_LOG_OFF (0) to EJK_LOG_DEBUG (4)", std::to_string(level),
                    "pass one of these");
    if (sink == nullptr)
      set_log(nullptr, nullptr);
    else
      set_log(forward, remembered(sink, user), static_cast<LogLevel>(level));
  });
}

void ejk_free(void* object) {
  if (object == nullptr) return;
  auto* header = reinterpret_cast<Header*>(static_cast<std::byte*>(object) - sizeof(Header));
  header->destroy(header);
}
