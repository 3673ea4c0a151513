// linformer: attention to keys and values projected along time to L latents. An encoder of bounded length.
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/mechanisms/shared/latents.h"
#include "cortado/mechanisms/shared/sequences.h"

namespace cortado {
namespace {

// It has no causal form and so no state.
class LinformerMixer : public Mixer {
 public:
  LinformerMixer(JsonReader& settings, const MixerContext& context)
      : Mixer("linformer"),
        dim_(context.dim),
        heads_(read_heads(settings, context, dim_, "dim")),
        latents_(settings.integer("latents", 1, 65536, 128)),
        length_(settings.integer("length", 1, 1 << 24, 4096)) {
    q_ = register_module("q", std::make_shared<Linear>(dim_, dim_));
    k_ = register_module("k", std::make_shared<Linear>(dim_, dim_));
    v_ = register_module("v", std::make_shared<Linear>(dim_, dim_));
    o_ = register_module("o", make_output_linear(dim_, dim_));
    register_parameter(e_, "e", at::empty({latents_, length_}), Role::kMatrix);
    register_parameter(f_, "f", at::empty({latents_, length_}), Role::kMatrix);
    lecun_normal(e_, latents_);  // N(0, 1/L), the usual scale of random projections
    lecun_normal(f_, latents_);
  }

  Tensor reference(const Tensor& x) override {
    const int64_t tokens = x.size(1);
    const Tensor k = heads(at::matmul(e_.narrow(1, 0, tokens), k_->forward(x)));
    const Tensor v = heads(at::matmul(f_.narrow(1, 0, tokens), v_->forward(x)));
    return o_->forward(merge_heads(attention_reference(heads(q_->forward(x)), k, v)));
  }

  double flops_per_token(int64_t) const override { return weight_flops() + 8.0 * static_cast<double>(dim_ * latents_); }

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState*) override {
    const Tensor lengths = batch.lengths(x);
    const int64_t longest = lengths.numel() ? lengths.max().item<int64_t>() : 0;
    fail_input_if(longest > length_, "[linformer] a sequence of ", longest, " tokens is longer than \"length\" (",
                  length_, "), what E and F are made for");
    const auto type = accumulation_type({x});
    const Tensor positions = batch.positions(x);
    // Column t of E weighs token t of each sequence: K̂ = E K is a sum over the sequence's tokens.
    auto project = [&](const Tensor& weight, const Tensor& y) {
      const Tensor columns = weight.to(type).t().index_select(0, positions.flatten()).unflatten(0, positions.sizes());
      return sequence_sums(columns.unsqueeze(2).expand({-1, -1, heads_, -1}), heads(y).to(type), batch.cu_seqlens);
    };
    const Tensor k = project(e_, k_->forward(x)), v = project(f_, v_->forward(x));
    return o_->forward(merge_heads(tokens_read(heads(q_->forward(x)), k, v, batch)));
  }

  Tensor heads(const Tensor& x) const { return split_heads(x, heads_); }

  int64_t dim_, heads_, latents_, length_;
  std::shared_ptr<Linear> q_, k_, v_, o_;
  Tensor e_, f_;  // E, F [L, length]
};

}  // namespace

extern const Mechanism kLinformer = {
    .name = "linformer",
    .family = "linear attention",
    .paper = "Linformer (Wang et al. 2020); Latte (2024) eq. 27-28",
    .equation = "o = softmax(Q (E K)' / sqrt d) F V",
    .state = "none (whole sequences)",
    .primitives = {"gated_scan"},
    .causal = false,
    .bidirectional = true,
    .make = construct<LinformerMixer>,
};

}  // namespace cortado
