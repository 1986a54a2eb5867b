// 16 x 16 pieces of 16-bit tiles between shared memory and the registers of a warp. Tiles are 64 columns wide, in the
// 128-byte swizzle.
//
// A piece is four 8 x 8 squares: lane l holds two neighbours of each in a word, row l / 4 and columns 2 (l % 4) and
// one more. The words are those of the upper left, the lower left, the upper right and the lower right square, which is
// how matrix instructions want the left operand, and how pairs of accumulators become one.
#pragma once

#include "ejkernel/platform/cuda/device/shared_address.cuh"
#include "ejkernel/platform/cuda/device/swizzle.cuh"
#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk::cuda {

/// Where a lane finds its row of a piece: rows first_row .. first_row + 15, columns 16 step .. 16 step + 15.
EJK_DEVICE uint32 address_of_columns(uint32 tile, int first_row, int step) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int row = first_row + lane % 16, chunk = step * 2 + lane / 16;
  return tile + swizzled_offset(row, chunk);
}
/// Writes a piece of a packed accumulator, elements 8 step .. 8 step + 7 of its thread's as words 0..3 (Hopper).
EJK_DEVICE void store_columns(uint32 tile, int first_row, int step, const uint32* words) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   address_of_columns(tile, first_row, step)),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
EJK_DEVICE void load_piece(uint32 address, uint32* words) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
/// The same with each square transposed: a word holds two neighbours of a column.
EJK_DEVICE void load_piece_transposed(uint32 address, uint32* words) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
EJK_DEVICE void load_columns(uint32 tile, int first_row, int step, uint32* words) {
  load_piece(address_of_columns(tile, first_row, step), words);
}

/// address_of_columns(tile, first_row, step) from a lane's address in the tile's first piece, without a register for
/// each: the tile starts at a multiple of 128 bytes, first_row is one of 16.
EJK_DEVICE uint32 move_to_columns(uint32 address, int first_row, int step) {
  return (address ^ static_cast<uint32>(step * 32)) + static_cast<uint32>(first_row * 128);
}

}  // namespace ejk::cuda
