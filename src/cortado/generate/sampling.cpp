#include "cortado/generate/sampling.h"

#include <unordered_set>

#include "cortado/base/error.h"

namespace cortado {

namespace {

bool likelier(float score, int32_t token, float other_score, int32_t other_token) {
  return score != other_score ? score > other_score : token < other_token;
}

}  // namespace

Sampler::Sampler(const SamplingOptions& options)
    : options_(options), random_(static_cast<uint64_t>(options.seed), "sampling") {
  const auto& o = options;
  fail_input_if(!(o.temperature >= 0 && std::isfinite(o.temperature)), "[sampling] temperature must be >= 0, got ",
                o.temperature);
  fail_input_if(o.top_k < 0, "[sampling] top-k must be >= 0, got ", o.top_k);
  fail_input_if(!(o.top_p > 0 && o.top_p <= 1), "[sampling] top-p must be above 0 and at most 1, got ", o.top_p);
  fail_input_if(!(o.min_p >= 0 && o.min_p <= 1), "[sampling] min-p must be from 0 to 1, got ", o.min_p);
  fail_input_if(!(o.repetition_penalty > 0 && std::isfinite(o.repetition_penalty)),
                "[sampling] repetition penalty must be above 0, got ", o.repetition_penalty);
  fail_input_if(o.repetition_window < 0, "[sampling] repetition window must be >= 0, got ", o.repetition_window);
}

int32_t Sampler::sample(const at::Tensor& logits, std::span<const int32_t> recent, uint64_t position) {
  double total = 0;
  for (const auto& c : candidates(logits, recent)) total += c.weight;
  double left = random_.uniform(position) * total;
  for (const auto& c : candidates_) {
    left -= c.weight;
    if (left < 0) return c.token;
  }
  // Rounding can leave a hair at the end: the last one that has any weight.
  const auto last = std::find_if(candidates_.rbegin(), candidates_.rend(), [](const auto& c) { return c.weight > 0; });
  return last->token;
}

void Sampler::read_scores(const at::Tensor& logits, std::span<const int32_t> recent) {
  const at::Tensor plain = logits.to(at::kCPU, at::kFloat).contiguous();
  const float* values = plain.const_data_ptr<float>();
  scores_.assign(values, values + plain.numel());
  float largest = -std::numeric_limits<float>::infinity();
  for (const float score : scores_) {
    if (std::isnan(score)) throw Failure("[generate] the model's logits are not a number: it can't be sampled from");
    largest = std::max(largest, score);
  }
  if (!std::isfinite(largest)) throw Failure("[generate] the model's logits are infinite: it can't be sampled from");
  if (options_.repetition_penalty == 1.0) return;
  const size_t count = std::min(recent.size(), static_cast<size_t>(options_.repetition_window));
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  const std::unordered_set<int32_t> seen(recent.end() - static_cast<std::ptrdiff_t>(count), recent.end());
  for (const int32_t token : seen) {
    if (static_cast<size_t>(token) >= scores_.size()) continue;  // read, but not to be written
    float& score = scores_[static_cast<size_t>(token)];
    score = score > 0 ? score / penalty : score * penalty;
  }
}

int32_t Sampler::likeliest() const {
  return static_cast<int32_t>(std::max_element(scores_.begin(), scores_.end()) - scores_.begin());
}

const std::vector<Sampler::Candidate>& Sampler::candidates(const at::Tensor& logits, std::span<const int32_t> recent) {
  read_scores(logits, recent);
  if (options_.temperature == 0) return candidates_ = {{0, likeliest(), 1.0}};
  candidates_.clear();
  for (size_t token = 0; token < scores_.size(); ++token) {
    candidates_.push_back({scores_[token], static_cast<int32_t>(token), 0.0});
  }
  keep_top_k();
  const double largest = scores_[static_cast<size_t>(likeliest())];
  double total = 0;
  for (auto& c : candidates_) {
    c.weight = std::exp((c.score - largest) / options_.temperature);
    total += c.weight;
  }
  if (options_.top_p < 1) keep_top_p(total);
  // The likeliest has weight exp(0) = 1.
  if (options_.min_p > 0) std::erase_if(candidates_, [&](const auto& c) { return c.weight < options_.min_p; });
  return candidates_;
}

void Sampler::keep_top_k() {
  const auto k = static_cast<size_t>(options_.top_k);
  if (k == 0 || k >= candidates_.size()) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(k) - 1, candidates_.end(),
                   [](const auto& a, const auto& b) { return likelier(a.score, a.token, b.score, b.token); });
  candidates_.resize(k);
}

// A heap gives the likeliest first without sorting a whole vocabulary of which a few are kept.
void Sampler::keep_top_p(double total) {
  const auto heap_order = [](const auto& a, const auto& b) { return likelier(b.score, b.token, a.score, a.token); };
  std::make_heap(candidates_.begin(), candidates_.end(), heap_order);
  auto end = candidates_.end();
  double kept = 0;
  while (end != candidates_.begin() && kept < options_.top_p * total) {
    std::pop_heap(candidates_.begin(), end, heap_order);
    kept += (--end)->weight;
  }
  candidates_.erase(candidates_.begin(), end);
}

}  // namespace cortado
