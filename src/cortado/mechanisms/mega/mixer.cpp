// mega: a multi-dimensional damped moving average feeding gated single-head attention within chunks.
#include <cmath>

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/mechanisms/shared/interval_attention.h"
#include "cortado/mechanisms/shared/ring/ring.h"
#include "cortado/nn/diagonal_ssm.h"
#include "cortado/nn/rotary/rotary.h"

namespace cortado {
namespace {

// A damped moving average: y_t = Σ_j η_j h_tj, h_tj = α_j β_j x_t + (1 - α_j δ_j) h_{t-1,j} for every channel of x,
// with j over `size` averages; α, δ in (0, 1).
class DampedAverage : public Module {
 public:
  DampedAverage(int64_t dim, int64_t size) : Module("DampedAverage") {
    auto add = [&](Tensor& x, const char* name, double std, Role role) {
      register_parameter(x, name, at::empty({dim, size}), role);
      draw_normal(x, std);
    };
    add(alpha_, "alpha", 0.2, Role::kDynamics);
    add(delta_, "delta", 0.2, Role::kDynamics);
    add(beta_, "beta", 0.02, Role::kMatrix);
    add(eta_, "eta", 1.0 / std::sqrt(static_cast<double>(size)), Role::kMatrix);
    // β alternates in sign so that the averages differ from the start.
    const at::NoGradGuard no_grad;
    beta_.add_(1 - 2 * (at::arange(size, at::kFloat).remainder(2)));
  }

  // Maps x [B,T,D] (float32 or float64) to y [B,T,D], using the state's "average" [rows, D·size].
  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state, bool reverse) const {
    const auto type = x.scalar_type();
    const Tensor alpha = alpha_.to(type).sigmoid(), decay = at::log1p(-alpha * delta_.to(type).sigmoid());
    return channel_ssm({decay, alpha * beta_.to(type), eta_.to(type)}, x, batch, state, "average", reverse);
  }

  // The definition, by the impulse response.
  Tensor reference(const Tensor& x, bool reverse) const {
    const Tensor alpha = alpha_.sigmoid(), keep = 1 - alpha * delta_.sigmoid();
    const Tensor lag = at::arange(x.size(1), x.options().requires_grad(false)).reshape({-1, 1, 1});
    const Tensor kernel = (eta_ * alpha * beta_ * keep.pow(lag)).sum(2);
    return reverse ? convolve_reference(kernel, x.flip(1)).flip(1) : convolve_reference(kernel, x);
  }

 private:
  Tensor alpha_, delta_;  // before the sigmoid, [D, size]
  Tensor beta_, eta_;     // [D, size]
};

// State: "average" [rows, D·average], "keys", "values" (ring of at most chunk - 1), "position" [rows].
class MegaMixer : public Mixer {
 public:
  MegaMixer(JsonReader& settings, const MixerContext& context)
      : Mixer("mega"),
        dim_(context.dim),
        shared_(settings.integer("shared", 1, 65536, std::max<int64_t>(2, dim_ / 8 * 2))),
        values_(settings.integer("values", 1, 1 << 20, 2 * dim_)),
        averages_(settings.integer("average", 1, 4096, 16)),
        chunk_(settings.integer("chunk", 1, 1 << 20, 128)),
        causal_(context.causal) {
    const bool bias = settings.boolean("bias", true);
    if (bias && shared_ % 2 != 0) settings.fail("bias needs an even \"shared\", got ", shared_);
    rotary_ = read_angles(settings, context);
    average_ = register_module("average", std::make_shared<DampedAverage>(dim_, averages_));
    if (!causal_) average_back_ = register_module("average_back", std::make_shared<DampedAverage>(dim_, averages_));
    z_ = register_module("z", std::make_shared<Linear>(dim_, shared_, true));
    v_ = register_module("v", std::make_shared<Linear>(dim_, values_, true));
    reset_ = register_module("reset", std::make_shared<Linear>(dim_, values_, true));
    update_ = register_module("update", std::make_shared<Linear>(dim_, dim_, true));
    h_ = register_module("h", std::make_shared<Linear>(dim_, dim_, true));
    u_ = register_module("u", std::make_shared<Linear>(values_, dim_));
    register_parameter(kappa_, "kappa", at::empty({2, shared_}), Role::kGain);
    draw_normal(kappa_, 0.02);
    register_parameter(mu_, "mu", at::zeros({2, shared_}), Role::kGain);
    if (!bias) return;
    register_parameter(bias_alpha_, "bias_alpha", at::empty({shared_}), Role::kGain);
    register_parameter(bias_beta_, "bias_beta", at::empty({shared_}), Role::kGain);
    draw_normal(bias_alpha_, 0.02);
    draw_normal(bias_beta_, 0.02);
  }

  // The attention as a full matrix, masked to its diagonal blocks.
  Tensor reference(const Tensor& x) override {
    Tensor average = average_->reference(x, false);
    if (average_back_) average = average + average_back_->reference(x, true);
    const Tensor t = at::arange(x.size(1), x.options().dtype(at::kLong).requires_grad(false));
    const auto [q, k] = queries_and_keys(average, t.unsqueeze(0));
    Tensor scores = at::matmul(q.squeeze(2), k.squeeze(2).transpose(1, 2));
    const Tensor chunk = at::floor_divide(t, chunk_);
    Tensor visible = chunk.unsqueeze(1) == chunk.unsqueeze(0);
    if (causal_) visible = visible.tril();
    scores = scores.masked_fill(visible.logical_not(), -std::numeric_limits<double>::infinity());
    return output(x, average, at::matmul(at::softmax(scores, -1), values(x).squeeze(2)).unsqueeze(2));
  }

  double flops_per_token(int64_t tokens) const override {
    const int64_t seen = std::min(tokens, chunk_);
    return weight_flops() + 6.0 * static_cast<double>(dim_ * averages_) * (causal_ ? 1 : 2) +
           2.0 * static_cast<double>((key_size() + values_) * seen);
  }

 private:
  void declare(StateLayout& layout) const override {
    layout.scan("average", {dim_ * averages_});
    layout.ring("keys", {1, key_size()}, StateLayout::last(chunk_ - 1));
    layout.ring("values", {1, values_}, StateLayout::last(chunk_ - 1));
    layout.position();
  }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const Tensor wide = x.to(wide_type(x));
    Tensor average = average_->forward(wide, batch, state, false);
    if (average_back_) average = average + average_back_->forward(wide, batch, nullptr, true);
    average = average.to(x.scalar_type());
    const Tensor positions = batch.positions(x, start_of(state, "position"));
    const auto [q, k] = queries_and_keys(average, positions);
    const Tensor v = values(x);
    JoinedKeys keys{k, v, std::nullopt, batch.cu_seqlens};
    if (state) keys = advance_ring(*state, k, v, chunk_, batch);
    const KeyPlaces places = key_places(q, keys, batch.cu_seqlens);
    IntervalOptions chunk{.scale = 1.0};
    chunk.begin = places.own - positions.remainder(chunk_);
    chunk.end = causal_ ? places.own + 1 : at::minimum(places.end, chunk.begin + chunk_);
    return output(x, average, std::get<0>(interval_attention(q, keys.k, keys.v, chunk)));
  }

  // Scaled queries and keys [B,T,1,*]; their product is the score.
  std::pair<Tensor, Tensor> queries_and_keys(const Tensor& average, const Tensor& positions) const {
    const Tensor z = at::silu(z_->forward(average));
    Tensor q = (z * kappa_[0] + mu_[0]) / std::sqrt(static_cast<double>(shared_));
    Tensor k = z * kappa_[1] + mu_[1];
    q = q.unsqueeze(2);
    k = k.unsqueeze(2);
    if (!bias_alpha_.defined()) return {q, k};
    // The rotary bias b_ts = (R_t α)·(R_s β) depends on t - s. Appended as channels of q and k, it becomes part of
    // their product.
    auto turned = [&](const Tensor& vector) {
      const Tensor everywhere = vector.to(q.scalar_type()).expand({q.size(0), q.size(1), 1, shared_});
      return apply_rotary(everywhere, positions, rotary_);
    };
    return {at::cat({q, turned(bias_alpha_)}, 3), at::cat({k, turned(bias_beta_)}, 3)};
  }

  Tensor values(const Tensor& x) const { return at::silu(v_->forward(x)).unsqueeze(2); }

  // φ ⊙ (ĥ - x). Added to x, the residual stream, it gives Mega's φ ⊙ ĥ + (1 - φ) ⊙ x.
  Tensor output(const Tensor& x, const Tensor& average, const Tensor& attended) const {
    const Tensor reset = at::silu(reset_->forward(average)), update = at::sigmoid(update_->forward(average));
    const Tensor candidate = at::silu(h_->forward(average) + u_->forward(reset * attended.squeeze(2)));
    return update * (candidate - x);
  }

  int64_t key_size() const { return shared_ * (bias_alpha_.defined() ? 2 : 1); }

  int64_t dim_;
  int64_t shared_;    // z: width of queries and keys
  int64_t values_;    // v: width of the values
  int64_t averages_;  // moving averages per channel
  int64_t chunk_;
  bool causal_;
  Rotary rotary_ = 1e4;  // angles of the bias
  std::shared_ptr<DampedAverage> average_, average_back_;
  std::shared_ptr<Linear> z_, v_, reset_, update_, h_, u_;
  Tensor kappa_, mu_;              // [2, z]: for queries and for keys
  Tensor bias_alpha_, bias_beta_;  // [z]: α and β of Mega's rotary bias; undefined without it
};

}  // namespace

extern const Mechanism kMega = {
    .name = "mega",
    .family = "softmax attention",
    .paper = "Mega (Ma et al. 2023)",
    .equation = "o_t = phi_t (h_t - x_t), h = silu(W_h x' + U_h (gamma * attention in chunks)), x' = EMA(x)",
    .state = "D average + (chunk-1) (2 shared + values)",
    .bidirectional = true,
    .make = construct<MegaMixer>,
};

}  // namespace cortado
