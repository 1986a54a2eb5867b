// The step form: a token's whole effect on a state in one pass over it. Included once per instruction set, after
// recurrent_attention_chunk-inl.h.

HWY_BEFORE_NAMESPACE();
namespace ejk::recurrence::HWY_NAMESPACE {

/// One token. Rows are aligned and padded.
struct StepToken {
  int64_t keys;
  const float *query, *key, *key_decay;
  const float *value, *value_decay;  ///< null: 1
  float* out;
};

/// A number of a state that goes past the caches, and comes into them early where it is read: of states that are
/// larger.
template <class T>
struct Streamed {
  T number;
};

namespace step_detail {

constexpr int64_t kAhead = 4096;  // bytes; by themselves processors do not look beyond a page

template <class T>
HWY_INLINE FloatV load_state_vector(const T* from) {
  return load_floats(from);
}
template <class T>
HWY_INLINE FloatV load_state_vector(const Streamed<T>* from) {
  prefetch(from, kAhead);
  return load_floats(&from->number);
}

template <class T>
HWY_INLINE void store_state_vector(FloatV x, T* to) {
  store_floats(x, to);
}
HWY_INLINE void store_state_vector(FloatV x, Streamed<float>* to) { hn::Stream(x, FloatTag(), &to->number); }
HWY_INLINE void store_state_vector(FloatV x, Streamed<bf16_t>* to) {
  if constexpr (HWY_MAX_BYTES < 32) {  // half a vector of 16 bytes: there is no such store, or it writes all 16
    store_floats(x, &to->number);
  } else {
    const hn::Rebind<uint16_t, WordTag> half;
    HWY_ALIGN bf16_t rounded[cpu::kMaxLanes];
    store_floats(x, rounded);
    hn::Stream(hn::Load(half, reinterpret_cast<const uint16_t*>(rounded)), half, reinterpret_cast<uint16_t*>(to));
  }
}

template <bool kValueDecay, class From, class To>
HWY_INLINE void step(const From* from, To* to, FloatV decay, FloatV key, FloatV query, FloatV value, FloatV value_decay,
                     FloatV& out) {
  FloatV state = hn::Mul(decay, load_state_vector(from));
  if constexpr (kValueDecay) state = hn::Mul(state, value_decay);
  state = hn::MulAdd(key, value, state);
  out = hn::MulAdd(query, state, out);
  store_state_vector(state, to);
}

/// All keys of kVectors vectors of columns from `column` on. Vectors of scalable size cannot stand in arrays: hence the
/// names.
template <int kVectors, bool kValueDecay, class From, class To>
HWY_NOINLINE void step_columns(const StepToken& t, int64_t column, const From* from, int64_t from_stride, To* to,
                               int64_t to_stride) {
  static_assert(kVectors == 1 || kVectors == 4);
  const FloatTag d;
  const int64_t n = lanes(), n1 = kVectors == 4 ? n : 0, n2 = 2 * n1, n3 = 3 * n1;
  const float *value = t.value + column, *decays = kValueDecay ? t.value_decay + column : value;
  const FloatV v0 = hn::Load(d, value), v1 = hn::Load(d, value + n1), v2 = hn::Load(d, value + n2),
               v3 = hn::Load(d, value + n3);
  const FloatV w0 = hn::Load(d, decays), w1 = hn::Load(d, decays + n1), w2 = hn::Load(d, decays + n2),
               w3 = hn::Load(d, decays + n3);
  FloatV out0 = hn::Zero(d), out1 = out0, out2 = out0, out3 = out0;
  from += column, to += column;
  for (int64_t k = 0; k < t.keys; ++k, from += from_stride, to += to_stride) {
    const FloatV decay = hn::Set(d, t.key_decay[k]), key = hn::Set(d, t.key[k]), query = hn::Set(d, t.query[k]);
    step<kValueDecay>(from, to, decay, key, query, v0, w0, out0);
    if constexpr (kVectors == 4) {
      step<kValueDecay>(from + n1, to + n1, decay, key, query, v1, w1, out1);
      step<kValueDecay>(from + n2, to + n2, decay, key, query, v2, w2, out2);
      step<kValueDecay>(from + n3, to + n3, decay, key, query, v3, w3, out3);
    }
  }
  hn::Store(out0, d, t.out + column);
  if constexpr (kVectors == 4) {
    hn::Store(out1, d, t.out + column + n1);
    hn::Store(out2, d, t.out + column + n2);
    hn::Store(out3, d, t.out + column + n3);
  }
}

template <bool kValueDecay, class From, class To>
inline void step_all(const StepToken& t, int64_t columns, const From* from, int64_t from_stride, To* to,
                     int64_t to_stride) {
  int64_t c = 0;
  for (; c + 4 * lanes() <= columns; c += 4 * lanes())
    step_columns<4, kValueDecay>(t, c, from, from_stride, to, to_stride);
  for (; c < columns; c += lanes()) step_columns<1, kValueDecay>(t, c, from, from_stride, to, to_stride);
}

}  // namespace step_detail

/// to = (key_decay ⊗ value_decay) ∘ from + key ⊗ value and out = query @ to, for `columns` columns, in whole vectors.
/// `to` may be `from`.
template <class From, class To>
inline void step_state(const StepToken& t, int64_t columns, const From* from, int64_t from_stride, To* to,
                       int64_t to_stride) {
  if (t.value_decay != nullptr)
    step_detail::step_all<true>(t, columns, from, from_stride, to, to_stride);
  else
    step_detail::step_all<false>(t, columns, from, from_stride, to, to_stride);
}

}  // namespace ejk::recurrence::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
