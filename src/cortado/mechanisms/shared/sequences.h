// Helpers of the mechanisms' operators: head counts, whole sequences, resumed states. All of them work on symbolic
// shapes too (torch.compile).
#pragma once

#include "cortado/primitives/operator.h"

namespace cortado {

// Head counts of the state (the larger of k's and v's) and of the output (the larger of the state's and q's).
struct ScanHeads {
  c10::SymInt state, out;
};

inline ScanHeads heads_of(const Sizes& sizes) { return {sizes['S'], sizes['H']}; }

// An operator's argument with its name in error messages.
struct Named {
  const char* name;
  const Tensor& x;
};

// Checks q [B,T,Hq,K], k [B,T,Hk,K], v [B,T,Hv,V].
ScanHeads check_qkv(const char* op, const Named& q, const Named& k, const Tensor& v);

// Returns whether the arguments are given; throws InputError if only some of them are.
bool given_together(const char* op, std::initializer_list<const OptionalTensor*> arguments, const char* names);

// Adapts a function that returns a struct of three tensors (o and two states) to the dispatcher, which wants a tuple.
template <auto function>
struct Unpacked;
template <typename Result, typename... Arguments, Result (*function)(Arguments...)>
struct Unpacked<function> {
  static TensorTuple<3> call(Arguments... arguments) {
    const std::vector<Tensor> parts = function(arguments...).tensors();
    return {parts[0], parts[1], parts[2]};
  }
};

// Converts x to int64 and checks that all of it lies in low..high; throws InputError about `what` otherwise. It is an
// operator so that traced functions check when they run.
Tensor checked_integers(const Tensor& x, const std::string& what, int64_t low, const c10::SymInt& high);

// Returns x, marked so that a second derivative is an error. Used by operators composed of ATen's, which would
// otherwise be differentiable twice. Apply it to every input: an input's gradient depends on all others.
Tensor differentiable_once(const Tensor& x);

// x / by, and 0 where `by` is 0: a normaliser is 0 where no key has any weight, and then the numerator is 0 too.
Tensor divide_or_zero(const Tensor& x, const Tensor& by);

// Appends a column of ones to v [B,T,H,V], in `type`, so that one sum gives numerator and denominator.
Tensor with_ones(const Tensor& v, at::ScalarType type);

// The index of the packed sequence that each token of x [1,T,...] belongs to, int64 [T].
Tensor sequence_numbers(const Tensor& cu_seqlens, const Tensor& x);

// For bidirectional forms: repeats x [B|N,...], one value per sequence, for its tokens: [B,1,...] or [1,T,...]. `like`
// is [B,T,...].
Tensor at_tokens(const Tensor& x, const OptionalTensor& cu_seqlens, const Tensor& like);
// Σ_s k_s v_sᵀ over each whole sequence, [B|N,H,K,V]; k [B,T,H,K] and v [B,T,H,V] have one type.
Tensor sequence_sums(const Tensor& k, const Tensor& v, const OptionalTensor& cu_seqlens);
// Softmax over time per latent and sequence: means = Σ_s softmax_s(θ_sl) v_s [B|N,H,L,V], sum = Σ_s exp(θ_sl - peak_l)
// and peak [B|N,H,L]. An empty sequence or latent (θ = -inf) has means and sum 0. θ [B,T,H,L], v [B,T,H,V].
struct SequenceMeans {
  Tensor means, sum, peak;
};
SequenceMeans sequence_means(const Tensor& theta, const Tensor& v, const OptionalTensor& cu_seqlens);
// mᵀ q_t [B,T,H,V], with m [B|N,H,K,V] the matrix of the token's sequence; q [B,T,H,K].
Tensor read_sequences(const Tensor& q, const Tensor& m, const OptionalTensor& cu_seqlens);

}  // namespace cortado
