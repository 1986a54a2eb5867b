// Loops that do nothing but keep one resource of the processor busy: the ceilings that percentages refer to. They hold
// no clock; runtime/calibration.h times them.
#pragma once

#include <cstdint>

namespace ejk::cpu {

/// Independent float32 multiply-adds in registers on the calling thread, with the widest vectors the kernels use.
/// Returns the operations done, two per multiply-add.
double multiply_add(int64_t rounds);

/// The same in float64; 0, and nothing done, where vectors have none.
double f64_multiply_add(int64_t rounds);

/// The same with the instruction that adds up the products of pairs of bfloat16 numbers in float32. 0, and nothing
/// done, on a processor without one.
double bf16_multiply_add(int64_t rounds);

/// The same with the instruction that adds up the products of four int8 numbers in int32.
double i8_multiply_add(int64_t rounds);

/// Reads `count` words on the calling thread, as fast as memory gives them, and returns their exclusive or.
uint32_t read_words(const uint32_t* words, int64_t count);

}  // namespace ejk::cpu
