// Tensors in and out of other libraries without a copy, by the DLPack protocol (1.1, and its form before 1.0).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "ejkernel/core/dlpack_abi.h"
#include "ejkernel/core/dtype.h"
#include "ejkernel/core/export.h"
#include "ejkernel/core/tensor.h"

namespace ejk {

/// The DLPack type of a dtype (one lane), and back; absent for a type that no DType stands for.
EJK_API DLDataType to_dlpack(DType dtype);
EJK_API std::optional<DType> from_dlpack(DLDataType type);

/// A view of what `tensor` describes. Pinned host memory counts as host memory, managed memory as the GPU's. Data may
/// be null (the specs of a plan have none). Throws InvalidArgument in the name of `operation` and `argument` for a
/// dtype, device, rank or extent that the library has not, and for strides that leave the address space.
EJK_API Tensor from_dlpack(const DLTensor& tensor, std::string_view operation = "from_dlpack",
                           std::string_view argument = "tensor");

/// Describes `tensor`, which must be present. `shape` and `strides` are room for kMaxRank numbers each; they and the
/// tensor's memory must outlive the result.
EJK_API DLTensor to_dlpack_view(const Tensor& tensor, int64_t* shape, int64_t* strides);

/// What an imported tensor is for.
enum class Access : uint8_t { read, write };
EJK_API bool is_read_only(const DLManagedTensorVersioned& managed);

/// Takes `managed` over, in every case: its deleter runs once, with the last copy of the Array or before an exception
/// leaves. InvalidArgument as above, for another major version, and for write access to a read-only tensor.
EJK_API Array from_dlpack(DLManagedTensorVersioned* managed, Access access = Access::read);
/// The same for producers before DLPack 1.0, which cannot say that a tensor is read-only.
EJK_API Array from_dlpack(DLManagedTensor* managed);

/// Hands the array to another library, which calls the deleter once. `flags` are DLPACK_FLAG_BITMASK_…: pass the
/// read-only one for memory that its consumer must not write.
EJK_API DLManagedTensorVersioned* to_dlpack(Array array, uint64_t flags = 0);

}  // namespace ejk
