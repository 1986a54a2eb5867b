// An application that includes an official dlpack.h first keeps its declarations. This stands in for one of before 1.0,
// which has the guard, the tensor and the unversioned managed tensor; ours must add the versioned one and nothing else.
#define DLPACK_DLPACK_H_
#define DLPACK_VERSION 60

#include <stdint.h>

extern "C" {
typedef enum { kDLCPU = 1, kDLCUDA = 2 } DLDeviceType;
typedef struct {
  DLDeviceType device_type;
  int device_id;
} DLDevice;
typedef enum { kDLInt = 0U, kDLUInt = 1U, kDLFloat = 2U, kDLBfloat = 4U } DLDataTypeCode;
typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;
typedef struct {
  void* data;
  DLDevice device;
  int ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor* self);
} DLManagedTensor;
}

#include <gtest/gtest.h>

#include "ejkernel/core/dlpack.h"

namespace ejk {
namespace {

TEST(DlpackAbi, an_official_header_included_first_serves_as_well) {
  float memory[6] = {0, 1, 2, 3, 4, 5};
  int64_t shape[2] = {2, 3};
  DLTensor tensor = {memory, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, nullptr, 0};
  EXPECT_EQ(get(from_dlpack(tensor), 4), 4);

  DLManagedTensorVersioned managed = {};
  managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  managed.dl_tensor = tensor;
  EXPECT_TRUE(is_read_only(managed));
  EXPECT_EQ(from_dlpack(&managed).data(), memory);
}

}  // namespace
}  // namespace ejk
