#include "cortado/generate/sampling.h"

#include <unordered_map>
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
  fail_input_if(!(o.repetition_penalty >= 0.01 && o.repetition_penalty <= 100),
                "[sampling] repetition penalty must be from 0.01 to 100, got ", o.repetition_penalty);
  fail_input_if(o.repetition_window < 0, "[sampling] repetition window must be >= 0, got ", o.repetition_window);
  fail_input_if(!(std::abs(o.presence_penalty) <= 2), "[sampling] presence penalty must be from -2 to 2, got ",
                o.presence_penalty);
  fail_input_if(!(std::abs(o.frequency_penalty) <= 2), "[sampling] frequency penalty must be from -2 to 2, got ",
                o.frequency_penalty);
  for (const auto& [token, bias] : o.bias) {
    fail_input_if(!(token >= 0 && std::abs(bias) <= 100), "[sampling] a bias must be from -100 to 100, got ", bias,
                  " for token ", token);
  }
}

int32_t Sampler::sample(const at::Tensor& logits, std::span<const int32_t> recent, uint64_t position,
                        std::span<const int32_t> written) {
  double total = 0;
  for (const auto& c : candidates(logits, recent, written)) total += c.weight;
  double left = random_.uniform(position) * total;
  for (const auto& c : candidates_) {
    left -= c.weight;
    if (left < 0) return c.token;
  }
  // Rounding can leave a small remainder; take the last candidate with any weight.
  const auto last = std::find_if(candidates_.rbegin(), candidates_.rend(), [](const auto& c) { return c.weight > 0; });
  if (last == candidates_.rend()) throw Failure("[generate] no token has any probability: it can't be sampled from");
  return last->token;
}

void Sampler::read_scores(const at::Tensor& logits) {
  const at::Tensor plain = logits.to(at::kCPU, at::kFloat).contiguous();
  const float* values = plain.const_data_ptr<float>();
  scores_.assign(values, values + plain.numel());
  float largest = -std::numeric_limits<float>::infinity();
  for (const float score : scores_) {
    if (std::isnan(score)) throw Failure("[generate] the model's logits are not a number: it can't be sampled from");
    largest = std::max(largest, score);
  }
  if (!std::isfinite(largest)) throw Failure("[generate] the model's logits are infinite: it can't be sampled from");
}

void Sampler::add_bias() {
  for (const auto& [token, bias] : options_.bias) {
    fail_input_if(static_cast<size_t>(token) >= scores_.size(), "[sampling] a bias is for token ", token,
                  ", and there are ", scores_.size());
    scores_[static_cast<size_t>(token)] += static_cast<float>(bias);
  }
}

void Sampler::penalise(std::span<const int32_t> recent, std::span<const int32_t> written) {
  // The session may have read tokens beyond the scores; they can't be sampled.
  const auto known = [&](int32_t token) { return static_cast<size_t>(token) < scores_.size(); };
  if (options_.repetition_penalty != 1.0) {
    const auto penalty = static_cast<float>(options_.repetition_penalty);
    const auto last = recent.last(std::min(recent.size(), static_cast<size_t>(options_.repetition_window)));
    for (const int32_t token : std::unordered_set<int32_t>(last.begin(), last.end())) {
      if (!known(token)) continue;
      float& score = scores_[static_cast<size_t>(token)];
      score = score > 0 ? score / penalty : score * penalty;
    }
  }
  if (options_.presence_penalty == 0 && options_.frequency_penalty == 0) return;
  std::unordered_map<int32_t, int64_t> counts;
  for (const int32_t token : written) ++counts[token];
  for (const auto& [token, count] : counts) {
    const double penalty = options_.presence_penalty + options_.frequency_penalty * static_cast<double>(count);
    if (known(token)) scores_[static_cast<size_t>(token)] -= static_cast<float>(penalty);
  }
}

int32_t Sampler::likeliest() const {
  return static_cast<int32_t>(std::max_element(scores_.begin(), scores_.end()) - scores_.begin());
}

const std::vector<Sampler::Candidate>& Sampler::candidates(const at::Tensor& logits, std::span<const int32_t> recent,
                                                           std::span<const int32_t> written) {
  read_scores(logits);
  add_bias();
  penalise(recent, written);
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
  // The likeliest token has weight exp(0) = 1.
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

// A heap yields the likeliest tokens first without sorting the whole vocabulary.
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
