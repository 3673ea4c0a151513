// What the mechanisms' operators share: heads, whole sequences, resumed states. All of it also works on symbolic shapes
// (torch.compile).
#pragma once

#include "cortado/primitives/operator.h"

namespace cortado {

// Heads of the state (k's and v's, the larger) and of the output (those and q's).
struct ScanHeads {
  c10::SymInt state, out;
};

inline ScanHeads heads_of(const Sizes& sizes) { return {sizes['S'], sizes['H']}; }

// An operator's argument and its name, for messages.
struct Named {
  const char* name;
  const Tensor& x;
};

// Checks q [B,T,Hq,K], k [B,T,Hk,K], v [B,T,Hv,V].
ScanHeads check_qkv(const char* op, const Named& q, const Named& k, const Tensor& v);

// "a or none of them" for arguments that belong together. True: they are given.
bool given_together(const char* op, std::initializer_list<const OptionalTensor*> arguments, const char* names);

// A function whose result is a struct of tensors as the dispatcher calls it, its result a tuple (o and two states).
template <auto function>
struct Unpacked;
template <typename Result, typename... Arguments, Result (*function)(Arguments...)>
struct Unpacked<function> {
  static TensorTuple<3> call(Arguments... arguments) {
    const std::vector<Tensor> parts = function(arguments...).tensors();
    return {parts[0], parts[1], parts[2]};
  }
};

// x as int64, all of it in low..high: another type or another value is an InputError about `what`. An operator, so that
// a traced function checks when it runs, too.
Tensor checked_integers(const Tensor& x, const std::string& what, int64_t low, const c10::SymInt& high);

// x itself, differentiable once: for operators that are composed of ATen's alone, which would be differentiable twice.
// To be applied to every input, since an input's gradient depends on all of the others.
Tensor differentiable_once(const Tensor& x);

// x / by, and 0 where `by` is: a normaliser is 0 where no key has any weight, and so is everything that it divides.
Tensor divide_or_zero(const Tensor& x, const Tensor& by);

// v [B,T,H,V] with a column of ones, in `type`: one sum over it is numerator and denominator.
Tensor with_ones(const Tensor& v, at::ScalarType type);

// The number of the packed sequence that each token of x [1,T,...] belongs to, int64 [T].
Tensor sequence_numbers(const Tensor& cu_seqlens, const Tensor& x);

// Bidirectional forms: x [B|N,...], a value a sequence, for every token of it, [B,1,...] or [1,T,...]; `like`
// [B,T,...].
Tensor at_tokens(const Tensor& x, const OptionalTensor& cu_seqlens, const Tensor& like);
// sum_s k_s v_s' over each whole sequence, [B|N,H,K,V]; k [B,T,H,K] and v [B,T,H,V] of one type.
Tensor sequence_sums(const Tensor& k, const Tensor& v, const OptionalTensor& cu_seqlens);
// Each sequence's softmax over time, of every latent: means = Σ_s softmax_s(θ_sl) v_s [B|N,H,L,V], sum = Σ_s exp(θ_sl -
// peak_l) and peak [B|N,H,L]; an empty sequence or latent (θ = -inf) has means and sum 0. θ [B,T,H,L], v [B,T,H,V].
struct SequenceMeans {
  Tensor means, sum, peak;
};
SequenceMeans sequence_means(const Tensor& theta, const Tensor& v, const OptionalTensor& cu_seqlens);
// m' q_t [B,T,H,V], m [B|N,H,K,V] the matrix of the token's sequence; q [B,T,H,K].
Tensor read_sequences(const Tensor& q, const Tensor& m, const OptionalTensor& cu_seqlens);

}  // namespace cortado
