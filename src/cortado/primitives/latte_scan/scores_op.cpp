#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/latte_scan/on_gpu.h"
#include "cortado/primitives/latte_scan/scores.h"
#include "cortado/primitives/operator.h"

namespace cortado {
namespace {

constexpr const char* kLatteScores = "_latte_scores";

using ScoresSignature = TensorTuple<4>(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                                       const OptionalTensor&, const OptionalTensor&, const OptionalTensor&);

// In the order of the schema.
struct ScoresArguments {
  const Tensor &q, &theta, &k;
  const OptionalTensor &state, &normalizer, &maximum, &cu_seqlens;
};

Sizes check(const ScoresArguments& in) {
  return Sizes(kLatteScores, in.cu_seqlens,
               {{"k", in.k, "BThK"},
                {"key_logits", in.theta, "BThL"},
                {"q", in.q, "BTqK"},
                {"state", in.state, "NSLK"},
                {"normalizer", in.normalizer, "NSL"},
                {"maximum", in.maximum, "NSL"}});
}

latent::GpuLatteInputs gpu_inputs(const ScoresArguments& in, const Bounds& bounds) {
  const auto given = [](const OptionalTensor& x) { return x.value_or(Tensor()); };
  return {in.q, in.theta, in.k, given(in.state), given(in.normalizer), given(in.maximum), true, bounds.get()};
}

// Returns the kernels' inputs. Fails if the kernels do not take them.
latent::GpuLatteInputs taken(const ScoresArguments& in, const Bounds& bounds) {
  const auto inputs = gpu_inputs(in, bounds);
  fail_input_if(!latent::gpu_takes(inputs), "[", kLatteScores, "] there are no kernels for these tensors");
  return inputs;
}

TensorTuple<4> scores(const ScoresArguments& in) {
  const NoAutocast as_given;
  check(in);
  const Bounds bounds(kLatteScores, in.cu_seqlens, in.k.size(1));
  const auto inputs = taken(in, bounds);
  const LatteResult out = latent::scores_on_gpu(inputs, cuda::machine_of(in.k));
  return {out.o, out.state, out.normalizer, out.maximum};
}

TensorTuple<4> scores_meta(const ScoresArguments& in) {
  const Sizes sizes = check(in);
  const auto floats = in.k.options().dtype(at::kFloat);
  return {sizes.empty("BTHL", floats), sizes.empty("NSLK", floats), sizes.empty("NSL", floats),
          sizes.empty("NSL", floats)};
}

// The gradient operator's arguments that the forward operator does not have.
struct ScoresGiven {
  const OptionalTensor &grad_o, &grad_state;
  const Tensor& grad_normalizer;
};

TensorTuple<5> scores_backward(const ScoresGiven& given, const ScoresArguments& in) {
  const NoAutocast as_given;
  check(in).expect({{"grad_o", given.grad_o, "BTHL"},
                    {"grad_state", given.grad_state, "NSLK"},
                    {"grad_normalizer", given.grad_normalizer, "NSL"}});
  const Bounds bounds(kLatteScores, in.cu_seqlens, in.k.size(1));
  const auto inputs = taken(in, bounds);
  const latent::GpuLatteGradients gradients{
      {}, {}, given.grad_o.value_or(Tensor()), given.grad_state.value_or(Tensor()), given.grad_normalizer};
  const auto found = latent::differentiate_scores_on_gpu(inputs, gradients, cuda::machine_of(in.k));
  return {found.query, found.theta, found.v, in.state ? found.state : no_gradient(in.q),
          in.normalizer ? found.normalizer : no_gradient(in.q)};
}

}  // namespace

bool latte_scores_take(const Tensor& q, const Tensor& key_logits, const Tensor& k, const Tensor& v) {
  for (const Tensor* x : {&q, &key_logits, &k, &v}) {
    for (const auto& size : x->sym_sizes()) {
      if (!size.maybe_as_int()) return false;
    }
  }
  return latent::gpu_takes({q, key_logits, k, {}, {}, {}}) &&
         latent::gpu_takes({key_logits, key_logits, v, {}, {}, {}});
}

LatteResult latte_scores(const Tensor& q, const Tensor& key_logits, const Tensor& k, const LatteState& start,
                         const OptionalTensor& cu_seqlens) {
  static const auto op = find_operator<ScoresSignature>("cortado::_latte_scores");
  const auto [o, state, normalizer, maximum] =
      op.call(q, key_logits, k, start.state, start.normalizer, start.maximum, cu_seqlens);
  return {o, state, normalizer, maximum};
}

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  define_operator(
      m,
      "_latte_scores(Tensor q, Tensor key_logits, Tensor k, Tensor? initial_state=None, "
      "Tensor? initial_normalizer=None, Tensor? initial_maximum=None, Tensor? cu_seqlens=None) -> (Tensor o, "
      "Tensor state, Tensor normalizer, Tensor maximum)",
      gathered<ScoresSignature, scores>, gathered<ScoresSignature, scores_meta>,
      gathered_gradient<void(const OptionalTensor&, const OptionalTensor&, const Tensor&), ScoresSignature,
                        scores_backward>,
      {.given = "Tensor? grad_o, Tensor? grad_state, Tensor grad_normalizer",
       .inputs = {"q", "key_logits", "k", "initial_state", "initial_normalizer"}});
}

}  // namespace cortado
