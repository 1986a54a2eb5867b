// C++11 without exceptions and RTTI, through the C header.
#include <ejkernel/c_api.h>
#include <ejkernel/ejkernel_ops.h>

#include <cstdio>
#include <memory>

namespace {

struct Free {
  void operator()(void* object) const { ejk_free(object); }
};

DLTensor host_tensor(float* data, int64_t* shape) {
  DLTensor tensor = DLTensor();
  tensor.data = data;
  tensor.device.device_type = kDLCPU;
  tensor.ndim = 3;
  tensor.dtype.code = kDLFloat;
  tensor.dtype.bits = 32;
  tensor.dtype.lanes = 1;
  tensor.shape = shape;
  return tensor;
}

}  // namespace

int main() {
  float tokens[6] = {1, 2, 3, 4, 5, 6}, means[2] = {0, 0};
  int64_t tokens_shape[3] = {1, 3, 2}, means_shape[2] = {1, 2};
  DLTensor x = host_tensor(tokens, tokens_shape), out = host_tensor(means, means_shape);
  out.ndim = 2;

  ejk_mean_pooling_args args;
  ejk_mean_pooling_init(&args);
  args.inputs.x = &x;
  args.outputs.out = &out;
  if (ejk_mean_pooling(&args) != EJK_OK || means[0] != 3 || means[1] != 4) return 1;

  ejk_params_t* params = nullptr;
  const char* text = nullptr;
  if (ejk_params_new("no_such_operation", &params) != EJK_INVALID_ARGUMENT || params != nullptr) return 2;
  if (ejk_last_error(&text) != EJK_INVALID_ARGUMENT || *text == '\0') return 3;
  if (ejk_params_new("flash_attention", &params) != EJK_OK) return 4;
  const std::unique_ptr<ejk_params_t, Free> owner(params);
  if (ejk_params_set_bool(params, "causal", 1) != EJK_OK) return 5;
  std::puts("all right");
  return 0;
}
