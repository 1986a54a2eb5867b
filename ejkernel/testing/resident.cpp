#include "ejkernel/testing/resident.h"

#include <string>

#include "ejkernel/platform/cuda/driver.h"
#include "ejkernel/runtime/devices.h"

namespace ejk::testing {
namespace {

size_t bytes_of(const Tensor& t) { return static_cast<size_t>(num_bytes(t.dtype, t.shape)); }
cuda::abi::CUdeviceptr address(const Tensor& t) { return reinterpret_cast<cuda::abi::CUdeviceptr>(t.data); }
cuda::abi::CUstream driver_stream(void* stream) { return static_cast<cuda::abi::CUstream>(stream); }

/// In a registry of one, so that no other kernel can answer for this one.
Plan plan_for(const Problem& problem, const Kernel& kernel, Device device, const std::optional<ConfigValues>& config) {
  auto alone = std::make_shared<RegisteredOperation>();
  alone->declaration = problem.operation;
  alone->kernels = {kernel};
  std::vector<Tensor> specs;
  for (const Tensor& input : problem.views())
    specs.push_back(input.present() ? Tensor(nullptr, input.dtype, input.shape, device) : Tensor());
  return Plan::make(std::move(alone), specs, problem.params, {.kernel = kernel->name, .config = config});
}

}  // namespace

Resident::Resident(const Problem& problem, const Kernel& kernel, Device device,
                   const std::optional<ConfigValues>& config)
    : plan_(plan_for(problem, kernel, device, config)) {
  for (const Tensor& input : problem.views()) {
    owned_.push_back(input.present() ? to_device(contiguous(input), device) : Array());
    inputs_.push_back(owned_.back());
  }
  allocate();
}

Resident::Resident(Plan plan, std::vector<Tensor> inputs) : plan_(std::move(plan)), inputs_(std::move(inputs)) {
  allocate();
}

void Resident::allocate() {
  outputs_ = plan_.allocate_outputs();
  output_views_.assign(outputs_.begin(), outputs_.end());
  workspace_ = Array(DType::u8, {static_cast<int64_t>(plan_.workspace_bytes())}, plan_.device());
  poison(nullptr);
  synchronize(plan_.device());  // from now on the memory is there for every stream
}

void Resident::run(void* stream) const {
  plan_.run(inputs_, output_views_,
            {.stream = stream, .workspace = {workspace_.as<std::byte>(), plan_.workspace_bytes()}});
}

void Resident::poison(void* stream) const {
  const cuda::CurrentDevice current(plan_.device());
  for (const Tensor& output : output_views_)
    if (output.num_elements() > 0) cuda::driver().fill(address(output), 0xff, bytes_of(output), driver_stream(stream));
}

void Resident::take_inputs(const Resident& other, void* stream) const {
  const cuda::CurrentDevice current(plan_.device());
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i].num_elements() > 0)
      cuda::driver().copy_on_device(address(inputs_[i]), address(other.inputs_[i]), bytes_of(inputs_[i]),
                                    driver_stream(stream));
}

Digest Resident::digest(void* stream) const {
  std::string bytes;
  for (const Tensor& output : output_views_) {
    if (!output.present()) continue;
    const Array contents = to_host(output, stream);
    bytes.append(contents.as<char>(), bytes_of(contents));
  }
  return digest_of(bytes);
}

Digest Resident::result(void* stream) const {
  poison(stream);
  run(stream);
  return digest(stream);
}

}  // namespace ejk::testing
