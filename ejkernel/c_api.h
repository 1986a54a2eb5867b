/* The C interface of ejkernel: every operation through opaque handles, named tensors and size-tagged structs.
 * C99 and C++; ejkernel_ops.h adds one typed function per operation on top.
 *
 * Errors. What can fail returns an ejk_status, 0 on success; ejk_last_error() has the sentence for people. A call that
 * fails has no effect, and sets its out-parameter, if it has one, to NULL. No exception leaves the library. Any
 * function with a status may return EJK_INTERNAL (a bug of ours) or EJK_OUT_OF_MEMORY; the other codes are listed with
 * each function. A NULL where a pointer is required is EJK_INVALID_ARGUMENT.
 *
 * Ownership. What comes out through an out-parameter belongs to the caller, who gives it to ejk_free(). Everything
 * passed in stays the caller's and is copied if it is needed later: names, specs, parameters and options may go away as
 * soon as the call returns. Tensors' memory is only touched during ejk_plan_run and ejk_execute.
 *
 * Threads. Every function may be called from any thread. A plan is immutable and may run on many threads at once, with
 * outputs and workspaces of their own. An ejk_params_t may be read by many threads or changed by one.
 *
 * Structs. `size` is the caller's sizeof: a library accepts the structs of older headers, and those of newer ones as
 * long as all that it does not know is zero. Zero everywhere else means the default.
 *
 * Strings. Null-terminated UTF-8; JSON where it says so.
 */
#ifndef EJKERNEL_C_API_H_
#define EJKERNEL_C_API_H_

#include <stddef.h>
#include <stdint.h>

#include "ejkernel/core/dlpack_abi.h"
#include "ejkernel/core/export.h"

#define EJK_VERSION "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t ejk_status;
enum {
  EJK_OK = 0,
  EJK_INVALID_ARGUMENT = 1, /* the caller must change the call */
  EJK_UNSUPPORTED = 2,      /* no kernel here can do it; the text lists every kernel's reason */
  EJK_INTERNAL = 3,         /* our fault, or the driver's */
  EJK_NO_CONFIG = 4,        /* heuristics are switched off, and no config was given, scoped or cached */
  EJK_OUT_OF_MEMORY = 5     /* an allocation failed */
};

typedef struct ejk_params_t ejk_params_t; /* the parameters of a call, at first at their defaults */
typedef struct ejk_plan_t ejk_plan_t;     /* kernel and config bound to exact shapes, strides, dtypes and parameters */

/* One input or output by its declared name. Absent ones are left out of the list; its order is free, the declared order
 * is the fastest. For ejk_plan the data pointers are not looked at and may be NULL. */
typedef struct ejk_tensor {
  const char* name;
  const DLTensor* tensor;
} ejk_tensor;

typedef struct ejk_plan_options {
  size_t size;            /* sizeof(ejk_plan_options) */
  const char* platform;   /* "cpu", "reference", ...: that one or an error. NULL: EJKERNEL_PLATFORM, else any */
  const char* backend;    /* "cpu", "gpu", "tpu": the kind of device a kernel serves. NULL: any */
  const char* kernel;     /* one kernel by name, as strict as a platform. NULL: the first that supports the call */
  const char* config;     /* JSON, {"block_q": 64}: fields to set over the kernel's heuristic config; never stored */
  const char* policy;     /* where a config may come from: "autotune" (anywhere), "heuristics" (no measuring), "cached"
                           * (only what is known already). NULL: EJKERNEL_AUTOTUNE_POLICY */
  const DLDevice* device; /* the device the caller means: every tensor must be on it. NULL: the tensors' own */
} ejk_plan_options;

typedef struct ejk_run_options {
  size_t size;            /* sizeof(ejk_run_options) */
  void* stream;           /* a CUstream for CUDA devices; the host ignores it */
  void* workspace;        /* scratch memory of the plan's device, aligned to 64 bytes */
  size_t workspace_bytes; /* at least the plan's, see ejk_plan_info */
  uint32_t* status;       /* NULL, or a word of the plan's device that fault bits of index contents are OR-ed into */
} ejk_run_options;

/* "0.1.0", of the library that is running; EJK_VERSION is that of this header. A constant. */
EJK_API const char* ejk_version(void);

/* JSON: every registered operation with its inputs, parameters, outputs and kernels. */
EJK_API ejk_status ejk_operations(char** json);

/* ---- parameters ---- */

/* Parameters of an operation at their defaults. EJK_INVALID_ARGUMENT for an unknown operation. */
EJK_API ejk_status ejk_params_new(const char* operation, ejk_params_t** params);

/* Each sets one parameter by name. EJK_INVALID_ARGUMENT for an unknown name and for a value of another type; ranges are
 * checked by ejk_plan and ejk_execute. Integers serve for reals, and for windows (the same on both sides). Enumerations
 * and dtypes are set by name with _str; a NULL text makes an optional parameter absent again. Windows are (left, right)
 * with _i64s. */
EJK_API ejk_status ejk_params_set_i64(ejk_params_t* params, const char* name, int64_t value);
EJK_API ejk_status ejk_params_set_f64(ejk_params_t* params, const char* name, double value);
EJK_API ejk_status ejk_params_set_bool(ejk_params_t* params, const char* name, int value);
EJK_API ejk_status ejk_params_set_str(ejk_params_t* params, const char* name, const char* value);
EJK_API ejk_status ejk_params_set_i64s(ejk_params_t* params, const char* name, const int64_t* values, size_t count);

/* ejk_free for parameters. */
EJK_API void ejk_params_free(ejk_params_t* params);

/* ---- plans ---- */

/* Validates, chooses kernel and config, and binds them. `params` NULL: all defaults; `options` NULL: none. Under the
 * policy "autotune", which is the default, the first plan of a problem tries configs on data that it makes up, for up
 * to EJKERNEL_AUTOTUNE_BUDGET_MS; under the others it runs nothing. EJK_INVALID_ARGUMENT: unknown operation, unknown or
 * repeated name, wrong shape, dtype, stride, device or parameter. EJK_UNSUPPORTED: no kernel serves the call, or not
 * the platform, backend or kernel that is asked for. EJK_NO_CONFIG: as its comment says. */
EJK_API ejk_status ejk_plan(const char* operation, const ejk_tensor* inputs, size_t num_inputs,
                            const ejk_params_t* params, const ejk_plan_options* options, ejk_plan_t** plan);

/* Runs a plan: no allocation, no lock. Tensors must equal the planned ones but for their data; outputs that are left
 * out are not computed. An output that aliases an input is that input, given again or left out: its memory is written.
 * EJK_INVALID_ARGUMENT: other tensors than planned, an output that overlaps itself, NULL or misaligned data, or a
 * workspace that is too small. */
EJK_API ejk_status ejk_plan_run(const ejk_plan_t* plan, const ejk_tensor* inputs, size_t num_inputs,
                                const ejk_tensor* outputs, size_t num_outputs, const ejk_run_options* options);

/* JSON: the plan's outputs (name, dtype, shape), workspace_bytes, kernel, config and tier, work, why ("explain", and as
 * "text"), the sizes of its dimensions, where batch entries lie that are calls of their own, a label, and the plan
 * itself as the text that ejk_xla_handlers' custom calls take ("call"). */
EJK_API ejk_status ejk_plan_info(const ejk_plan_t* plan, char** json);

/* Plans and runs in one call, into outputs that the caller owns. A workspace is allocated inside unless `run` brings
 * one. Errors as ejk_plan and ejk_plan_run. */
EJK_API ejk_status ejk_execute(const char* operation, const ejk_tensor* inputs, size_t num_inputs,
                               const ejk_tensor* outputs, size_t num_outputs, const ejk_params_t* params,
                               const ejk_plan_options* plan, const ejk_run_options* run);

/* JSON: {"operation", "kernel", "platform", "tier", "config": {...}} of a plan. */
EJK_API ejk_status ejk_config_get(const ejk_plan_t* plan, char** json);

/* From now on in this process, plans for the same problem and kernel take this config (JSON, {"block_q": 64}: fields to
 * set over the plan's own) from the memory tier; existing plans keep theirs. EJK_INVALID_ARGUMENT: not an object of
 * integers, an unknown field, or an illegal value. */
EJK_API ejk_status ejk_config_set(const ejk_plan_t* plan, const char* config);

/* Measures the plan's kernel with other configs for at most `seconds`, on made-up data, and keeps the best one for this
 * process and in the store, whatever the policy says; existing plans keep theirs. JSON: {"faster", "config",
 * "heuristic", "ratio", "candidates", …}. EJK_UNSUPPORTED: the inputs take more memory than may be made up, or the
 * program that GPU candidates run in is not there. */
EJK_API ejk_status ejk_tune(const ejk_plan_t* plan, double seconds, char** json);

/* ---- inside XLA ---- */

/* What jax.ffi registers so that XLA runs plans: the XLA_FFI_Handlers of a call's stages. A custom call has one
 * attribute, `call`, the text of that name in ejk_plan_info; its operands are the present inputs in declared order, its
 * results the present outputs (of those that "outputs" in the text names, where it does, and all that alias an input,
 * which share its buffer: output_operand_aliases) and, where workspace_bytes is not 0, a uint8 vector of that size. */
typedef struct ejk_xla {
  size_t size; /* sizeof(ejk_xla) */
  void* instantiate;
  void* initialize; /* NULL on the CPU */
  void* execute;
} ejk_xla;

/* Fills in the handlers of "cpu" or "cuda". EJK_UNSUPPORTED for other platforms, and where the library was built
 * without XLA's headers. */
EJK_API ejk_status ejk_xla_handlers(const char* platform, ejk_xla* handlers);

/* ---- everything else ---- */

/* Code of the last call on this thread that failed, EJK_OK if none did; calls that succeed leave it alone. `text`, when
 * not NULL, is set to its sentence ("" if none), which lives until the next failure on this thread. */
EJK_API ejk_status ejk_last_error(const char** text);

enum { EJK_LOG_OFF = 0, EJK_LOG_ERROR = 1, EJK_LOG_WARNING = 2, EJK_LOG_INFO = 3, EJK_LOG_DEBUG = 4 };

/* Gets one message without a final newline; `text` lives until it returns. Calls never overlap. */
typedef void (*ejk_log_sink)(int32_t level, const char* text, void* user);

/* Sends the library's messages up to `level` to `sink`, in place of standard error and of EJKERNEL_LOG; a NULL sink
 * goes back to these. When it returns, the old sink is not called again. EJK_INVALID_ARGUMENT for an unknown level. */
EJK_API ejk_status ejk_set_log(ejk_log_sink sink, void* user, int32_t level);

/* Frees a string, parameters or a plan that this library handed out, once; NULL is fine. */
EJK_API void ejk_free(void* object);

#ifdef __cplusplus
}
#endif

#endif /* EJKERNEL_C_API_H_ */
