#include "ejkernel/platform/cuda/stream.h"

#include "ejkernel/platform/cuda/driver.h"

namespace ejk::cuda {
namespace {

using namespace abi;  // NOLINT: the driver's names

CUstream as_stream(void* stream) { return static_cast<CUstream>(stream); }
CUevent as_event(void* event) { return static_cast<CUevent>(event); }

/// Destructors run while the process exits and after faults, when the driver refuses everything: nothing is lost then.
template <class Release>
void quietly(Device device, Release release) noexcept {
  try {
    const CurrentDevice current(device);
    release(driver());
  } catch (...) {  // NOLINT
  }
}

}  // namespace

Stream::Stream(Device device) : device_(device) {
  const CurrentDevice current(device);
  CUstream made = nullptr;
  driver().stream_create(&made, CU_STREAM_NON_BLOCKING);
  handle_ = made;
}

Stream::~Stream() {
  quietly(device_, [&](const DriverApi& api) { api.stream_destroy.attempt(as_stream(handle_)); });
}

void Stream::synchronize() const { cuda::synchronize(device_, handle_); }

Event::Event(Device device) : device_(device) {
  const CurrentDevice current(device);
  CUevent made = nullptr;
  driver().event_create(&made, 0);
  handle_ = made;
}

Event::~Event() {
  quietly(device_, [&](const DriverApi& api) { api.event_destroy.attempt(as_event(handle_)); });
}

void Event::record(void* stream) {
  const CurrentDevice current(device_);
  driver().event_record(as_event(handle_), as_stream(stream));
}

void Event::synchronize() const {
  const CurrentDevice current(device_);
  driver().event_synchronize(as_event(handle_));
}

void Event::hold(void* stream) const {
  const CurrentDevice current(device_);
  driver().stream_wait_event(as_stream(stream), as_event(handle_), 0);
}

float elapsed_ms(const Event& begin, const Event& end) {
  end.synchronize();
  float ms = 0;
  driver().event_elapsed_ms(&ms, as_event(begin.handle()), as_event(end.handle()));
  return ms;
}

Graph::Graph(const Stream& stream, const std::function<void()>& work) : device_(stream.device()) {
  const CurrentDevice current(device_);
  const DriverApi& api = driver();
  CUgraph graph = nullptr;
  api.stream_begin_capture(as_stream(stream.handle()), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  try {
    work();
  } catch (...) {
    // Otherwise the stream would stay in capture.
    if (api.stream_end_capture.attempt(as_stream(stream.handle()), &graph) == CUDA_SUCCESS && graph != nullptr)
      api.graph_destroy.attempt(graph);
    throw;
  }
  api.stream_end_capture(as_stream(stream.handle()), &graph);
  CUgraphExec executable = nullptr;
  const CUresult result = api.graph_instantiate.attempt(&executable, graph, 0);
  api.graph_destroy.attempt(graph);
  check(result, api.graph_instantiate.symbol);
  executable_ = executable;
}

Graph::~Graph() {
  quietly(device_,
          [&](const DriverApi& api) { api.graph_exec_destroy.attempt(static_cast<CUgraphExec>(executable_)); });
}

void Graph::launch(void* stream) const {
  const CurrentDevice current(device_);
  driver().graph_launch(static_cast<CUgraphExec>(executable_), as_stream(stream));
}

bool is_capturing(Device device, void* stream) {
  const CurrentDevice current(device);
  int status = 0;
  const auto& ask = driver().stream_is_capturing;
  const CUresult result = ask.attempt(as_stream(stream), &status);
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
  check(result, ask.symbol);
  return status != 0;
}

void synchronize(Device device, void* stream) {
  const CurrentDevice current(device);
  driver().stream_synchronize(as_stream(stream));
}

}  // namespace ejk::cuda
