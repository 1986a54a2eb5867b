#include "ejkernel/testing/resident.h"

#include <string>

#include "ejkernel/platform/cuda/driver.h"
#include "ejkernel/runtime/devices.h"

namespace ejk::testing {
namespace {

size_t bytes_of(const Tensor& t) { return static_cast<size_t>(num_bytes(t.dtype, t.shape)); }
cuda::abi::CUdeviceptr address(const Tensor& t) { return reinterpret_cast<cuda::abi::CUdeviceptr>(t.data); }
cuda::abi::CUstream driver_stream(void* stream) { return static_cast<cuda::abi::CUstream>(stream); }

/// All that a tensor's strides span, as bytes.
Tensor whole_span(const Tensor& t) {
  const auto [first, last] = element_range(t);
  return Tensor(t.as<std::byte>() + first * bits(t.dtype) / 8, DType::u8, {num_bytes(t.dtype, {last - first})},
                t.device);
}

/// Between tensors of one device that are alike; the current one.
void copy_contents(const Tensor& from, const Tensor& to, void* stream) {
  if (to.num_elements() > 0)
    cuda::driver().copy_on_device(address(to), address(from), bytes_of(to), driver_stream(stream));
}

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
  view_aliased(plan_.outputs(), inputs_, outputs_);
  first_contents_.resize(inputs_.size());
  for (const OutputSpec& spec : plan_.outputs()) {
    if (spec.aliased_input < 0) continue;
    const auto i = static_cast<size_t>(spec.aliased_input);
    const Tensor contents = whole_span(inputs_[i]);
    first_contents_[i] = Array(contents.dtype, contents.shape, contents.device);
    const cuda::CurrentDevice current(plan_.device());
    copy_contents(contents, first_contents_[i], nullptr);
  }
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
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (first_contents_[i].present()) copy_contents(first_contents_[i], whole_span(inputs_[i]), stream);
  for (size_t o = 0; o < output_views_.size(); ++o)
    if (const Tensor& output = output_views_[o]; output.num_elements() > 0 && plan_.outputs()[o].aliased_input < 0)
      cuda::driver().fill(address(output), 0xff, bytes_of(output), driver_stream(stream));
}

void Resident::take_inputs(const Resident& other, void* stream) const {
  const cuda::CurrentDevice current(plan_.device());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    copy_contents(other.inputs_[i], inputs_[i], stream);
    if (first_contents_[i].present()) copy_contents(other.first_contents_[i], first_contents_[i], stream);
  }
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
