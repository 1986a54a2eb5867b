// What the CUDA kernels of mean_pooling are specialised for, shared by host and device. Includes nothing.
#pragma once

namespace ejk::cuda {

inline constexpr int kPoolingThreads = 256;
/// Blocks of the forward that a multiprocessor always holds: its kernels are compiled for so many.
inline constexpr int kPoolingBlocksPerUnit = 3;

/// A block is `rows` x `vectors` threads. A thread takes one vector of 16 bytes of every `rows`-th row, and has
/// `unroll` of them, a power of two, on their way from memory at a time.
struct MeanPoolingTile {
  int vectors, rows, unroll;
};

}  // namespace ejk::cuda
