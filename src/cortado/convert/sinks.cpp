#include "cortado/convert/sinks.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "cortado/base/progress.h"
#include "cortado/mechanisms/shared/student.h"
#include "cortado/nn/autocast.h"

namespace cortado {
namespace {

constexpr int64_t kMixed = 16;   // tokens at the beginning that a convolution may mix with the first
constexpr double kAlone = 0.75;  // a latent is a sink if the first token has more than this weight in it, on average
constexpr double kMargin = 20;   // the logit of the first token above the others' after settling
constexpr double kSinkRidge = 1e-3;  // relative to the tokens' mean square

}  // namespace

void LatentSinks::add(const Tensor& y, const Tensor& keys) {
  const at::NoGradGuard no_grad;
  const int64_t tokens = y.size(0) - kMixed;
  if (tokens <= 0) return;
  const Tensor given = y.to(at::kCPU, at::kDouble), others = given.slice(0, kMixed);
  const Tensor logits = at::matmul(given, keys.to(at::kCPU, at::kDouble).t());  // [T,L]
  if (!squares_.defined()) {
    squares_ = at::zeros({y.size(1), y.size(1)}, at::kDouble);
    first_ = at::zeros({y.size(1)}, at::kDouble);
    alone_ = at::zeros({keys.size(0)}, at::kDouble);
    margin_ = at::zeros({keys.size(0)}, at::kDouble);
    counts_ = at::zeros({2}, at::kDouble);
  }
  squares_ += at::matmul(others.t(), others);
  first_ += given[0];
  alone_ += logits.softmax(0)[0];
  margin_ += logits[0] - logits.slice(0, kMixed).logsumexp(0) + std::log(static_cast<double>(tokens));
  counts_ += at::tensor({static_cast<double>(tokens), 1.0}, at::kDouble);
}

void LatentSinks::sum(const Ranks& ranks) {
  if (empty()) return;
  for (const Tensor& sums : {squares_, first_, alone_, margin_, counts_}) ranks.sum(sums);
}

LatentSinks::Settled LatentSinks::settled(const Tensor& keys) const {
  if (empty()) return {keys, 0};
  const Tensor mean = squares_ / counts_[0], first = first_ / counts_[1];
  const Tensor ridge = at::eye(mean.size(0), at::kDouble) * (kSinkRidge * mean.diagonal().mean());
  const Tensor whitened = at::linalg_solve(mean + ridge, first), direction = whitened / first.dot(whitened);
  const Tensor sinks = (alone_ / counts_[1]).gt(kAlone);
  const Tensor raised = (kMargin - margin_ / counts_[1]).clamp_min(0) * sinks;
  return {keys + at::outer(raised, direction).to(keys.options()), sinks.sum().item<int64_t>()};
}

Tensor latent_keys(const Mixer& mixer) { return mixer.named_parameters()["latent_k.weight"].detach(); }

std::optional<int64_t> settle_sinks(const LanguageModel& model, const Chunks& chunks, const SinkStudy& study,
                                    const Ranks& ranks) {
  const at::NoGradGuard no_grad;
  const int64_t texts = std::max<int64_t>(ranks.size(), (study.tokens + chunks.length() - 1) / chunks.length());
  ProgressBar bar({.label = "sinks",
                   .total = texts,
                   .unit = "tokens",
                   .units_per_count = double(chunks.length()),
                   .quiet = !study.progress || !ranks.first()});
  std::vector<LatentSinks> layers(model.mixers().size());
  const Autocast autocast(model.device(), model.named_parameters()["embedding.weight"].scalar_type());
  for (int64_t n = 0; n < texts; ++n) {
    if (study.stop && study.stop()) return std::nullopt;
    bar.update(n);
    if (n % ranks.size() != ranks.rank()) continue;
    model.walk(chunks.batch(n, 1).tokens.to(model.device()), [&](int64_t layer, const Tensor& x) {
      Mixer& mixer = *model.mixers()[static_cast<size_t>(layer)];
      const SoftmaxStudent* student = student_of(mixer);
      const Tensor inputs = student ? student->latent_inputs(x) : Tensor();
      if (inputs.defined()) layers[static_cast<size_t>(layer)].add(inputs[0], latent_keys(mixer));
      return mixer.forward(x, {}, nullptr);
    });
  }
  int64_t sinks = 0;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const Mixer& mixer = *model.mixers()[layer];
    if (layers[layer].empty()) continue;
    layers[layer].sum(ranks);
    const LatentSinks::Settled settled = layers[layer].settled(latent_keys(mixer));
    latent_keys(mixer).copy_(settled.keys);
    sinks += settled.sinks;
  }
  return sinks;
}

}  // namespace cortado
