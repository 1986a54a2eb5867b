/* Plain C through pkg-config: the typed functions, and a plan by hand. */
#include <ejkernel/c_api.h>
#include <ejkernel/ejkernel_ops.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int failures = 0;

static void expect(int ok, const char* what) {
  const char* error = "";
  ejk_last_error(&error);
  if (!ok) printf("wrong: %s (%s)\n", what, error);
  failures += !ok;
}

static DLTensor host_tensor(float* data, int64_t* shape, int32_t rank) {
  DLTensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.data = data;
  tensor.device.device_type = kDLCPU;
  tensor.ndim = rank;
  tensor.dtype.code = kDLFloat;
  tensor.dtype.bits = 32;
  tensor.dtype.lanes = 1;
  tensor.shape = shape;
  return tensor;
}

int main(void) {
  /* One query, two keys: logits 0, values 1 and 3. */
  float query[4] = {0}, keys[8] = {0}, values[2] = {1, 3}, out[1] = {-1}, lse[1] = {-1};
  int64_t query_shape[4] = {1, 1, 1, 4}, key_shape[4] = {1, 2, 1, 4}, value_shape[4] = {1, 2, 1, 1};
  int64_t out_shape[4] = {1, 1, 1, 1}, lse_shape[3] = {1, 1, 1};
  DLTensor q = host_tensor(query, query_shape, 4), k = host_tensor(keys, key_shape, 4);
  DLTensor v = host_tensor(values, value_shape, 4), o = host_tensor(out, out_shape, 4);
  DLTensor l = host_tensor(lse, lse_shape, 3);
  ejk_flash_attention_args args;
  ejk_tensor inputs[3], outputs[1];
  ejk_plan_options options;
  ejk_run_options run;
  ejk_plan_t* plan = NULL;
  char* json = NULL;
  int64_t window[2] = {0, 0};

  expect(strcmp(ejk_version(), EJK_VERSION) == 0, "version");

  ejk_flash_attention_init(&args);
  args.inputs.query = &q;
  args.inputs.key = &k;
  args.inputs.value = &v;
  args.outputs.out = &o;
  args.outputs.lse = &l;
  expect(ejk_flash_attention(&args) == EJK_OK, "flash_attention");
  expect(fabs(out[0] - 2) < 1e-6 && fabs(lse[0] - log(2.0)) < 1e-6, "its results");

  args.params.sliding_window = window; /* the last key alone */
  args.params.sliding_window_count = 2;
  expect(ejk_flash_attention(&args) == EJK_OK && fabs(out[0] - 3) < 1e-6, "a window");

  args.inputs.key = NULL;
  expect(ejk_flash_attention(&args) == EJK_INVALID_ARGUMENT, "an input that is missing");

  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.platform = "reference";
  inputs[0].name = "query", inputs[0].tensor = &q;
  inputs[1].name = "key", inputs[1].tensor = &k;
  inputs[2].name = "value", inputs[2].tensor = &v;
  outputs[0].name = "out", outputs[0].tensor = &o;
  expect(ejk_plan("flash_attention", inputs, 3, NULL, &options, &plan) == EJK_OK, "plan");
  expect(ejk_plan_info(plan, &json) == EJK_OK && strstr(json, "\"kernel\":\"reference\"") != NULL, "info");
  ejk_free(json);

  memset(&run, 0, sizeof run);
  run.size = sizeof run;
  run.workspace_bytes = 1 << 16;
  run.workspace = aligned_alloc(64, run.workspace_bytes);
  out[0] = -1;
  expect(ejk_plan_run(plan, inputs, 3, outputs, 1, &run) == EJK_OK && fabs(out[0] - 2) < 1e-6, "run");
  free(run.workspace);
  ejk_free(plan);

  printf(failures == 0 ? "all right\n" : "failed\n");
  return failures;
}
