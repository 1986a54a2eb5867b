// Twins on a device of buffers in host memory: a kernel works on the twins, and what it did is looked at on the host.
#pragma once

#include <map>
#include <memory>

#include "ejkernel/core/tensor.h"
#include "ejkernel/testing/buffer.h"

namespace ejk::testing {

/// On the host a buffer is its own twin, and nothing is copied. All work is in the order of one stream.
class Mirror {
 public:
  explicit Mirror(Device device, void* stream = nullptr) : device_(device), stream_(stream) {}

  /// The same view of the buffer's twin, which is made at the first call and gets the buffer's contents, bands
  /// included. Skews and strides stay what they are.
  Tensor up(const Placed& placed);
  /// Contents of every twin into its buffer; waits for the stream.
  void down();

 private:
  Device device_;
  void* stream_;
  std::map<std::shared_ptr<Buffer>, Array> twins_;
};

}  // namespace ejk::testing
