// A profiler's half of NVTX: appends what ranges begin and end to the file that EJK_TEST_NVTX_FILE names.
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>

namespace {

void tell(const char* text) {
  std::FILE* file = std::fopen(std::getenv("EJK_TEST_NVTX_FILE"), "a");
  if (file == nullptr) return;
  std::fprintf(file, "%s\n", text);
  std::fclose(file);
}

int push(const char* name) {
  tell(name);
  return 0;
}
int pop() {
  tell("end");
  return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop);
  return 1;
}
