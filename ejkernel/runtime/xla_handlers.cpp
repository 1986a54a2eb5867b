#include "ejkernel/runtime/xla_handlers.h"

#include "ejkernel/core/error.h"

#if !EJK_WITH_XLA_FFI

namespace ejk {
XlaHandlers xla_handlers(Platform) {
  throw Unsupported(
      "xla_handlers: this library was built without XLA's FFI headers; run ./dev setup ffi and build again");
}
}  // namespace ejk

#else

#include <fmt/format.h>
#include <xla/ffi/api/ffi.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "ejkernel/core/allocator.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/field_tensors_internal.h"
#include "ejkernel/runtime/planned_call.h"

namespace ejk {
namespace {

namespace ffi = xla::ffi;

// ---- errors ----

ffi::ErrorCode code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return ffi::ErrorCode::kInvalidArgument;
    case ErrorCode::unsupported:
      return ffi::ErrorCode::kUnimplemented;
    case ErrorCode::no_config:
      return ffi::ErrorCode::kFailedPrecondition;
    case ErrorCode::out_of_memory:
      return ffi::ErrorCode::kResourceExhausted;
    case ErrorCode::ok:
    case ErrorCode::internal:
      break;
  }
  return ffi::ErrorCode::kInternal;
}

/// What `body` throws, as XLA's error; XLA must see no exception.
template <class Body>
ffi::Error guarded(Body body) noexcept {
  try {
    body();
    return ffi::Error::Success();
  } catch (const Error& error) {
    return ffi::Error(code_of(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "ejkernel: host memory is exhausted");
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kInternal, error.what());
  } catch (...) {
    return ffi::Error(ffi::ErrorCode::kInternal, "ejkernel: a kernel threw what is no std::exception");
  }
}

// ---- the state of a call in a program ----

/// A program is instantiated once and may run on several devices of one kind; each has its own copy of the plan.
class ProgramCall {
 public:
  explicit ProgramCall(std::string_view text) : ProgramCall(planned_call_from_json(text)) {}
  explicit ProgramCall(const PlannedCall& planned) : first_(plan_of(planned)), wants_status_(planned.status) {
    // A program must know of every operand that is written.
    for (const TensorField& output : first_.operation().outputs)
      wanted_.push_back(is_aliased(output) || !planned.outputs ||
                        std::find(planned.outputs->begin(), planned.outputs->end(), output.name) !=
                            planned.outputs->end());
    const int devices = first_.device().kind == DeviceKind::cpu ? 0 : num_cuda_devices();
    on_device_ = std::vector<OnDevice>(static_cast<size_t>(devices));
  }

  /// XLA's buffers are dense, and where the handler's platform has them.
  void require_for(DeviceKind kind) const {
    const Operation& op = first_.operation();
    if (first_.device().kind != kind)
      throw_invalid(op.name, "the call", fmt::format("be planned for {}, where XLA runs it", name(kind)),
                    to_string(first_.device()), "plan it with tensors of that device");
    for (size_t n = 0; n < op.inputs.size(); ++n)
      if (const Tensor& input = first_.inputs()[n]; input.present() && !is_contiguous(input))
        throw_invalid(op.name, op.inputs[n].name, "be planned contiguous, as XLA's buffers are", to_string(input),
                      "plan the call with contiguous tensors");
  }

  /// The plan on a device, which is loaded there the first time.
  const Plan& load(int ordinal) {
    OnDevice& here = at(ordinal);
    std::call_once(here.once, [&] {
      const Device device{.kind = first_.device().kind, .ordinal = ordinal};
      here.plan = device == first_.device() ? first_ : first_.on(device);
    });
    return *here.plan;
  }
  const Plan& loaded(int ordinal) {
    const OnDevice& here = at(ordinal);
    if (!here.plan) throw Internal(fmt_device(ordinal) + " was not initialised for this program");
    return *here.plan;
  }
  const Plan& on_host() const { return first_; }
  /// Whether output n is among the results.
  bool wants(size_t n) const { return first_.outputs()[n].present && wanted_[n]; }
  /// Whether the status word is the result after them.
  bool wants_status() const { return wants_status_; }

 private:
  struct OnDevice {
    std::once_flag once;
    std::optional<Plan> plan;
  };
  static std::string fmt_device(int ordinal) { return "xla_handlers: device " + std::to_string(ordinal); }
  OnDevice& at(int ordinal) {
    if (ordinal < 0 || static_cast<size_t>(ordinal) >= on_device_.size())
      throw Internal(fmt_device(ordinal) + " is not one that this library sees");
    return on_device_[static_cast<size_t>(ordinal)];
  }

  Plan first_;
  bool wants_status_;
  std::vector<bool> wanted_;
  std::vector<OnDevice> on_device_;
};

/// Every XLA plug-in numbers types by itself, so each platform has a type of its own.
template <Platform kPlatform>
struct State : ProgramCall {
  using ProgramCall::ProgramCall;
  static constexpr DeviceKind kDevices = kPlatform == Platform::cpu ? DeviceKind::cpu : DeviceKind::cuda;
  static constexpr const char* kName = kPlatform == Platform::cpu ? "cpu" : "cuda";
  static inline ffi::TypeId id = XLA_FFI_UNKNOWN_TYPE_ID;
  static inline ffi::TypeInfo info = ffi::MakeTypeInfo<State>();
};
using HostState = State<Platform::cpu>;
using CudaState = State<Platform::cuda>;

template <class StateOfPlatform>
ffi::ErrorOr<std::unique_ptr<StateOfPlatform> > instantiate(std::string_view call) {
  std::unique_ptr<StateOfPlatform> state;
  ffi::Error error = guarded([&] {
    state = std::make_unique<StateOfPlatform>(call);
    state->require_for(StateOfPlatform::kDevices);
  });
  if (error.failure()) return ffi::Unexpected(std::move(error));
  return state;
}

// ---- a run ----

/// XLA's operands or results, one after the other.
template <class Given>
class Buffers {
 public:
  Buffers(const Operation& op, const Given& given) : op_(op), given_(given) {}

  ffi::AnyBuffer next() {
    auto buffer = given_.template get<ffi::AnyBuffer>(num_taken_++);
    if (!buffer.has_value()) throw Internal(std::string(op_.name) + ": XLA gives fewer buffers than were planned");
    if constexpr (std::is_same_v<Given, ffi::RemainingRets>)
      return *buffer.value();
    else
      return buffer.value();
  }
  void* next_like(DType dtype, const Shape& shape) {
    const ffi::AnyBuffer buffer = next();
    const auto dims = buffer.dimensions();
    if (!std::equal(dims.begin(), dims.end(), shape.begin(), shape.end()))
      throw Internal(std::string(op_.name) + ": XLA's buffer has another shape than was planned");
    if (buffer.size_bytes() < static_cast<size_t>(num_bytes(dtype, shape)))
      throw Internal(std::string(op_.name) + ": XLA's buffer has smaller elements than were planned");
    return buffer.untyped_data();
  }
  void require_no_more() const {
    if (num_taken_ != given_.size())
      throw Internal(std::string(op_.name) + ": XLA gives more buffers than were planned");
  }

 private:
  const Operation& op_;
  const Given& given_;
  size_t num_taken_ = 0;
};

/// Kernels only set bits of it.
uint32_t* zeroed_status(void* word, Device device, void* stream) {
  if (device.kind == DeviceKind::cpu)
    std::memset(word, 0, sizeof(uint32_t));
  else
    fill_device(device, word, 0, sizeof(uint32_t), stream);
  return static_cast<uint32_t*>(word);
}

void run(const ProgramCall& call, const Plan& plan, void* stream, const ffi::RemainingArgs& args,
         const ffi::RemainingRets& rets) {
  const Operation& op = plan.operation();
  FieldTensors inputs(op.inputs.size()), outputs(op.outputs.size());
  Buffers operands(op, args);
  for (size_t n = 0; n < op.inputs.size(); ++n) {
    const Tensor& spec = plan.inputs()[n];
    if (!spec.present()) continue;
    inputs[n] = spec;
    inputs[n].data = operands.next_like(spec.dtype, spec.shape);
  }
  // An aliased result is its operand's buffer: lowering says so to XLA, and the plan refuses another.
  Buffers results(op, rets);
  for (size_t n = 0; n < op.outputs.size(); ++n)
    if (const OutputSpec& spec = plan.outputs()[n]; call.wants(n))
      outputs[n] = Tensor(results.next_like(spec.dtype, spec.shape), spec.dtype, spec.shape, plan.device());
  RunOptions options{.stream = stream};
  if (call.wants_status()) options.status = zeroed_status(results.next_like(DType::u32, {1}), plan.device(), stream);
  if (plan.workspace_bytes() > 0) {
    const ffi::AnyBuffer workspace = results.next();
    options.workspace = {static_cast<std::byte*>(workspace.untyped_data()), workspace.size_bytes()};
  }
  operands.require_no_more(), results.require_no_more();
  plan.run(inputs, outputs, options);
}

// ---- the host ----

/// XLA's threads, for as long as one call into a handler takes.
class XlaThreads : public cpu::LentThreads {
 public:
  explicit XlaThreads(ffi::ThreadPool& pool) : pool_(pool) {}
  int count() const override { return static_cast<int>(pool_.num_threads()); }
  void schedule(std::function<void()> task) override { pool_.Schedule(std::move(task)); }

 private:
  ffi::ThreadPool& pool_;
};

ffi::Error execute_on_host(HostState* state, ffi::ThreadPool pool, std::string_view, ffi::RemainingArgs args,
                           ffi::RemainingRets rets) {
  return guarded([&] {
    XlaThreads threads(pool);
    const cpu::ScopedLentThreads scoped(threads);
    run(*state, state->on_host(), nullptr, args, rets);
  });
}

// ---- CUDA ----

ffi::Error initialize_on_cuda(CudaState* state, int32_t ordinal, std::string_view, ffi::RemainingArgs,
                              ffi::RemainingRets) {
  return guarded([&] { state->load(ordinal); });
}

ffi::Error execute_on_cuda(CudaState* state, int32_t ordinal, void* stream, std::string_view, ffi::RemainingArgs args,
                           ffi::RemainingRets rets) {
  return guarded([&] { run(*state, state->loaded(ordinal), stream, args, rets); });
}

/// XLA asks a handler for its metadata before the state's type may have been registered through Python, and refuses it
/// then. So the type is registered when XLA first comes to us, which is for that metadata.
template <class StateOfPlatform, XLA_FFI_Handler* kInstantiate>
XLA_FFI_Error* register_and_instantiate(XLA_FFI_CallFrame* frame) {
  static std::mutex mutex;
  {
    const std::lock_guard lock(mutex);
    const std::string name = std::string("ejkernel_") + StateOfPlatform::kName;
    if (StateOfPlatform::id.type_id == XLA_FFI_UNKNOWN_TYPE_ID.type_id)
      if (XLA_FFI_Error* error =
              ffi::Ffi::RegisterTypeId(frame->api, name, &StateOfPlatform::id, &StateOfPlatform::info))
        return error;
  }
  return kInstantiate(frame);
}

XLA_FFI_DEFINE_HANDLER(kInstantiateHost, instantiate<HostState>,
                       ffi::Ffi::BindInstantiate().Attr<std::string_view>("call"));
XLA_FFI_DEFINE_HANDLER(kExecuteHost, execute_on_host,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<HostState> >()
                           .Ctx<ffi::ThreadPool>()
                           .Attr<std::string_view>("call")
                           .RemainingArgs()
                           .RemainingRets());
XLA_FFI_DEFINE_HANDLER(kInstantiateCuda, instantiate<CudaState>,
                       ffi::Ffi::BindInstantiate().Attr<std::string_view>("call"));
XLA_FFI_DEFINE_HANDLER(kInitializeCuda, initialize_on_cuda,
                       ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
                           .Ctx<ffi::State<CudaState> >()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Attr<std::string_view>("call")
                           .RemainingArgs()
                           .RemainingRets());
XLA_FFI_DEFINE_HANDLER(kExecuteCuda, execute_on_cuda,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<CudaState> >()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Ctx<ffi::PlatformStream<void*> >()
                           .Attr<std::string_view>("call")
                           .RemainingArgs()
                           .RemainingRets(),
                       {ffi::Traits::kCmdBufferCompatible});

template <class Function>
void* address(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

XlaHandlers xla_handlers(Platform platform) {
  if (platform == Platform::cpu)
    return {.instantiate = address(&register_and_instantiate<HostState, kInstantiateHost>),
            .execute = address(kExecuteHost)};
  if (platform == Platform::cuda)
    return {.instantiate = address(&register_and_instantiate<CudaState, kInstantiateCuda>),
            .initialize = address(kInitializeCuda),
            .execute = address(kExecuteCuda)};
  throw Unsupported("xla_handlers: there are handlers for cpu and cuda, not for " + std::string(name(platform)));
}

}  // namespace ejk

#endif
