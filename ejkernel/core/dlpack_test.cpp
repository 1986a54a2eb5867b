#include "ejkernel/core/dlpack.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "ejkernel/core/allocator.h"
#include "ejkernel/core/error.h"

namespace ejk {
namespace {

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}

/// A producer's tensor: [2, 3] f32 in host memory, to be changed by the test.
struct Producer {
  std::vector<float> memory = {0, 1, 2, 3, 4, 5};
  std::array<int64_t, 8> shape = {2, 3};
  std::array<int64_t, 8> strides = {3, 1};
  DLTensor tensor = {.data = memory.data(),
                     .device = {kDLCPU, 0},
                     .ndim = 2,
                     .dtype = {kDLFloat, 32, 1},
                     .shape = shape.data(),
                     .strides = strides.data(),
                     .byte_offset = 0};
};

/// The same behind a managed struct that counts its deletions.
template <class Managed>
struct Lender : Producer {
  Managed managed = {};
  int deletions = 0;
  Lender() {
    managed.dl_tensor = tensor;
    managed.manager_ctx = this;
    managed.deleter = [](Managed* self) { ++static_cast<Lender*>(self->manager_ctx)->deletions; };
  }
};
struct VersionedLender : Lender<DLManagedTensorVersioned> {
  VersionedLender() { managed.version = {1, 0}; }
};
using LegacyLender = Lender<DLManagedTensor>;

TEST(Dlpack, a_view_has_the_memory_shape_and_strides_of_its_source) {
  Producer producer;
  const Tensor view = from_dlpack(producer.tensor);
  EXPECT_EQ(view.data, producer.memory.data());
  EXPECT_EQ(view.dtype, DType::f32);
  EXPECT_EQ(view.device, Device{});
  EXPECT_EQ(view.shape, (Shape{2, 3}));
  EXPECT_EQ(view.strides, (Shape{3, 1}));

  producer.strides = {1, 2};
  producer.tensor.byte_offset = 4;
  EXPECT_EQ(get(from_dlpack(producer.tensor), 1), 3);  // 1 + 2 elements
}

TEST(Dlpack, null_strides_are_row_major_and_rank_zero_needs_no_shape) {
  Producer producer;
  producer.tensor.strides = nullptr;
  EXPECT_EQ(from_dlpack(producer.tensor).strides, (Shape{3, 1}));
  producer.tensor.ndim = 0;
  producer.tensor.shape = nullptr;
  const Tensor scalar = from_dlpack(producer.tensor);
  EXPECT_EQ(scalar.rank(), 0);
  EXPECT_EQ(scalar.num_elements(), 1);
}

TEST(Dlpack, data_may_be_null_for_specs_and_empty_tensors) {
  Producer producer;
  producer.tensor.data = nullptr;
  producer.tensor.byte_offset = 64;
  EXPECT_EQ(from_dlpack(producer.tensor).data, nullptr);
  producer.shape = {0, 3};
  EXPECT_EQ(from_dlpack(producer.tensor).num_elements(), 0);
}

TEST(Dlpack, every_dtype_has_the_official_code_and_comes_back) {
  const std::array<DLDataType, kNumDTypes> official = {{{2, 64, 1},
                                                        {2, 32, 1},
                                                        {2, 16, 1},
                                                        {4, 16, 1},
                                                        {10, 8, 1},
                                                        {12, 8, 1},
                                                        {0, 64, 1},
                                                        {0, 32, 1},
                                                        {1, 32, 1},
                                                        {0, 8, 1},
                                                        {1, 8, 1},
                                                        {0, 4, 1},
                                                        {6, 8, 1}}};
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    const DLDataType type = to_dlpack(dtype);
    const DLDataType& expected = official[static_cast<size_t>(i)];
    EXPECT_EQ(type.code, expected.code) << name(dtype);
    EXPECT_EQ(type.bits, expected.bits) << name(dtype);
    EXPECT_EQ(type.lanes, 1) << name(dtype);
    EXPECT_EQ(from_dlpack(type), dtype);
  }
  int accepted = 0;
  for (int code = 0; code < 256; ++code)
    for (int bits = 0; bits < 256; ++bits)
      accepted += from_dlpack(DLDataType{static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1}) ? 1 : 0;
  EXPECT_EQ(accepted, kNumDTypes);
  EXPECT_EQ(from_dlpack(DLDataType{kDLFloat, 32, 4}), std::nullopt);
  EXPECT_EQ(from_dlpack(DLDataType{kDLFloat, 32, 0}), std::nullopt);
}

TEST(Dlpack, devices_are_mapped_and_unknown_ones_refused) {
  const auto device = [](int type, int id) {
    Producer producer;
    producer.tensor.device = {static_cast<DLDeviceType>(type), id};
    return from_dlpack(producer.tensor).device;
  };
  EXPECT_EQ(device(kDLCPU, 0), Device{});
  EXPECT_EQ(device(kDLCPU, 7), Device{});  // some producers number their host
  EXPECT_EQ(device(kDLCUDAHost, 1), Device{});
  EXPECT_EQ(device(kDLROCMHost, 0), Device{});
  EXPECT_EQ(device(kDLCUDA, 3), (Device{DeviceKind::cuda, 3}));
  EXPECT_EQ(device(kDLCUDAManaged, 0), (Device{DeviceKind::cuda, 0}));
  EXPECT_THROW(device(kDLCUDA, -1), InvalidArgument);
  for (int type : {0, 4, 7, 8, 9, 10, 12, 14, 15, 16, 17, 18, 99, -1}) EXPECT_THROW(device(type, 0), InvalidArgument);
}

TEST(Dlpack, errors_name_the_operation_the_argument_and_what_was_given) {
  const auto error = [](const std::function<void(Producer&)>& spoil) {
    Producer producer;
    spoil(producer);
    return error_of([&] { from_dlpack(producer.tensor, "flash_attention", "query"); });
  };
  EXPECT_EQ(error([](Producer& p) {
              p.tensor.dtype = {kDLComplex, 64, 1};
            }),
            "flash_attention: query must have the DLPack type of one of f64, f32, f16, bf16, e4m3, e5m2, i64, i32, "
            "u32, i8, u8, i4, bool, got code 5, 64 bits, 1 lanes; convert the elements first");
  EXPECT_EQ(error([](Producer& p) { p.tensor.ndim = 7; }),
            "flash_attention: query must have 0 to 6 axes, got 7; merge or drop axes");
  EXPECT_EQ(error([](Producer& p) { p.tensor.ndim = -1; }),
            "flash_attention: query must have 0 to 6 axes, got -1; merge or drop axes");
  EXPECT_EQ(error([](Producer& p) { p.tensor.shape = nullptr; }),
            "flash_attention: query must have a shape, got a null pointer; set shape");
  EXPECT_EQ(error([](Producer& p) {
              p.shape = {2, -3};
            }),
            "flash_attention: query must have no negative extent, got [2, -3]; correct the shape");
}

TEST(Dlpack, what_cannot_lie_in_memory_is_refused) {
  const auto refused = [](Shape shape, Shape strides, uint64_t byte_offset, bool with_data) {
    Producer producer;
    producer.shape = {shape[0], shape[1]};
    producer.strides = {strides[0], strides[1]};
    producer.tensor.byte_offset = byte_offset;
    if (!with_data) producer.tensor.data = nullptr;
    return error_of([&] { from_dlpack(producer.tensor); }) != "no InvalidArgument";
  };
  EXPECT_TRUE(refused({INT64_MAX, INT64_MAX}, {0, 0}, 0, false));
  EXPECT_TRUE(refused({2, 2}, {INT64_MAX, 1}, 0, false));
  EXPECT_TRUE(refused({2, 2}, {INT64_MIN, 1}, 0, true));
  EXPECT_TRUE(refused({2, 2}, {-(int64_t{1} << 55), 1}, 0, true));  // below address 0
  EXPECT_TRUE(refused({2, 2}, {2, 1}, UINT64_MAX, true));
  EXPECT_FALSE(refused({2, 2}, {-(int64_t{1} << 55), 1}, 0, false));
  EXPECT_FALSE(refused({2, 2}, {-2, 1}, 8, true));
  EXPECT_FALSE(refused({1, 0}, {INT64_MAX, INT64_MIN}, 0, true));
}

TEST(Dlpack, a_view_goes_out_and_comes_back_unchanged) {
  std::vector<uint8_t> memory(64);
  std::array<int64_t, kMaxRank> shape{}, strides{};
  for (const Device device : {Device{}, Device{DeviceKind::cuda, 2}}) {
    const Tensor tensor(memory.data(), DType::i4, {2, 3, 4}, {12, -1, 3}, device);
    const Tensor back = from_dlpack(to_dlpack_view(tensor, shape.data(), strides.data()));
    EXPECT_EQ(back.data, tensor.data);
    EXPECT_EQ(back.dtype, tensor.dtype);
    EXPECT_EQ(back.device, tensor.device);
    EXPECT_EQ(back.shape, tensor.shape);
    EXPECT_EQ(back.strides, tensor.strides);
  }
  EXPECT_EQ(error_of([&] { to_dlpack_view(Tensor{}, shape.data(), strides.data()); }),
            "to_dlpack_view: tensor must be present, got an absent one; leave the argument out instead");
}

template <class L>
class DlpackImport : public ::testing::Test {};
using Lenders = ::testing::Types<VersionedLender, LegacyLender>;
TYPED_TEST_SUITE(DlpackImport, Lenders);

TYPED_TEST(DlpackImport, the_deleter_runs_once_with_the_last_copy) {
  TypeParam lender;
  {
    Array array = from_dlpack(&lender.managed);
    EXPECT_EQ(array.data(), lender.memory.data());
    const Array copy = array;
    array = Array();
    EXPECT_EQ(get(copy, 5), 5);
    EXPECT_EQ(lender.deletions, 0);
  }
  EXPECT_EQ(lender.deletions, 1);
}

TYPED_TEST(DlpackImport, the_deleter_runs_once_when_the_import_fails) {
  TypeParam lender;
  lender.managed.dl_tensor.ndim = 9;
  EXPECT_THROW(from_dlpack(&lender.managed), InvalidArgument);
  EXPECT_EQ(lender.deletions, 1);
}

TYPED_TEST(DlpackImport, a_missing_deleter_is_fine_and_a_null_pointer_is_not) {
  TypeParam lender;
  lender.managed.deleter = nullptr;
  EXPECT_TRUE(from_dlpack(&lender.managed).present());
  decltype(&lender.managed) null = nullptr;
  EXPECT_THROW(from_dlpack(null), InvalidArgument);
}

TEST(Dlpack, a_read_only_tensor_may_be_read_and_not_written) {
  VersionedLender lender;
  EXPECT_FALSE(is_read_only(lender.managed));
  EXPECT_TRUE(from_dlpack(&lender.managed, Access::write).present());
  EXPECT_EQ(lender.deletions, 1);

  lender.managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY | DLPACK_FLAG_BITMASK_IS_COPIED;
  EXPECT_TRUE(is_read_only(lender.managed));
  EXPECT_TRUE(from_dlpack(&lender.managed).present());
  EXPECT_EQ(lender.deletions, 2);
  EXPECT_EQ(error_of([&] { from_dlpack(&lender.managed, Access::write); }),
            "from_dlpack: tensor must be writable, got a read-only one; copy it, or use it as an input only");
  EXPECT_EQ(lender.deletions, 3);
}

TEST(Dlpack, another_major_version_is_refused_without_looking_at_the_tensor) {
  VersionedLender lender;
  lender.managed.version = {2, 0};
  lender.managed.dl_tensor.shape = reinterpret_cast<int64_t*>(1);
  EXPECT_THROW(from_dlpack(&lender.managed), InvalidArgument);
  EXPECT_EQ(lender.deletions, 1);
  lender.managed.dl_tensor.shape = lender.shape.data();
  lender.managed.version = {1, 99};
  EXPECT_TRUE(from_dlpack(&lender.managed).present());
}

TEST(Dlpack, padded_nibbles_are_refused_and_packed_ones_are_not) {
  VersionedLender lender;
  lender.managed.flags = DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
  EXPECT_TRUE(from_dlpack(&lender.managed).present());  // no effect on whole bytes
  lender.managed.dl_tensor.dtype = {kDLInt, 4, 1};
  EXPECT_THROW(from_dlpack(&lender.managed), InvalidArgument);
  lender.managed.flags = 0;
  EXPECT_EQ(from_dlpack(&lender.managed).dtype(), DType::i4);
  EXPECT_EQ(lender.deletions, 3);
}

TEST(Dlpack, an_exported_array_lives_until_its_deleter_is_called) {
  const int64_t before = num_host_blocks();
  Array array(DType::bf16, {2, 3, 4});
  set(array, 7, 1.5);
  const void* data = array.data();
  DLManagedTensorVersioned* exported = to_dlpack(std::move(array), DLPACK_FLAG_BITMASK_READ_ONLY);
  array = Array();
  EXPECT_EQ(num_host_blocks(), before + 1);
  EXPECT_EQ(exported->version.major, 1u);
  EXPECT_EQ(exported->version.minor, 1u);
  EXPECT_EQ(exported->dl_tensor.data, data);
  EXPECT_EQ(exported->dl_tensor.ndim, 3);
  EXPECT_EQ(exported->dl_tensor.strides[0], 12);
  EXPECT_EQ(exported->dl_tensor.device.device_type, kDLCPU);
  EXPECT_TRUE(is_read_only(*exported));
  EXPECT_EQ(get(from_dlpack(exported->dl_tensor), 7), 1.5);
  exported->deleter(exported);
  EXPECT_EQ(num_host_blocks(), before);
}

TEST(Dlpack, an_exported_array_can_be_imported_again) {
  const int64_t before = num_host_blocks();
  {
    Array original(DType::f32, {4});
    set(original, 3, 9);
    const Array back = from_dlpack(to_dlpack(original), Access::write);
    original = Array();
    EXPECT_EQ(get(back, 3), 9);
  }
  EXPECT_EQ(num_host_blocks(), before);
  EXPECT_THROW(to_dlpack(Array()), InvalidArgument);
}

}  // namespace
}  // namespace ejk
