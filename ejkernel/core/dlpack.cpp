#include "ejkernel/core/dlpack.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "ejkernel/core/validate.h"

namespace ejk {
namespace {

// Other compilers and languages lay these out too: nothing may move.
static_assert(sizeof(DLTensor) == 48 && offsetof(DLTensor, ndim) == 16 && offsetof(DLTensor, dtype) == 20 &&
              offsetof(DLTensor, shape) == 24 && offsetof(DLTensor, byte_offset) == 40);
static_assert(sizeof(DLManagedTensorVersioned) == 80 && offsetof(DLManagedTensorVersioned, deleter) == 16 &&
              offsetof(DLManagedTensorVersioned, dl_tensor) == 32);
static_assert(sizeof(DLManagedTensor) == 64);

constexpr uint32_t kMajor = 1;
constexpr uint32_t kMinor = 1;

struct Pair {
  DType dtype;
  uint8_t code;
  uint8_t bits;
};
constexpr std::array<Pair, kNumDTypes> kPairs = {{{DType::f64, kDLFloat, 64},
                                                  {DType::f32, kDLFloat, 32},
                                                  {DType::f16, kDLFloat, 16},
                                                  {DType::bf16, kDLBfloat, 16},
                                                  {DType::e4m3, kDLFloat8_e4m3fn, 8},
                                                  {DType::e5m2, kDLFloat8_e5m2, 8},
                                                  {DType::i64, kDLInt, 64},
                                                  {DType::i32, kDLInt, 32},
                                                  {DType::u32, kDLUInt, 32},
                                                  {DType::i8, kDLInt, 8},
                                                  {DType::u8, kDLUInt, 8},
                                                  {DType::i4, kDLInt, 4},
                                                  {DType::boolean, kDLBool, 8}}};

/// Who asks, for the messages.
struct Caller {
  std::string_view operation;
  std::string_view argument;
  [[noreturn]] void refuse(std::string_view expected, const std::string& got, std::string_view fix) const {
    throw_invalid(operation, argument, expected, got, fix);
  }
};

DType dtype_of(const DLDataType& type, const Caller& caller) {
  if (const auto dtype = from_dlpack(type)) return *dtype;
  std::string names;
  for (const Pair& pair : kPairs) names += (names.empty() ? "" : ", ") + std::string(name(pair.dtype));
  caller.refuse("have the DLPack type of one of " + names,
                "code " + std::to_string(type.code) + ", " + std::to_string(type.bits) + " bits, " +
                    std::to_string(type.lanes) + " lanes",
                "convert the elements first");
}

Device device_of(const DLDevice& device, const Caller& caller) {
  switch (device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
    case kDLROCMHost:
      return {DeviceKind::cpu, 0};
    case kDLCUDA:
    case kDLCUDAManaged:
      if (device.device_id < 0)
        caller.refuse("name a CUDA device from 0 on", std::to_string(device.device_id), "correct device_id");
      return {DeviceKind::cuda, device.device_id};
    default:
      caller.refuse("live in host or CUDA memory (DLPack device type 1, 2, 3, 11 or 13)",
                    "device type " + std::to_string(static_cast<int>(device.device_type)), "copy it to one of these");
  }
}

Shape shape_of(const DLTensor& tensor, const Caller& caller) {
  if (tensor.ndim < 0 || tensor.ndim > kMaxRank)
    caller.refuse("have 0 to " + std::to_string(kMaxRank) + " axes", std::to_string(tensor.ndim), "merge or drop axes");
  if (tensor.ndim == 0) return {};
  if (tensor.shape == nullptr) caller.refuse("have a shape", "a null pointer", "set shape");
  const Shape shape(std::span(tensor.shape, static_cast<size_t>(tensor.ndim)));
  if (std::any_of(shape.begin(), shape.end(), [](int64_t extent) { return extent < 0; }))
    caller.refuse("have no negative extent", to_string(shape), "correct the shape");
  return shape;
}

/// Every element must have an address, and distances in bits must fit a signed 64-bit number.
void check_reach(const Tensor& view, const Caller& caller) {
  constexpr int64_t kFarthest = int64_t{1} << 56;
  const auto [lowest, end] = element_range(view);
  if (view.num_elements() < kFarthest && lowest > -kFarthest && end < kFarthest) {
    // In units of 16 bytes all addresses and sums of them fit a signed number.
    const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(view.data) / 16);
    const int64_t first = address + lowest * bits(view.dtype) / 128;
    const int64_t last = address + end * bits(view.dtype) / 128;
    if (view.data == nullptr || (first >= 0 && last < int64_t{1} << 60)) return;
  }
  caller.refuse("reach elements inside the address space",
                "shape " + to_string(view.shape) + ", strides " + to_string(view.strides), "correct the strides");
}

template <class Managed>
void release(void* managed) {
  auto* self = static_cast<Managed*>(managed);
  if (self->deleter != nullptr) self->deleter(self);
}

/// From here on the producer's deleter runs exactly once, whatever is thrown.
template <class Managed>
std::shared_ptr<void> take_over(Managed* managed, const Caller& caller) {
  if (managed == nullptr) caller.refuse("not be null", "a null pointer", "pass what the producer handed out");
  return {static_cast<void*>(managed), release<Managed>};
}

constexpr Caller kImport = {"from_dlpack", "tensor"};

/// An exported array: the struct that the consumer sees, and all that it points to.
struct Export {
  DLManagedTensorVersioned managed = {};
  std::array<int64_t, kMaxRank> shape = {};
  std::array<int64_t, kMaxRank> strides = {};
  Array array;
};

}  // namespace

DLDataType to_dlpack(DType dtype) {
  const auto* pair =
      std::find_if(kPairs.begin(), kPairs.end(), [&](const Pair& entry) { return entry.dtype == dtype; });
  return {pair->code, pair->bits, 1};
}

std::optional<DType> from_dlpack(DLDataType type) {
  for (const Pair& pair : kPairs)
    if (pair.code == type.code && pair.bits == type.bits && type.lanes == 1) return pair.dtype;
  return std::nullopt;
}

Tensor from_dlpack(const DLTensor& tensor, std::string_view operation, std::string_view argument) {
  const Caller caller = {operation, argument};
  const Shape shape = shape_of(tensor, caller);
  const bool strided = tensor.strides != nullptr && tensor.ndim > 0;
  const Shape strides =
      strided ? Shape(std::span(tensor.strides, static_cast<size_t>(tensor.ndim))) : contiguous_strides(shape);
  Tensor view(nullptr, dtype_of(tensor.dtype, caller), shape, strides, device_of(tensor.device, caller));
  uintptr_t address = reinterpret_cast<uintptr_t>(tensor.data);
  if (tensor.data != nullptr && __builtin_add_overflow(address, tensor.byte_offset, &address))
    caller.refuse("have a byte_offset inside the address space", std::to_string(tensor.byte_offset),
                  "correct byte_offset");
  view.data = reinterpret_cast<void*>(address);
  check_reach(view, caller);
  return view;
}

DLTensor to_dlpack_view(const Tensor& tensor, int64_t* shape, int64_t* strides) {
  if (!tensor.present())
    throw_invalid("to_dlpack_view", "tensor", "be present", "an absent one", "leave the argument out instead");
  std::copy(tensor.shape.begin(), tensor.shape.end(), shape);
  std::copy(tensor.strides.begin(), tensor.strides.end(), strides);
  const bool on_host = tensor.device.kind == DeviceKind::cpu;
  return {.data = tensor.data,
          .device = {on_host ? kDLCPU : kDLCUDA, on_host ? 0 : tensor.device.ordinal},
          .ndim = tensor.rank(),
          .dtype = to_dlpack(tensor.dtype),
          .shape = shape,
          .strides = strides,
          .byte_offset = 0};
}

bool is_read_only(const DLManagedTensorVersioned& managed) {
  return (managed.flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
}

Array from_dlpack(DLManagedTensorVersioned* managed, Access access) {
  std::shared_ptr<void> owner = take_over(managed, kImport);
  // Of another major version nothing but the deleter's place is known.
  if (managed->version.major != kMajor)
    kImport.refuse("be of DLPack 1.x", "version " + std::to_string(managed->version.major),
                   "ask the producer for max_version (1, 1)");
  if (access == Access::write && is_read_only(*managed))
    kImport.refuse("be writable", "a read-only one", "copy it, or use it as an input only");
  const bool padded = (managed->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) != 0;
  if (padded && managed->dl_tensor.dtype.bits < 8)
    kImport.refuse("be packed", "elements of less than a byte padded to bytes", "pack two to a byte");
  return Array(from_dlpack(managed->dl_tensor), std::move(owner));
}

Array from_dlpack(DLManagedTensor* managed) {
  std::shared_ptr<void> owner = take_over(managed, kImport);
  return Array(from_dlpack(managed->dl_tensor), std::move(owner));
}

DLManagedTensorVersioned* to_dlpack(Array array, uint64_t flags) {
  if (!array.present())
    throw_invalid("to_dlpack", "array", "be present", "an absent one", "export arrays that hold a tensor");
  auto exported = std::make_unique<Export>();
  exported->managed.version = {kMajor, kMinor};
  exported->managed.flags = flags;
  exported->managed.manager_ctx = exported.get();
  exported->managed.deleter = [](DLManagedTensorVersioned* self) { delete static_cast<Export*>(self->manager_ctx); };
  exported->managed.dl_tensor = to_dlpack_view(array, exported->shape.data(), exported->strides.data());
  exported->array = std::move(array);
  return &exported.release()->managed;
}

}  // namespace ejk
