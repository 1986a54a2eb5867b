// What chunk.h says, in vectors: functions of chunk.cpp, for one instruction set. Decays come as rows: [token][key] or
// [token][value]. Included once per instruction set, after simd-inl.h.

#include "ejkernel/platform/cpu/chunk.h"
#include "ejkernel/platform/cpu/function_ref.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::cpu::HWY_NAMESPACE {

// ---- decays between a token and an end of the chunk ----

/// y_i = Λ(0→i) ∘ x_i. `y` may be `x`.
void decay_from_start(const ChunkRows& decay, const ChunkRows& x, const ChunkRows& y);
/// y_j = Λ(j→C) ∘ x_j, and whole = Λ(0→C). `y` may be `x`.
void decay_to_end(const ChunkRows& decay, const ChunkRows& x, const ChunkRows& y, float* whole);

// ---- pairs of tokens ----

/// One number a token instead of a row: table_ij = Λ(j→i) for j <= i, else 0. Token i's decay is decay.row(i)[0].
void decay_table(const ChunkRows& decay, const ChunkRows& table);
/// scores_ij = Σ_k x_ik Λ(j→i)_k y_jk for j <= i, else 0. `panel` is scratch of kChunk * padded(y.columns) floats.
void decayed_scores(const ChunkRows& x, const ChunkRows& y, const ChunkRows& decay, float* panel,
                    const ChunkRows& scores);
/// scores_ij = table_ij Σ_k x_ik y_jk: the same where one number a token decays all of it. Without a table, its numbers
/// for j <= i are 1.
void plain_scores(const ChunkRows& x, const ChunkRows& y, const ChunkRows& table, float* panel,
                  const ChunkRows& scores);
/// out_i = or += Σ_{j<=i} weights_ij y_j; weights are 0 for j > i.
template <bool kAdd>
void weighted_sums(const ChunkRows& weights, const ChunkRows& y, const ChunkRows& out);
/// out_i = Σ_{j<=i} weights_ij Λ(j→i) ∘ y_j
void decayed_sums(const ChunkRows& weights, const ChunkRows& y, const ChunkRows& decay, const ChunkRows& out);

// ---- the state ----

/// to = (key_decay ⊗ value_decay) ∘ from + Σ_j keys_j ⊗ values_j; without a value_decay, 1 in its place. `from` lies
/// as `to` does, and may be its data. `between` is called before each block of at most update_block_size() numbers.
void update_state(const float* from, const ChunkState& to, const float* key_decay, const float* value_decay,
                  const ChunkRows& keys, const ChunkRows& values, FunctionRef<void()> between);
void update_state(const float* from, const ChunkState& to, const float* key_decay, const float* value_decay,
                  const ChunkRows& keys, const ChunkRows& values);
/// Numbers of the state in the largest block of an update.
int64_t update_block_size();
/// out_i = or += x_i S
template <bool kAdd>
void read_state(const ChunkState& s, const ChunkRows& x, const ChunkRows& out);
/// out_i = S x_i, a row of keys for a row of values. `turned` is scratch of ChunkState::turned_size.
void read_state_across(const ChunkState& s, const ChunkRows& x, float* turned, const ChunkRows& out);
/// to += from
void add_rows(const ChunkRows& from, const ChunkRows& to);
/// rows *= factor
void scale_rows(float factor, const ChunkRows& rows);
/// Sum of one row, whose padding is 0.
float sum_row(const ChunkRows& rows, int64_t i);

// ---- gradients ----

/// to_ij = a_ij b_ij
void multiply_tables(const ChunkRows& a, const ChunkRows& b, const ChunkRows& to);
/// With weights_ij (0 for j > i) the gradients of Σ_{j<=i} weights_ij Σ_c x_ic Λ(j→i)_c y_jc: added to dx_i and dy_j
/// and, of log decay t, to d_gate_t.
void add_pair_gradients(const ChunkRows& weights, const ChunkRows& x, const ChunkRows& y, const ChunkRows& decay,
                        const ChunkRows& dx, const ChunkRows& dy, const ChunkRows& d_gate);
/// out_j += Σ_{i>=j} weights_ij x_i: what rows of scores give the columns.
void add_sums_down(const ChunkRows& weights, const ChunkRows& x, const ChunkRows& out);
/// to_t += Σ_{j<t<=i} a_ij b_ij: the gradient of the log decay that is one number for all of token t.
void add_pair_products(const ChunkRows& a, const ChunkRows& b, float* to);
/// gate_t = ends + Σ_{i>=t} x_i ∘ dx_i + Σ_{j<t} y_j ∘ dy_j: what passes token t from and to the ends of the chunk.
void find_end_gradients(const float* ends, const ChunkRows& x, const ChunkRows& dx, const ChunkRows& y,
                        const ChunkRows& dy, const ChunkRows& gate);
/// What passes the whole chunk: S ∘ E times its decay, summed over values for each key, and over keys for each value.
/// Without value_decay, 1 in its place. A null sum is not wanted.
void sum_state_products(const ChunkState& s, const ChunkState& e, const float* key_decay, const float* value_decay,
                        float* per_key, float* per_value);

}  // namespace ejk::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
