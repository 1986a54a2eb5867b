// Streams, events and graphs that the library makes for itself, with their device and their lifetime.
#pragma once

#include <functional>

#include "ejkernel/core/device.h"
#include "ejkernel/core/export.h"

namespace ejk::cuda {

/// Does not wait for the default stream, nor the default stream for it.
class EJK_API Stream {
 public:
  explicit Stream(Device device);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device device() const { return device_; }
  /// The driver's handle: what RunOptions::stream takes.
  void* handle() const { return handle_; }
  operator void*() const { return handle_; }  // NOLINT: it is passed wherever a stream is
  void synchronize() const;

 private:
  Device device_;
  void* handle_ = nullptr;
};

/// A point in a stream that can be timed and waited for.
class EJK_API Event {
 public:
  explicit Event(Device device);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(void* stream);
  void synchronize() const;
  /// Later work on `stream` waits for the recorded point.
  void hold(void* stream) const;
  void* handle() const { return handle_; }

 private:
  Device device_;
  void* handle_ = nullptr;
};

/// Time between two recorded events of one device; waits for the second.
EJK_API float elapsed_ms(const Event& begin, const Event& end);

/// What `work` launches on the stream, to be launched again as one: nothing runs while it is captured.
class EJK_API Graph {
 public:
  Graph(const Stream& stream, const std::function<void()>& work);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(void* stream) const;

 private:
  Device device_;
  void* executable_ = nullptr;
};

/// Whether work on the stream is being captured instead of run; of the default stream, also whether that on a stream
/// is which waits for it.
EJK_API bool is_capturing(Device device, void* stream);
/// Waits for everything on the stream (null: the default stream).
EJK_API void synchronize(Device device, void* stream);

}  // namespace ejk::cuda
